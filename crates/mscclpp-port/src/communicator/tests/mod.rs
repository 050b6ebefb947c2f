// SPDX-License-Identifier: MIT
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::Deadline;

use super::*;
use crate::device::Device;
use crate::gpu_queue::Hca;
use crate::testing::{Local, PATIENCE, eventually};
use crate::transport::TransportKind;
use mscclpp_device::abi::Status;

mod underway;
mod waits;

fn pair() -> [Communicator; 2] {
    let world = Local::world(2).0.into_iter();
    let ranks: Vec<_> = world.map(|rank| Communicator::new(rank).unwrap()).collect();
    ranks.try_into().unwrap()
}

fn ethernet() -> EndpointConfig {
    EndpointConfig::new(TransportKind::Ethernet)
}

/// Connects two communicators on a tag, both asking at once.
fn connect([a, b]: &[Communicator; 2], tag: u32) -> [Connection; 2] {
    let (rank_a, rank_b) = (a.bootstrap().rank(), b.bootstrap().rank());
    let one = a.connect(ethernet(), rank_b, tag).unwrap();
    let two = b.connect(ethernet(), rank_a, tag).unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| two.get().unwrap());
        [one.get().unwrap(), other.join().unwrap()]
    })
}

fn memory_of(communicator: &Communicator, bytes: u64) -> RegisteredMemory {
    let buffer = Buffer::new(Device::cpu(), bytes).unwrap();
    communicator.register_memory(&buffer, 0..bytes).unwrap()
}

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

#[test]
fn memories_arrive_in_the_order_of_the_calls_whatever_is_asked_first() {
    let [a, b] = pair();
    let pending: Vec<_> = (0..4).map(|_| b.recv_memory(0, 3).unwrap()).collect();
    let other_tag = b.recv_memory(0, 4).unwrap();
    a.send_memory(&memory_of(&a, 500), 1, 4).unwrap();
    let kept: Vec<_> = (1..=4).map(|i| memory_of(&a, i * 100)).collect();
    for memory in &kept {
        a.send_memory(memory, 1, 3).unwrap();
    }
    // The last first: it completes the earlier ones.
    for (i, pending) in pending.iter().enumerate().rev() {
        let memory = pending.get_by(soon()).unwrap();
        assert_eq!(memory.size(), (i as u64 + 1) * 100);
    }
    assert_eq!(pending[0].get().unwrap().size(), 100, "asked again");
    assert_eq!(other_tag.get().unwrap().size(), 500);
}

#[test]
fn a_receive_that_nobody_asks_for_keeps_its_place() {
    let [a, b] = pair();
    drop(b.recv_memory(0, 0).unwrap());
    let second = b.recv_memory(0, 0).unwrap();
    for bytes in [8, 16] {
        a.send_memory(&memory_of(&a, bytes), 1, 0).unwrap();
    }
    assert_eq!(second.get_by(soon()).unwrap().size(), 16);
}

#[test]
fn tags_that_are_not_used_any_more_are_forgotten() {
    let [a, b] = pair();
    let early = b.recv_memory(0, 1_000_000).unwrap();
    drop(b.recv_memory(0, 1_000_001).unwrap());
    let memory = memory_of(&a, 8);
    for tag in 0..1000 {
        a.send_memory(&memory, 1, tag).unwrap();
        b.recv_memory(0, tag).unwrap().get_by(soon()).unwrap();
    }
    for communicator in [&a, &b] {
        let count = communicator.shared.lines.count();
        assert!(count <= 64, "{count} tags are kept");
    }
    // What is waited for has kept its place.
    let second = b.recv_memory(0, 1_000_001).unwrap();
    for bytes in [16, 24] {
        a.send_memory(&memory_of(&a, bytes), 1, 1_000_001).unwrap();
    }
    assert_eq!(second.get_by(soon()).unwrap().size(), 24);
    a.send_memory(&memory, 1, 1_000_000).unwrap();
    assert_eq!(early.get_by(soon()).unwrap().size(), 8);
}

