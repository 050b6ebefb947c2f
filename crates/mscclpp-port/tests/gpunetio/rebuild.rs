// SPDX-License-Identifier: MIT
//! One edge of a setup is made again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_port::{Buffer, Device, Error, PortChannel, Status};

use crate::local::Local;
use crate::ranks::{End, end, ranks, service};
use crate::support::{At, Call, call, eventually, ping_pong, start};
use crate::world::{assert_empty, nics, soon};

/// Far above what a call takes that fails at once.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Ping-pongs between two ranks, until told to stop; how many there were.
fn play(ends: [&End; 2], stop: &AtomicBool) -> usize {
    let mut rounds = 0;
    while !stop.load(Ordering::SeqCst) {
        ping_pong(ends.map(|end| end.words(0)), 16, 50);
        rounds += 1;
    }
    rounds
}

#[test]
fn gpunetio_service_a_failed_edge_is_rebuilt_while_the_others_carry_data() {
    let nics: Vec<_> = nics().into_iter().chain(nics()).take(3).collect();
    let mut all = ranks(Local::world(3).0, |bootstrap| {
        let rank = bootstrap.rank();
        let service = service(bootstrap, &nics);
        service.setup_full_mesh(1, 0).unwrap();
        let mut ends: Vec<_> = (0..3)
            .map(|peer| (peer != rank).then(|| end(&service, peer, 0, 0, 1024)))
            .collect();
        // Memory of rank 1 that rank 0 puts to, and that goes.
        let extra = (rank < 2).then(|| {
            let buffer = Buffer::new(Device::cpu(), 64).unwrap();
            let memory = service.register_memory(&buffer, 0..64).unwrap();
            let remote = service.exchange_memory(1 - rank, &memory, 9).unwrap();
            let connection = service.connect(1 - rank, 0).unwrap();
            let semaphore = service.build_semaphore(&connection, 9).unwrap();
            let semaphore = semaphore.get_by(soon()).unwrap();
            let remote = remote.get_by(soon()).unwrap();
            let local = &ends[1 - rank].as_mut().unwrap().local;
            (
                PortChannel::on_queue(semaphore, &remote, local).unwrap(),
                memory,
            )
        });
        (service, ends, extra)
    });
    let broken = all[0].2.take().unwrap().0;
    drop(all[1].2.take());
    let edge = |a: usize, b: usize| [&all[a].1[b], &all[b].1[a]].map(|end| end.as_ref().unwrap());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = &stop;
        let others = [edge(0, 2), edge(1, 2)].map(|ends| scope.spawn(move || play(ends, stop)));
        // Rank 1 refuses what rank 0 puts, and both queues end.
        let put = call(
            broken.device_handle(),
            Call::PutWithSignalAndFlush,
            At::both(0, 8),
        );
        assert_eq!(put, Status::QueueError);
        let waiting = start(
            edge(0, 1)[1].channel.device_handle(),
            Call::Wait,
            At::NOWHERE,
            (1, 1),
        );
        assert_ne!(waiting.end(), [Status::Ok]);
        for old in edge(0, 1) {
            let connection = old.channel.connection();
            eventually("both hosts are told", || connection.status().is_some());
        }
        let rebuilds = [0, 1].map(|rank| {
            let service = &all[rank].0;
            scope.spawn(move || {
                service.rebuild(1 - rank, 3, soon()).unwrap();
                end(service, 1 - rank, 0, 0, 1024)
            })
        });
        let [a, b] = rebuilds.map(|rank| rank.join().unwrap());
        for old in edge(0, 1) {
            for operation in [Call::PutWithSignalAndFlush, Call::Wait, Call::Flush] {
                let begun = Instant::now();
                let status = call(old.channel.device_handle(), operation, At::both(0, 8));
                assert_ne!(status, Status::Ok, "{operation:?} on an old handle");
                assert!(begun.elapsed() < AT_ONCE, "{operation:?}");
            }
        }
        ping_pong([&a, &b].map(|end| end.words(0)), 64, 100);
        // They did not notice, and go on.
        stop.store(true, Ordering::SeqCst);
        for rounds in others {
            assert!(rounds.join().unwrap() > 0);
        }
        for (a, b) in [(0, 2), (1, 2)] {
            for end in edge(a, b) {
                assert!(end.channel.connection().status().is_none());
            }
        }
    });
    drop((broken, all));
    nics.iter().for_each(assert_empty);
}

#[test]
fn gpunetio_service_handles_of_a_replaced_edge_fail_at_once_also_where_it_worked() {
    let nics: Vec<_> = nics().into();
    let all = ranks(Local::world(2).0, |bootstrap| {
        let peer = 1 - bootstrap.rank();
        let service = service(bootstrap, &nics);
        service.setup_full_mesh(2, 0).unwrap();
        let ends = [0, 1].map(|index| end(&service, peer, index, 0, 64));
        (service, ends)
    });
    // A kernel waits for a signal on an old queue, and for the peer that went on to new ones.
    let waiting = [0, 1].map(|rank: usize| {
        let handle = all[rank].1[1].channel.device_handle();
        start(handle, Call::Wait, At::NOWHERE, (1, 1))
    });
    thread::scope(|scope| {
        for rank in [0, 1] {
            let service = &all[rank].0;
            scope.spawn(move || service.rebuild(1 - rank, 3, soon()).unwrap());
        }
    });
    for kernel in waiting {
        let begun = Instant::now();
        assert_ne!(kernel.end(), [Status::Ok]);
        assert!(begun.elapsed() < AT_ONCE);
    }
    for (service, ends) in &all {
        for end in ends {
            let error = end.channel.connection().status().unwrap();
            assert!(
                matches!(error, Error::PeerFailed { .. } | Error::PeerDown { .. }),
                "{error}"
            );
        }
        for index in [0, 1] {
            let peer = 1 - service.bootstrap().rank();
            assert!(service.connect(peer, index).unwrap().status().is_none());
        }
    }
    drop(all);
    nics.iter().for_each(assert_empty);
}
