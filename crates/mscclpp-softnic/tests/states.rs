// SPDX-License-Identifier: MIT
//! Queue pairs go from state to state by the table, objects come and go in any
//! order, and bad arguments are errors.

mod support;

use mlx5_queue::*;
use mscclpp_softnic::{Error, *};
use support::*;

fn steps(remote: QueueAddress) -> [Transition; 5] {
    [
        Transition::Reset,
        Transition::Init(InitAttributes::ALL),
        Transition::ReadyToReceive(ReceiveAttributes::new(remote)),
        Transition::ReadyToSend(SendAttributes::default()),
        Transition::Error,
    ]
}

#[test]
fn exactly_the_transitions_of_the_table_exist() {
    let device = Device::open("soft0", inline()).unwrap();
    let domain = device.allocate_domain().unwrap();
    let states = [
        State::Reset,
        State::Init,
        State::ReadyToReceive,
        State::ReadyToSend,
        State::Error,
    ];
    // Rows: from; columns: to.
    let table = [
        [true, true, false, false, true],
        [true, true, true, false, true],
        [true, false, false, true, true],
        [true, false, false, true, true],
        [true, false, false, false, true],
    ];
    for (from, row) in table.iter().enumerate() {
        for (to, allowed) in row.iter().enumerate() {
            let poster = Poster::new(&domain, &Setup::default());
            let steps = steps(poster.pair.address());
            // Error is reached from Reset at once.
            let way: &[usize] = if from == 4 {
                &[4]
            } else {
                &[0, 1, 2, 3][..=from]
            };
            for step in way {
                poster.pair.modify(steps[*step]).unwrap();
            }
            assert_eq!(poster.pair.status().state, states[from]);
            let result = poster.pair.modify(steps[to]);
            assert_eq!(
                result.is_ok(),
                *allowed,
                "{} to {}",
                states[from],
                states[to]
            );
            let now = if *allowed { states[to] } else { states[from] };
            assert_eq!(poster.pair.status().state, now);
            if let Err(error) = result {
                let Error::Transition { from: f, to: t, .. } = error else {
                    panic!("{error}")
                };
                assert_eq!((f, t), (states[from], states[to]));
            }
        }
    }
}

#[test]
fn a_reset_queue_starts_again_at_zero() {
    let mut rig = Rig::inline();
    for _ in 0..100 {
        rig.a.post(rig.fetch_add(0, 1, 0));
        assert_eq!(rig.a.wait().failure(), None);
    }
    for poster in [&rig.a, &rig.b] {
        poster.pair.modify(Transition::Reset).unwrap();
    }
    assert_eq!(rig.a.pair.status().announced, 0);
    let setup = Setup::default();
    rig.a.connect(rig.b.pair.address(), &setup, Mtu::Bytes4096);
    rig.b.connect(rig.a.pair.address(), &setup, Mtu::Bytes4096);
    rig.a.head = QueueIndex::ZERO;
    rig.a.post(rig.fetch_add(0, 1, 0));
    let completion = rig.a.wait();
    assert_eq!((completion.failure(), completion.wqe_counter), (None, 0));
    assert_eq!(rig.target.read_u64(0), 101);
}

#[test]
fn doorbells_before_ready_to_send_execute_nothing_and_are_reported() {
    let device = Device::open("soft0", inline()).unwrap();
    let domain = device.allocate_domain().unwrap();
    let mut poster = Poster::new(&domain, &Setup::default());
    let steps = steps(poster.pair.address());
    for step in &steps[..3] {
        poster.pair.modify(*step).unwrap();
        poster.head = QueueIndex::ZERO;
        poster.post(Operation::Nop);
        assert_eq!(poster.poll(), None);
        let violations = device.take_violations();
        assert_eq!(violations.len(), 1);
        assert_eq!(violations[0].kind, ViolationKind::NotReadyToSend);
        assert_eq!(violations[0].queue, poster.pair.number());
    }
}

#[test]
fn a_peer_that_is_not_ready_does_not_answer() {
    let setup = Setup {
        send: SendAttributes {
            retry_count: 2,
            ..Default::default()
        },
        ..Default::default()
    };
    let device = Device::open("soft0", manual()).unwrap();
    let domain = device.allocate_domain().unwrap();
    let mut a = Poster::new(&domain, &setup);
    let b = Poster::new(&domain, &setup);
    a.connect(b.pair.address(), &setup, Mtu::Bytes4096);
    b.pair
        .modify(Transition::Init(InitAttributes::ALL))
        .unwrap();
    let remote = RemoteAddress {
        address: 0,
        key: MemoryKey::new(0),
    };
    a.post(write(remote, &[]));
    device.run_at(Time::at(std::time::Duration::from_millis(3 * 67)));
    assert_eq!(a.poll(), None, "two retries take three timeouts");
    device.run_at(Time::at(std::time::Duration::from_millis(3 * 68)));
    assert_eq!(a.wait_failure(), Syndrome::TRANSPORT_RETRY_EXCEEDED);
    let counters = device.counters();
    assert_eq!((counters.retransmissions, counters.packets_stray), (2, 3));
}

