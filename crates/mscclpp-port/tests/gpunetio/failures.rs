// SPDX-License-Identifier: MIT
//! What fails, on both ends, and what is left of it: nothing.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{Bootstrap, Deadline};
use mscclpp_port::{
    EndpointConfig, Error, ErrorCode, ProxyService, QueueForm, Status, TransportKind,
};
use mscclpp_softnic::{
    ControlOperation, DeviceConfig, FaultKind, FaultPlan, FaultRule, NetworkConfig, State,
};

use crate::binding::reserved;
use crate::local::Local;
use crate::support::{At, Call, call, eventually, start};
use crate::world::{
    assert_empty, communicator, end, gpu, nic, nics, pair, pair_on, soon, try_pair,
};

/// Refuses the `nth` such operation, counted from 0.
fn refuse(operation: ControlOperation, nth: u32) -> DeviceConfig {
    let rule = FaultRule {
        operation,
        skip: nth,
        count: u32::MAX,
        kind: FaultKind::Refuse,
    };
    DeviceConfig {
        faults: FaultPlan::default().and(rule),
        ..DeviceConfig::default()
    }
}

#[test]
fn gpunetio_every_refused_step_is_named_and_leaves_nothing() {
    use ControlOperation as Op;
    // What an end does, in its order, with the words that its error has.
    let steps = [
        (Op::AllocateDomain, 0, "protection domain"),
        (Op::Register, 0, "register memory"),
        (Op::AllocateDoorbellPage, 0, "doorbell page"),
        (Op::CreateCompletionQueue, 0, "completion queue"),
        (Op::Register, 1, "scratch word"),
        (Op::CreateQueuePair, 0, "create a queue pair"),
        (Op::Transition(State::Init), 0, "INIT"),
        (Op::Transition(State::ReadyToReceive), 0, "RTR"),
        (Op::Transition(State::ReadyToSend), 0, "RTS"),
        (Op::Register, 2, "register memory"),
    ];
    for (operation, nth, named) in steps {
        for victim in 0..2 {
            let mut configs = [DeviceConfig::default(), DeviceConfig::default()];
            configs[victim] = refuse(operation, nth);
            let devices = configs.map(nic);
            // The peer of a rank that could not register its memory waits for it until its bootstrap
            // tells that the rank is gone.
            let (world, kill) = Local::world(2);
            let setups: Vec<_> = (world.into_iter().zip(&devices).enumerate())
                .map(|(rank, (bootstrap, device))| {
                    let made = communicator(bootstrap, device);
                    thread::spawn(move || end(made, 1 - rank, 4096, gpu()).map(drop))
                })
                .collect();
            let mut setups = setups.into_iter().enumerate();
            let (mut failed, mut other) = (None, None);
            while let Some((rank, setup)) = setups.next() {
                if rank == victim {
                    failed = Some(setup.join().unwrap());
                    kill(victim);
                } else if victim == 1 {
                    let (_, second) = setups.next().unwrap();
                    failed = Some(second.join().unwrap());
                    kill(victim);
                    other = Some(setup.join().unwrap());
                } else {
                    other = Some(setup.join().unwrap());
                }
            }
            let error = failed.unwrap().unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::Hca { .. }), "{operation}: {error}");
            assert!(
                text.contains(named) && text.contains("soft0"),
                "{operation}: {text}"
            );
            let error = other.unwrap().unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::PeerFailed { .. } | Error::PeerGaveUp { .. } | Error::PeerDown { .. }
                ),
                "{operation}: {error}"
            );
            devices.iter().for_each(assert_empty);
        }
    }
}

/// Who drops a connection in the middle of its self-test does not wait for the end of it.
#[test]
fn gpunetio_dropping_ends_a_self_test() {
    let devices = [(); 2].map(|()| {
        nic(DeviceConfig {
            faults: FaultPlan {
                never_execute: true,
                ..FaultPlan::default()
            },
            ..DeviceConfig::default()
        })
    });
    let world = Local::world(2).0;
    let communicators: Vec<_> = world
        .into_iter()
        .zip(&devices)
        .map(|(bootstrap, device)| communicator(bootstrap, device))
        .collect();
    let connecting = [0, 1].map(|rank| communicators[rank].connect(gpu(), 1 - rank, 0).unwrap());
    let [a, b] = connecting.map(|pending| pending.get_by(soon()).unwrap());
    eventually("both queues are tested", || {
        devices.iter().all(|device| device.counters().doorbells > 0)
    });
    let begun = Instant::now();
    drop(a);
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    eventually("the other end hears of it", || b.status().is_some());
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
    let error = b.status().unwrap();
    assert!(
        matches!(error, Error::PeerDown { rank: Some(0), .. }),
        "{error}"
    );
    drop((b, communicators));
    devices.iter().for_each(assert_empty);
}

