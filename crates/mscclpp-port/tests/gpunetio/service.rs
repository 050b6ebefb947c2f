// SPDX-License-Identifier: MIT
//! Queues that all ranks set up together, as kernels use them.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use mscclpp_bootstrap::TcpBootstrap;
use mscclpp_device::abi::Backend;
use mscclpp_port::{
    Buffer, Communicator, Device, EndpointConfig, Error, PortChannel, QueueCounts,
    RegisteredMemory, Status, TransportKind,
};

use crate::local::Local;
use crate::ranks::{end, ranks, ranks_on, service, two};
use crate::support::{At, Call, PATIENCE, call, eventually, ping_pong, put_by_id, start};
use crate::world::{assert_empty, nics, pair, soon};

#[test]
fn gpunetio_service_unequal_queues_carry_data_between_their_peers_alone() {
    const COUNTS: [[i32; 4]; 4] = [[0, 3, 0, 1], [3, 0, 0, 0], [0; 4], [1, 0, 0, 0]];
    let nics: Vec<_> = [nics(), nics()].into_iter().flatten().collect();
    let world = Local::world(4).0;
    ranks(world, |bootstrap| {
        let rank = bootstrap.rank();
        let service = service(Arc::clone(&bootstrap), &nics);
        service.setup(&COUNTS[rank], 9).unwrap();
        let mut ends = Vec::new();
        for (peer, count) in COUNTS[rank].into_iter().enumerate() {
            for index in 0..count as u32 {
                // Registrations of different sizes at different offsets.
                let offset = 4096 * u64::from(index + 1) * (rank as u64 + 1);
                ends.push((peer, index, offset, end(&service, peer, index, offset, 512)));
            }
        }
        let value =
            |from: usize, to: usize, index: u32| (100 * from + 10 * to) as u64 + u64::from(index);
        for (peer, index, offset, end) in &ends {
            assert_eq!(end.remote.size(), 512);
            assert_eq!(end.channel.connection().peer(), Some(*peer));
            let handle = end.channel.device_handle();
            assert_eq!(handle.base.backend, Backend::Queue as u32);
            // The first word is for the peer's, the second comes from it.
            end.buffer
                .store_u64(*offset, value(rank, *peer, *index))
                .unwrap();
            let at = At {
                src: 0,
                dst: 8,
                size: 8,
            };
            assert_eq!(call(handle, Call::PutWithSignalAndFlush, at), Status::Ok);
        }
        for (peer, index, offset, end) in &ends {
            let handle = end.channel.device_handle();
            assert_eq!(call(handle, Call::Wait, At::NOWHERE), Status::Ok);
            let arrived = end.buffer.load_u64(offset + 8).unwrap();
            assert_eq!(arrived, value(*peer, rank, *index));
            // Nothing lies outside of the registration.
            let mut before = vec![0; *offset as usize];
            end.buffer.read(0, &mut before).unwrap();
            assert!(before.iter().all(|byte| *byte == 0));
        }
        bootstrap.barrier().unwrap();
        let queues: u64 = COUNTS[rank].iter().sum::<i32>() as u64;
        assert_eq!(nics[rank].counters().live.queue_pairs, queues);
    });
    nics.iter().for_each(assert_empty);
}