#[test]
fn only_the_connected_peer_is_heard() {
    let setup = Setup::default();
    let mut rig = Rig::new(inline(), &setup);
    let mut stranger = Poster::new(&rig.domain, &setup);
    stranger.connect(rig.b.pair.address(), &setup, Mtu::Bytes4096);
    let list = [rig.local(0, 8).encode()];
    rig.source.write_u64(0, 9);
    stranger.post(write(rig.remote(0), &list));
    assert_eq!(stranger.poll(), None);
    assert_eq!(rig.target.read_u64(0), 0);
    assert_eq!(rig.device.counters().packets_stray, 1);
    rig.post_write(0, 8, 8);
    assert_eq!(rig.a.wait().failure(), None);
}

#[test]
fn names_that_are_not_soft_nics_are_refused() {
    for name in [
        "mlx5_0",
        "soft",
        "softx",
        "soft-1",
        "soft0 ",
        "soft00001",
        "",
        "rxe0",
    ] {
        let error = Device::open(name, inline()).unwrap_err();
        assert!(matches!(error, Error::UnknownDevice { .. }), "{name}");
    }
    for name in ["soft0", "soft1", "soft9999"] {
        assert_eq!(Device::open(name, inline()).unwrap().name(), name);
    }
}

#[test]
fn bad_arguments_are_errors_and_make_nothing() {
    let device = Device::open("soft0", inline()).unwrap();
    let other = Device::open("soft0", inline()).unwrap();
    let domain = device.allocate_domain().unwrap();
    let buffer = HostBuffer::new(1 << 16);
    let page = device.allocate_doorbell_page().unwrap();
    let queue = device.create_completion_queue(buffer.range(), 64).unwrap();
    let foreign_queue = other.create_completion_queue(buffer.range(), 64).unwrap();
    let foreign_page = other.allocate_doorbell_page().unwrap();
    let before = device.counters().live;

    let empty = buffer.slice(0, 0);
    let error = domain
        .register(empty, AccessFlags::ALL, WriteOrdering::Relaxed)
        .unwrap_err();
    assert!(matches!(error, Error::Range { .. }));
    for access in [
        AccessFlags {
            remote_write: true,
            ..AccessFlags::LOCAL_READ
        },
        AccessFlags {
            remote_atomic: true,
            ..AccessFlags::LOCAL_READ
        },
    ] {
        let error = domain
            .register(buffer.range(), access, WriteOrdering::Relaxed)
            .unwrap_err();
        assert!(matches!(error, Error::Access));
    }
    assert!(matches!(
        device.create_completion_queue(buffer.range(), 63),
        Err(Error::Layout { .. })
    ));
    for range in [buffer.slice(0, 64 * 64 - 1), buffer.slice(32, 64 * 64)] {
        let error = device.create_completion_queue(range, 64).unwrap_err();
        assert!(matches!(error, Error::Range { .. }), "{error}");
    }
    assert!(matches!(
        device.create_completion_queue(buffer.range(), 1 << 23),
        Err(Error::Limit { .. })
    ));

    let good = || QueuePairConfig {
        send_ring: buffer.slice(0, 64 * 64),
        send_blocks: 64,
        record: buffer.slice(8192, 8),
        send_completions: &queue,
        receive: None,
        page: &page,
        trigger: None,
    };
    drop(domain.create_queue_pair(good()).unwrap());
    let bad: [(QueuePairConfig<'_>, &str); 8] = [
        (
            QueuePairConfig {
                send_blocks: 63,
                ..good()
            },
            "power of two",
        ),
        (
            QueuePairConfig {
                send_blocks: 1 << 16,
                ..good()
            },
            "possible",
        ),
        (
            QueuePairConfig {
                send_ring: buffer.slice(0, 64 * 63),
                ..good()
            },
            "too short",
        ),
        (
            QueuePairConfig {
                send_ring: buffer.slice(8, 64 * 64),
                ..good()
            },
            "not aligned",
        ),
        (
            QueuePairConfig {
                record: buffer.slice(8192, 4),
                ..good()
            },
            "too short",
        ),
        (
            QueuePairConfig {
                record: buffer.slice(8196, 8),
                ..good()
            },
            "not aligned",
        ),
        (
            QueuePairConfig {
                send_completions: &foreign_queue,
                ..good()
            },
            "another device",
        ),
        (
            QueuePairConfig {
                page: &foreign_page,
                ..good()
            },
            "another device",
        ),
    ];
    for (config, expected) in bad {
        let error = domain.create_queue_pair(config).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let pair = domain.create_queue_pair(good()).unwrap();
    pair.modify(Transition::Init(InitAttributes::ALL)).unwrap();
    let too_many = ReceiveAttributes {
        max_outstanding_reads: 17,
        ..ReceiveAttributes::new(pair.address())
    };
    let error = pair
        .modify(Transition::ReadyToReceive(too_many))
        .unwrap_err();
    assert!(matches!(error, Error::Limit { limit: 16, .. }));
    assert_eq!(pair.status().state, State::Init);
    drop(pair);
    assert_eq!(device.counters().live, before);
}

#[test]
fn the_path_mtu_is_at_most_the_ports() {
    let capabilities = Capabilities {
        mtu: Mtu::Bytes1024,
        ..Capabilities::default()
    };
    let device = Device::open(
        "soft0",
        DeviceConfig {
            capabilities,
            ..inline()
        },
    )
    .unwrap();
    let domain = device.allocate_domain().unwrap();
    let poster = Poster::new(&domain, &Setup::default());
    poster
        .pair
        .modify(Transition::Init(InitAttributes::ALL))
        .unwrap();
    let path = ReceiveAttributes::new(poster.pair.address());
    let error = poster
        .pair
        .modify(Transition::ReadyToReceive(path))
        .unwrap_err();
    assert!(matches!(
        error,
        Error::Limit {
            what: "path MTU",
            asked: 4096,
            limit: 1024
        }
    ));
    let path = ReceiveAttributes {
        mtu: Mtu::Bytes1024,
        ..path
    };
    poster
        .pair
        .modify(Transition::ReadyToReceive(path))
        .unwrap();
}

#[test]
fn objects_are_counted_and_limited() {
    let capabilities = Capabilities {
        max_objects: 3,
        ..Capabilities::default()
    };
    let device = Device::open(
        "soft0",
        DeviceConfig {
            capabilities,
            ..inline()
        },
    )
    .unwrap();
    let domains: Vec<_> = (0..3).map(|_| device.allocate_domain().unwrap()).collect();
    let error = device.allocate_domain().unwrap_err();
    assert!(
        matches!(
            error,
            Error::Limit {
                asked: 4,
                limit: 3,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(device.counters().live.protection_domains, 3);
    drop(domains);
    device.allocate_domain().unwrap();
    assert_eq!(device.counters().live.total(), 0);
}

/// Everything that a rig is made of, dropped in every order of its six parts,
/// with requests under way.
#[test]
fn drop_in_any_order_frees_everything() {
    for order in 0..720usize {
        let mut rig = Rig::new(DeviceConfig::default(), &Setup::default());
        for _ in 0..8 {
            rig.post_write(0, 0, 65536);
        }
        let device = rig.device.clone();
        let Rig {
            device: d,
            domain,
            source,
            target,
            registrations,
            a,
            b,
            ..
        } = rig;
        let mut parts: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(d),
            Box::new(domain),
            Box::new((source, target)),
            Box::new(registrations),
            Box::new(a),
            Box::new(b),
        ];
        let mut rest = order;
        for left in (1..=6).rev() {
            drop(parts.remove(rest % left));
            rest /= left;
        }
        assert_eq!(device.counters().live.total(), 0, "order {order}");
    }
}

/// The last handle may go at any time, also while the engine works.
#[test]
fn a_device_ends_with_its_last_handle() {
    for _ in 0..50 {
        let mut rig = Rig::new(DeviceConfig::default(), &Setup::default());
        for _ in 0..4 {
            rig.post_write(0, 0, LENGTH as u32);
        }
        drop(rig);
    }
}

/// An engine without queue pairs sleeps long, but wakes for its end and for the
/// first queue pair.
#[test]
fn a_sleeping_engine_wakes_for_what_matters() {
    let start = std::time::Instant::now();
    for _ in 0..50 {
        let device = Device::open("soft0", DeviceConfig::default()).unwrap();
        // Long enough for it to fall asleep.
        std::thread::sleep(std::time::Duration::from_millis(5));
        let domain = device.allocate_domain().unwrap();
        let trigger = Some(TriggerMode::PollRecord);
        let setup = Setup {
            trigger,
            ..Setup::default()
        };
        let mut poster = Poster::new(&domain, &setup);
        poster.connect(poster.pair.address(), &setup, Mtu::Bytes4096);
        poster.write(Flags::SIGNALLED, Operation::Nop);
        poster.store_record();
        assert_eq!(poster.wait().failure(), None);
        drop(poster);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(start.elapsed() < std::time::Duration::from_secs(20));
}

#[test]
fn memory_that_is_let_go_is_used_no_more_once_its_key_is_dead() {
    let mut rig = Rig::inline();
    rig.source.write(0, &[7; 64]);
    rig.post_write(0, 0, 64);
    assert_eq!(rig.a.wait().failure(), None);
    rig.registrations.clear();
    rig.target.write(0, &[0; 64]);
    rig.post_write(0, 0, 64);
    assert_eq!(rig.a.wait_failure(), Syndrome::LOCAL_PROTECTION);
    assert_eq!(rig.target.read_u64(0), 0);
}

#[test]
fn an_idle_engine_sleeps() {
    // A name of its own: other tests of this file have engines too.
    let device = Device::open("soft77", DeviceConfig::default()).unwrap();
    let domain = device.allocate_domain().unwrap();
    let poster = Poster::new(&domain, &Setup::default());
    let setup = Setup::default();
    poster.connect(poster.pair.address(), &setup, Mtu::Bytes4096);
    let before = engine_ticks("soft77");
    std::thread::sleep(std::time::Duration::from_secs(2));
    let used = engine_ticks("soft77").saturating_sub(before);
    assert!(used <= 20, "{used} of 200 ticks");
}