#[test]
fn gpunetio_a_queue_that_never_executes_is_found_before_anyone_gets_it() {
    let faulty = DeviceConfig {
        faults: FaultPlan {
            never_execute: true,
            ..FaultPlan::default()
        },
        ..DeviceConfig::default()
    };
    let devices = [nic(DeviceConfig::default()), nic(faulty)];
    let [good, bad] = try_pair(&devices, 64, [gpu(); 2]).map(|end| end.map(drop).unwrap_err());
    assert!(
        matches!(bad, Error::QueueNotExecuting { rank: Some(0), .. }),
        "{bad}"
    );
    assert!(bad.to_string().contains("never executes"), "{bad}");
    let Error::PeerFailed {
        rank: Some(1),
        reason,
    } = &good
    else {
        panic!("{good}");
    };
    assert!(reason.contains("never executes"), "{reason}");
    devices.iter().for_each(assert_empty);
}

#[test]
fn gpunetio_a_slow_hca_is_waited_for() {
    use ControlOperation as Op;
    let mut faults = FaultPlan::default();
    for operation in [
        Op::Register,
        Op::CreateQueuePair,
        Op::Transition(State::ReadyToReceive),
        Op::Transition(State::ReadyToSend),
    ] {
        faults = faults.and(FaultRule {
            operation,
            skip: 0,
            count: 2,
            kind: FaultKind::Delay(Duration::from_millis(200)),
        });
    }
    let slow = DeviceConfig {
        faults,
        ..DeviceConfig::default()
    };
    let [a, b] = pair_on(&[nic(slow), nic(DeviceConfig::default())], 64, gpu());
    assert_eq!(
        call(a.handle(), Call::PutWithSignalAndFlush, At::both(0, 8)),
        Status::Ok
    );
    assert_eq!(call(b.handle(), Call::Wait, At::NOWHERE), Status::Ok);
}

#[test]
fn gpunetio_a_peer_that_drops_its_connection_releases_who_waits() {
    let devices = nics();
    let [a, b] = pair_on(&devices, 4096, gpu());
    let waiting = start(a.handle(), Call::Wait, At::NOWHERE, (4, 1));
    let begun = Instant::now();
    drop(b);
    assert_eq!(waiting.end(), [Status::PeerDown; 4]);
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    let error = a.connection.status().unwrap();
    assert!(
        matches!(error, Error::PeerDown { rank: Some(1), .. }),
        "{error}"
    );
    // New channels are refused with it, and so are posts.
    let made = a.service.port_channel(a.semaphore, a.dst, a.src);
    assert!(matches!(made, Err(Error::PeerDown { .. })), "{made:?}");
    eventually("posts fail", || {
        call(a.handle(), Call::PutWithSignalAndFlush, At::both(0, 8)) != Status::Ok
    });
    drop(a);
    devices.iter().for_each(assert_empty);
}

#[test]
fn gpunetio_a_rank_that_dies_releases_who_waits() {
    let (world, kill) = Local::world(2);
    let setups: Vec<_> = (world.into_iter().enumerate())
        .map(|(rank, bootstrap)| {
            let made = communicator(bootstrap, &nic(DeviceConfig::default()));
            thread::spawn(move || end(made, 1 - rank, 4096, gpu()).unwrap())
        })
        .collect();
    let ends: Vec<_> = setups.into_iter().map(|s| s.join().unwrap()).collect();
    let waiting = start(ends[0].handle(), Call::Wait, At::NOWHERE, (1, 1));
    let peer = start(ends[1].handle(), Call::Wait, At::NOWHERE, (1, 1));
    kill(1);
    assert_eq!(waiting.end(), [Status::PeerDown]);
    // The other end is told, although nobody told its bootstrap.
    assert_ne!(peer.end(), [Status::Ok]);
}

#[test]
fn gpunetio_a_path_that_is_gone_ends_both_ends() {
    let devices = nics();
    let [a, b] = pair_on(&devices, 4096, gpu());
    let waiting = [&a, &b].map(|end| start(end.handle(), Call::Wait, At::NOWHERE, (1, 1)));
    // Packets get lost from now on: only the retries of a request tell.
    devices[0].set_link_up(false);
    let put = call(a.handle(), Call::PutWithSignalAndFlush, At::both(0, 8));
    assert_eq!(put, Status::QueueError);
    for kernel in waiting {
        assert_eq!(kernel.end(), [Status::QueueError]);
    }
    let error = a.connection.status().unwrap();
    assert!(error.to_string().contains("RETRY_EXC_ERR"), "{error}");
    assert!(error.to_string().contains("nobody answers"), "{error}");
    let error = b.connection.status().unwrap();
    assert!(
        matches!(&error, Error::PeerFailed { reason, .. } if reason.contains("RETRY")),
        "{error}"
    );
}