#[test]
fn many_threads_may_ask_for_one_result() {
    let [a, b] = pair();
    let pending = b.recv_memory(0, 0).unwrap();
    thread::scope(|scope| {
        let askers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| pending.get_by(soon()).unwrap().size()))
            .collect();
        a.send_memory(&memory_of(&a, 24), 1, 0).unwrap();
        for asker in askers {
            assert_eq!(asker.join().unwrap(), 24);
        }
    });
}

#[test]
fn a_record_of_another_kind_is_refused_by_both_names() {
    let [a, b] = pair();
    let connecting = b.connect(ethernet(), 0, 0).unwrap();
    let memory = b.recv_memory(0, 0).unwrap();
    for bytes in [8, 16] {
        a.send_memory(&memory_of(&a, bytes), 1, 0).unwrap();
    }
    let error = connecting.get_by(soon()).unwrap_err();
    assert!(
        matches!(
            error,
            Error::WrongRecord {
                rank: 0,
                tag: 0,
                ..
            }
        ),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("an endpoint") && text.contains("a registered memory"),
        "{text}"
    );
    // The next call gets the next record.
    assert_eq!(memory.get_by(soon()).unwrap().size(), 16);
}

#[test]
fn a_rank_that_does_not_exist_is_refused() {
    let [a, _b] = pair();
    assert!(a.recv_memory(2, 0).is_err());
    let error = a.send_memory(&memory_of(&a, 8), 7, 5).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot send a memory: rank 7 does not exist: the world has 2 ranks, numbered from 0 (tag 5)"
    );
}

#[test]
fn an_end_that_cannot_be_made_fails_on_both_ranks() {
    let [a, b] = pair();
    let waiting = b.connect(ethernet(), 0, 0).unwrap();
    let memory = b.recv_memory(0, 0).unwrap();
    // This build has no GPU memory.
    let config = EndpointConfig {
        device: Device::gpu(0),
        ..ethernet()
    };
    let error = a.connect(config, 1, 0).unwrap_err();
    let remote = waiting.get_by(soon()).unwrap_err();
    assert!(
        matches!(remote, Error::PeerGaveUp { rank: 0, .. }),
        "{remote}"
    );
    assert!(remote.to_string().contains(&error.to_string()), "{remote}");
    // The tag goes on in step.
    a.send_memory(&memory_of(&a, 8), 1, 0).unwrap();
    assert_eq!(memory.get_by(soon()).unwrap().size(), 8);
    let next = b.send_memory(&memory_of(&b, 32), 0, 0);
    next.unwrap();
    let received = a.recv_memory(1, 0).unwrap();
    assert_eq!(received.get_by(soon()).unwrap().size(), 32);
}

#[test]
fn ends_that_do_not_fit_name_each_other_and_the_tag() {
    let ranks = Local::world(2).0.into_iter().map(|rank| {
        let mut config = ContextConfig::of_rank(&*rank);
        config.hca_devices = vec![Hca::named("soft0")];
        Communicator::with_config(rank, config).unwrap()
    });
    let [a, b] = <[_; 2]>::try_from(ranks.collect::<Vec<_>>()).unwrap();
    let queue = EndpointConfig::gpu_initiated(TransportKind::IB0);
    let at_a = a.connect(ethernet(), 1, 7).unwrap();
    let at_b = b.connect(queue, 0, 7).unwrap();
    for (pending, peer) in [(at_a, 1), (at_b, 0)] {
        let error = pending.get_by(soon()).unwrap_err();
        assert!(
            matches!(error, Error::IncompatibleTransports { .. }),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains(&format!("rank {peer}, tag 7")), "{text}");
    }
}