#[test]
fn gpunetio_service_channels_of_one_queue_and_of_several_count_their_own_signals() {
    let (_nics, ends) = two(2);
    let (a, b) = (&ends[0].1, &ends[1].1);
    // Three signals on one queue and one on the other, all sent before the first wait.
    for (queue, count) in [(0, 3), (1, 1)] {
        let signals = start(
            a[queue].channel.device_handle(),
            Call::Signal,
            At::NOWHERE,
            (1, count),
        );
        assert_eq!(signals.end(), [Status::Ok]);
        let flush = call(a[queue].channel.device_handle(), Call::Flush, At::NOWHERE);
        assert_eq!(flush, Status::Ok);
    }
    for (queue, count) in [(1, 1), (0, 3)] {
        let handle = b[queue].channel.device_handle();
        let waits = start(handle, Call::Wait, At::NOWHERE, (1, count));
        assert_eq!(waits.end(), [Status::Ok]);
        let more = call(handle, Call::WaitBounded, At::NOWHERE);
        assert_eq!(
            more,
            Status::Timeout,
            "one signal too many on queue {queue}"
        );
    }
    // Two channels on one queue.
    let second = ranks_on(&ends, |service, peer| {
        let connection = service.connect(peer, 0).unwrap();
        let semaphore = service.build_semaphore(&connection, 77).unwrap();
        let buffer = Buffer::new(Device::cpu(), 64).unwrap();
        let memory = service.register_memory(&buffer, 0..64).unwrap();
        let remote = service.exchange_memory(peer, &memory, 77).unwrap();
        let (remote, semaphore) = (
            remote.get_by(soon()).unwrap(),
            semaphore.get_by(soon()).unwrap(),
        );
        PortChannel::on_queue(semaphore, &remote, &memory).unwrap()
    });
    assert_eq!(
        call(second[0].device_handle(), Call::Signal, At::NOWHERE),
        Status::Ok
    );
    assert_eq!(
        call(second[1].device_handle(), Call::Wait, At::NOWHERE),
        Status::Ok
    );
    let first = call(b[0].channel.device_handle(), Call::WaitBounded, At::NOWHERE);
    assert_eq!(first, Status::Timeout);
}

#[test]
fn gpunetio_service_channels_have_every_call_of_the_device() {
    let (_nics, ends) = two(1);
    let (a, b) = (&ends[0].1[0], &ends[1].1[0]);
    let handle = a.channel.device_handle();
    a.buffer.store_u64(4096, 42).unwrap();
    assert_eq!(
        call(handle, Call::PutWithSignal, At::both(0, 8)),
        Status::Ok
    );
    assert_eq!(
        call(b.channel.device_handle(), Call::Wait, At::NOWHERE),
        Status::Ok
    );
    assert_eq!(b.buffer.load_u64(4096).unwrap(), 42);
    let add = At {
        dst: 0,
        src: 0,
        size: 8,
    };
    assert_eq!(call(handle, Call::Accumulate, add), Status::Ok);
    assert_eq!(call(handle, Call::Flush, At::NOWHERE), Status::Ok);
    assert_eq!(b.buffer.load_u64(4096).unwrap(), 50);
    let back = At {
        dst: 0,
        src: 16,
        size: 8,
    };
    assert_eq!(call(handle, Call::Get, back), Status::Ok);
    assert_eq!(call(handle, Call::Flush, At::NOWHERE), Status::Ok);
    assert_eq!(
        a.buffer.load_u64(4096).unwrap() + a.buffer.load_u64(4112).unwrap(),
        92
    );
    // Destination and source have ids 0 and 1.
    a.buffer.store_u64(4096, 7).unwrap();
    let put = put_by_id(a.channel.base().device_handle(), 0, 1, 8);
    assert_eq!(put, (Status::Ok, Status::Ok));
    assert_eq!(b.buffer.load_u64(4096).unwrap(), 7);
    assert_eq!(
        put_by_id(a.channel.base().device_handle(), 2, 1, 8).0,
        Status::InvalidArgument
    );
    for at in [
        At::both(1017, 8),
        At::both(u64::MAX - 3, 8),
        At::both(0, 1025),
    ] {
        assert_eq!(call(handle, Call::Put, at), Status::InvalidArgument);
    }
    ping_pong([a, b].map(|end| end.words(4096)), 64, 200);
}

#[test]
fn gpunetio_service_what_it_made_outlives_it_and_fails_when_the_peer_goes() {
    let (nics, mut ends) = two(2);
    let (theirs, (service, mut channels)) = (ends.pop().unwrap(), ends.pop().unwrap());
    let peer_connection = theirs.0.connect(0, 0).unwrap();
    drop(service);
    let kept = channels.swap_remove(0);
    drop(channels);
    let put = call(
        kept.channel.device_handle(),
        Call::PutWithSignalAndFlush,
        At::both(0, 8),
    );
    assert_eq!(put, Status::Ok);
    // A kernel waits for a peer that lets everything go.
    let waiting = start(
        kept.channel.device_handle(),
        Call::Wait,
        At::NOWHERE,
        (1, 1),
    );
    drop(peer_connection);
    drop(theirs);
    let ended = waiting.end();
    assert!(
        [Status::PeerDown, Status::QueueError].contains(&ended[0]),
        "{ended:?}"
    );
    eventually("the host is told", || {
        kept.channel.connection().status().is_some()
    });
    drop(kept);
    nics.iter().for_each(assert_empty);
}