#[test]
fn gpunetio_a_peer_that_never_connects_is_a_timeout() {
    let device = nic(DeviceConfig::default());
    let bootstraps: Vec<Arc<dyn Bootstrap>> = Local::world(2).0;
    let contexts = bootstraps
        .iter()
        .map(|rank| communicator(Arc::clone(rank), &device));
    let contexts: Vec<_> = contexts.collect();
    let ends = [0, 1].map(|i: usize| contexts[i].context().create_endpoint(gpu()).unwrap());
    // Whether this end dials or waits to be dialled depends on the numbers drawn.
    for _ in 0..4 {
        let own = contexts[0].context().create_endpoint(gpu()).unwrap();
        let short = Deadline::after(Duration::from_millis(300));
        let record = ends[1].serialize().unwrap();
        let connection = contexts[0].context().connect(own, &record, short).unwrap();
        let error = connection.wait_connected(soon()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Timeout, "{error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
        let begun = Instant::now();
        drop(connection);
        assert!(begun.elapsed() < Duration::from_secs(2));
    }
    // Dropped while it waits.
    let own = contexts[0].context().create_endpoint(gpu()).unwrap();
    let record = ends[1].serialize().unwrap();
    let connection = contexts[0].context().connect(own, &record, soon()).unwrap();
    let begun = Instant::now();
    drop(connection);
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    drop((ends, contexts));
    assert_empty(&device);
}

#[test]
fn gpunetio_two_threads_in_an_exclusive_queue_are_caught() {
    let mut config = gpu();
    config.ib.queue_form = QueueForm::Exclusive;
    let [a, b] = pair_on(&nics(), 4096, config);
    let waiting = start(b.handle(), Call::Wait, At::NOWHERE, (1, 1_000_000));
    let status = start(a.handle(), Call::Signal, At::NOWHERE, (8, 100_000)).end();
    assert!(status.contains(&Status::QueueError), "{status:?}");
    eventually("the host notices", || a.connection.status().is_some());
    let error = a.connection.status().unwrap();
    assert!(
        matches!(
            error,
            Error::QueueNotExclusive { .. } | Error::QueueFailed { .. }
        ),
        "{error}"
    );
    assert_eq!(waiting.end(), [Status::QueueError]);
}

#[test]
fn gpunetio_an_ethernet_end_and_an_hca_end_do_not_fit() {
    let ethernet = EndpointConfig::new(TransportKind::Ethernet);
    let devices = nics();
    for result in try_pair(&devices, 64, [gpu(), ethernet]) {
        let error = result.map(drop).unwrap_err();
        assert!(
            matches!(error, Error::IncompatibleTransports { .. }),
            "{error}"
        );
    }
    devices.iter().for_each(assert_empty);
}

#[test]
fn gpunetio_a_stopped_service_releases_who_waits() {
    let [a, _b] = pair(4096);
    let waiting = start(a.handle(), Call::Wait, At::NOWHERE, (2, 1));
    let handle = a.channel;
    drop(a.service);
    assert_eq!(waiting.end(), [Status::Aborted; 2]);
    drop(handle);
}

/// Threads that wait for room of a shared queue have taken their slots. When their service stops they
/// leave no gap: they post once there is room, another service's kernels go on, and so do the same
/// ones after a restart.
#[test]
fn gpunetio_who_waits_for_room_when_the_service_stops_leaves_no_gap() {
    for restart in [false, true] {
        let mut config = gpu();
        config.ib.max_send_wr = Some(4);
        let devices = nics();
        let [a, _b] = pair_on(&devices, 4096, config);
        let second = ProxyService::with_default_size().unwrap();
        let semaphore = a.service.semaphore(a.semaphore).unwrap();
        let id = second.add_host2device_semaphore(semaphore).unwrap();
        let dst = second.add_memory(a.remote.clone()).unwrap();
        let src = second.add_memory(a.local.clone()).unwrap();
        let other = second.port_channel(id, dst, src).unwrap();
        a.service.start_proxy().unwrap();
        // Nothing arrives: the first four are sent again and again.
        devices[0].set_network(NetworkConfig {
            loss: 1.0,
            ..NetworkConfig::default()
        });
        let before = reserved(&a.channel);
        let posting = start(a.handle(), Call::Put, At::both(0, 64), (12, 1));
        eventually("all have their slots", || {
            reserved(&a.channel) == before + 12
        });
        a.service.stop_proxy().unwrap();
        assert!(!posting.is_finished(), "restart: {restart}");
        devices[0].set_network(NetworkConfig::default());
        assert_eq!(posting.end(), [Status::Ok; 12], "restart: {restart}");
        let handle = if restart {
            a.service.start_proxy().unwrap();
            a.handle()
        } else {
            other.device_handle()
        };
        let post = call(handle, Call::PutWithSignalAndFlush, At::both(0, 8));
        assert_eq!(post, Status::Ok, "restart: {restart}");
    }
}