#[test]
fn a_record_that_nobody_can_read_is_named_by_rank_and_tag() {
    let ranks = Local::world(2).0;
    let communicator = Communicator::new(Arc::clone(&ranks[0])).unwrap();
    let tag = mscclpp_bootstrap::Tag::layered(1, 7);
    ranks[1].send(0, tag, &[0xc1; 9], soon()).unwrap();
    let memory = communicator.recv_memory(1, 7).unwrap();
    let error = memory.get_by(soon()).unwrap_err();
    assert!(matches!(error, Error::Record { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("rank 1") && text.contains("tag 7"), "{text}");
}

#[test]
fn a_connection_knows_its_rank_and_tag() {
    let both = pair();
    let [one, two] = connect(&both, 17);
    let [a, b] = &both;
    assert_eq!(a.remote_rank_of(&one).unwrap(), 1);
    assert_eq!(b.remote_rank_of(&two).unwrap(), 0);
    assert_eq!(a.tag_of(&one).unwrap(), 17);
    assert_eq!(one.peer(), Some(1));
    let error = b.tag_of(&one).unwrap_err();
    assert!(matches!(error, Error::UnknownConnection { .. }), "{error}");
}

#[test]
fn connections_may_be_asked_for_in_any_order_by_each_rank() {
    let [a, b] = pair();
    let ends = |x: &Communicator, peer| -> Vec<_> {
        (0..4)
            .map(|tag| x.connect(ethernet(), peer, tag).unwrap())
            .collect()
    };
    let (ends_a, ends_b) = (ends(&a, 1), ends(&b, 0));
    thread::scope(|scope| {
        scope.spawn(|| {
            ends_a
                .iter()
                .for_each(|end| drop(end.get_by(soon()).unwrap()))
        });
        ends_b
            .iter()
            .rev()
            .for_each(|end| drop(end.get_by(soon()).unwrap()));
    });
}

#[test]
fn the_own_rank_is_a_peer() {
    let own = Communicator::new(Local::world(1).0.remove(0)).unwrap();
    let buffer = Buffer::new(Device::cpu(), 64).unwrap();
    let local = own.register_memory(&buffer, 0..64).unwrap();
    own.send_memory(&local, 0, 0).unwrap();
    let remote = own.recv_memory(0, 0).unwrap().get_by(soon()).unwrap();
    assert_eq!(remote.size(), 64);
    let connection = own
        .connect(ethernet(), 0, 0)
        .unwrap()
        .get_by(soon())
        .unwrap();
    buffer.write(0, b"to self").unwrap();
    connection.write(&remote, 32, &local, 0, 7).unwrap();
    connection.flush(soon()).unwrap();
    let mut bytes = [0; 7];
    buffer.read(32, &mut bytes).unwrap();
    assert_eq!(&bytes, b"to self");
    let semaphore = own.build_semaphore(&connection, 0, 0).unwrap();
    let semaphore = crate::Host2HostSemaphore::new(semaphore.get_by(soon()).unwrap()).unwrap();
    semaphore.signal().unwrap();
    semaphore.wait(soon()).unwrap();
    assert!(!semaphore.poll().unwrap());
}

/// Else the first put would end the connection.
#[test]
fn memories_that_are_swapped_are_refused_when_they_are_bound() {
    let ends = pair();
    let [a, b] = &ends;
    let [connection, theirs] = connect(&ends, 0);
    let (local, remote) = (memory_of(a, 64), memory_of(b, 64));
    b.send_memory(&remote, 0, 1).unwrap();
    let remote = a.recv_memory(1, 1).unwrap().get().unwrap();
    let service = crate::ProxyService::with_default_size().unwrap();
    let other = b.build_semaphore(&theirs, 0, 2).unwrap();
    let semaphore = a.build_semaphore(&connection, 1, 2).unwrap();
    let id = service.add_semaphore(semaphore.get().unwrap()).unwrap();
    other.get().unwrap();
    let [local, remote] = [local, remote].map(|memory| service.add_memory(memory).unwrap());
    let bind = |dst, src| service.port_channel(id, dst, src);
    let error = bind(local, remote).unwrap_err().to_string();
    assert!(error.contains("memory of rank 0, not of rank 1"), "{error}");
    let error = bind(remote, remote).unwrap_err().to_string();
    assert!(
        error.contains("source") && error.contains("rank 1"),
        "{error}"
    );
    bind(remote, local).unwrap();
    assert!(connection.status().is_none());
}

#[test]
fn a_semaphore_is_refused_over_a_connection_to_another_rank() {
    let both = pair();
    let [one, _two] = connect(&both, 0);
    let error = both[0].build_semaphore(&one, 0, 0).unwrap_err();
    assert!(error.to_string().contains("leads to rank 1"), "{error}");
}

#[test]
fn the_death_of_a_rank_marks_its_connections_only() {
    let (world, kill) = Local::world(3);
    let mut ranks = world
        .into_iter()
        .map(|rank| Communicator::new(rank).unwrap());
    let [a, b, c]: [_; 3] = std::array::from_fn(|_| ranks.next().unwrap());
    let [to_b, _b] = connect(&[a.clone(), b.clone()], 0);
    let [to_c, _c] = connect(&[a.clone(), c.clone()], 0);
    kill(2);
    let error = to_c.status().expect("marked before the observer returns");
    assert!(
        matches!(error, Error::PeerDown { rank: Some(2), .. }),
        "{error}"
    );
    assert!(error.to_string().contains("killed by the test"), "{error}");
    assert_eq!(to_c.sticky().word().status(), Ok(Status::PeerDown));
    assert!(to_b.status().is_none());
    // Later calls fail at once.
    let begin = Instant::now();
    let pending = a.recv_memory(2, 5).unwrap();
    let error = pending.get().unwrap_err();
    assert!(
        matches!(error, Error::PeerDown { rank: Some(2), .. }),
        "{error}"
    );
    assert!(to_c.flush(soon()).is_err());
    assert!(begin.elapsed() < PATIENCE);
}

#[test]
fn a_rank_that_the_others_take_for_dead_has_no_connections_any_more() {
    use mscclpp_bootstrap::{FailureKind, FailureObserver as _, PeerFailure};
    let both = pair();
    let errors = both[0].context().async_errors();
    let [to_other, _other] = connect(&both, 0);
    let excluded = PeerFailure::new(0, FailureKind::Died, "it was silent");
    both[0].shared.peers.peer_failed(&excluded);
    let error = to_other
        .status()
        .expect("marked before the observer returns");
    assert!(
        matches!(&error, Error::PeerDown { rank: Some(1), cause } if cause.contains("this one")),
        "{error}"
    );
    let [later, _other] = connect(&both, 1);
    assert!(later.status().is_some(), "a new one is marked, too");
    let heard = [errors.next_by(soon()), errors.next_by(soon())].map(Option::unwrap);
    for heard in &heard {
        assert_eq!((heard.rank, heard.peer), (Some(0), Some(1)));
        assert!(matches!(heard.error, Error::PeerDown { .. }), "{heard}");
    }
    assert!(
        heard[0].to_string().contains("rank 0 to rank 1"),
        "{}",
        heard[0]
    );
}

#[test]
fn every_supervisor_hears_of_each_connection_once() {
    let (world, kill) = Local::world(3);
    let ranks = world.into_iter();
    let ranks: Vec<_> = ranks.map(|rank| Communicator::new(rank).unwrap()).collect();
    let [a, b, c] = <[_; 3]>::try_from(ranks).unwrap();
    let listening = [a.context().async_errors(), a.context().async_errors()];
    drop(a.context().async_errors());
    let [_to_b, _b] = connect(&[a.clone(), b.clone()], 0);
    let [_to_c, _c] = connect(&[a.clone(), c.clone()], 0);
    let [_also, _c_too] = connect(&[a.clone(), c.clone()], 1);
    assert!(listening[0].try_next().is_none());
    kill(2);
    for errors in &listening {
        for _ in 0..2 {
            let heard = errors.try_next().expect("told before the observer returns");
            assert_eq!(heard.peer, Some(2), "{heard}");
        }
        let soon = Deadline::after(Duration::from_millis(20));
        assert!(errors.next_by(soon).is_none());
    }
    assert!(
        a.context().async_errors().try_next().is_none(),
        "only later ones"
    );
}

#[test]
fn connections_are_marked_without_their_communicator() {
    let (world, kill) = Local::world(2);
    let mut ranks = world
        .into_iter()
        .map(|rank| Communicator::new(rank).unwrap());
    let both: [_; 2] = std::array::from_fn(|_| ranks.next().unwrap());
    let [one, _two] = connect(&both, 0);
    drop(both);
    kill(1);
    eventually("the mark", || one.status().is_some());
}