#[test]
fn gpunetio_service_connections_to_a_dead_rank_fail() {
    let nics: Vec<_> = nics().into();
    let (world, kill) = Local::world(2);
    let mut services = ranks(world, |bootstrap| {
        let service = service(bootstrap, &nics);
        service
            .setup(&[(1 - service.bootstrap().rank(), 1)], 0)
            .unwrap();
        service
    });
    let connection = services[0].connect(1, 0).unwrap();
    kill(1);
    eventually("the connection is marked", || connection.status().is_some());
    let error = connection.status().unwrap();
    assert!(
        matches!(error, Error::PeerDown { rank: Some(1), .. }),
        "{error}"
    );
    services.clear();
}

#[test]
fn gpunetio_service_a_channel_without_proxy_needs_a_queue() {
    let [a, _b] = pair(64);
    let semaphores = ranks(Local::world(2).0, |bootstrap| {
        let peer = 1 - bootstrap.rank();
        let communicator = Communicator::new(bootstrap).unwrap();
        let config = EndpointConfig::new(TransportKind::Ethernet);
        let connection = communicator.connect(config, peer, 0).unwrap();
        let connection = connection.get_by(soon()).unwrap();
        let semaphore = communicator.build_semaphore(&connection, peer, 0).unwrap();
        semaphore.get_by(soon()).unwrap()
    });
    for semaphore in semaphores {
        let made = PortChannel::on_queue(semaphore, &a.remote, &a.local);
        let error = made.map(drop).unwrap_err();
        assert!(error.to_string().contains("ProxyService"), "{error}");
    }
}

#[test]
fn gpunetio_service_memory_of_others_cannot_be_put_to() {
    let (_nics, ends) = two(1);
    let other = pair(64);
    let wrong = ranks_on(&ends, |service, peer| {
        let connection = service.connect(peer, 0).unwrap();
        let semaphore = service.build_semaphore(&connection, 5).unwrap();
        let semaphore = semaphore.get_by(soon()).unwrap();
        let local = &other[0].local;
        let memory = &ends[1 - peer].1[0].remote;
        [
            (memory, local),
            (local, memory),
            (&RegisteredMemory::default(), local),
        ]
        .map(|(to, from)| service.port_channel(semaphore.clone(), to, from).map(drop))
    });
    for error in wrong.into_iter().flatten() {
        let error = error.unwrap_err();
        assert!(matches!(error, Error::InvalidUsage { .. }), "{error}");
    }
}

#[test]
fn gpunetio_service_a_rank_that_dies_in_a_setup_is_named_to_all_others() {
    let root = TcpBootstrap::new(0, 3).unwrap();
    let id = root.create_unique_id_at([127, 0, 0, 1].into()).unwrap();
    let join = |rank| {
        let (bootstrap, id) = (TcpBootstrap::new(rank, 3).unwrap(), id.clone());
        thread::spawn(move || {
            bootstrap.initialize(&id, PATIENCE).unwrap();
            bootstrap
        })
    };
    let others = [1, 2].map(join);
    root.initialize(&id, PATIENCE).unwrap();
    let [one, two] = others.map(|other| other.join().unwrap());
    let nics: Vec<_> = nics().into();
    let waiting: Vec<_> = [root, one]
        .into_iter()
        .map(|bootstrap| {
            let service = service(Arc::new(bootstrap), &nics);
            thread::spawn(move || service.setup(QueueCounts::Uniform(1), 0).unwrap_err())
        })
        .collect();
    thread::sleep(Duration::from_millis(50));
    // It leaves while the others are at their first gate.
    drop(two);
    for rank in waiting {
        let Error::Setup(error) = rank.join().unwrap() else {
            panic!("an error of the setup");
        };
        assert_eq!((error.lost_rank(), &*error.phase), (Some(2), "plan"));
    }
    nics.iter().for_each(assert_empty);
}
