// SPDX-License-Identifier: MIT
//! Each thing that is wrong with a request gets its syndrome, and nothing
//! lands.

mod support;

use mlx5_queue::*;
use mscclpp_softnic::*;
use support::*;

/// Posts `operation` and a NOP behind it: the first fails with `syndrome`, the
/// second is flushed, and the target is untouched.
fn refused(rig: &mut Rig, operation: Operation<'_>, syndrome: Syndrome) {
    let opcode = operation.opcode();
    rig.a.write(Flags::UNSIGNALLED, operation);
    rig.a.write(Flags::UNSIGNALLED, Operation::Nop);
    rig.a.publish();
    let completion = rig.a.wait();
    assert_eq!(completion.wqe_counter, 0);
    let Entry::RequesterError {
        opcode: seen,
        failure,
    } = completion.entry
    else {
        panic!("{completion:?}")
    };
    assert_eq!((seen, failure.syndrome), (opcode as u8, syndrome));
    assert_eq!(rig.a.wait_failure(), Syndrome::FLUSHED);
    let status = rig.a.pair.status();
    assert_eq!(
        (status.state, status.failure),
        (State::Error, Some(syndrome))
    );
    untouched(rig);
    let counters = rig.device.counters();
    assert_eq!(
        (
            counters.errors_of(syndrome),
            counters.errors_of(Syndrome::FLUSHED)
        ),
        (1, 1)
    );
    assert_eq!(counters.completions, 0);
}

fn untouched(rig: &Rig) {
    let mut bytes = vec![0; LENGTH];
    rig.target.read(0, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 0), "something landed");
}

/// A rig with the source full of ones and other registrations of both buffers.
fn with(config: DeviceConfig, setup: &Setup) -> Rig {
    let rig = Rig::new(config, setup);
    rig.source.write(0, &vec![1; LENGTH]);
    rig
}

fn register(rig: &mut Rig, buffer: &HostBuffer, access: AccessFlags) -> MemoryKey {
    let registration = rig
        .domain
        .register(buffer.range(), access, WriteOrdering::Relaxed)
        .unwrap();
    let key = registration.key();
    rig.registrations.push(registration);
    key
}

fn segment(buffer: &HostBuffer, offset: i64, key: MemoryKey, length: u32) -> DataSegment {
    DataSegment::new(buffer.address().wrapping_add_signed(offset), key, length).unwrap()
}

#[test]
fn local_keys_and_bounds() {
    let make: &[fn(&mut Rig) -> DataSegment] = &[
        |rig| segment(&rig.source, 0, MemoryKey::new(0), 8),
        |rig| segment(&rig.source, 0, MemoryKey::new(rig.source_key.get() ^ 1), 8),
        |rig| segment(&rig.source, -1, rig.source_key, 8),
        |rig| segment(&rig.source, LENGTH as i64 - 7, rig.source_key, 8),
        // What a poster gets that writes a count of 0: 2 GiB.
        |rig| segment(&rig.source, 0, rig.source_key, DataSegment::MAX_LENGTH >> 1),
        |rig| {
            let other = rig.device.allocate_domain().unwrap();
            let range = rig.source.range();
            let foreign = other
                .register(range, AccessFlags::ALL, WriteOrdering::Relaxed)
                .unwrap();
            rig.registrations.push(foreign.clone());
            segment(&rig.source, 0, foreign.key(), 8)
        },
    ];
    for make in make {
        let mut rig = with(inline(), &Setup::default());
        let list = [make(&mut rig).encode()];
        let remote = rig.remote(0);
        refused(&mut rig, write(remote, &list), Syndrome::LOCAL_PROTECTION);
    }
}

#[test]
fn results_need_local_write_permission() {
    let mut rig = with(inline(), &Setup::default());
    let source = rig.source.clone();
    let key = register(&mut rig, &source, AccessFlags::LOCAL_READ);
    let result = segment(&source, 0, key, 8);
    let operation = Operation::FetchAdd {
        remote: rig.remote(0),
        add: 1,
        result,
    };
    refused(&mut rig, operation, Syndrome::LOCAL_PROTECTION);
    assert_eq!(source.read_u64(0), 0x0101_0101_0101_0101);

    let mut rig = with(inline(), &Setup::default());
    let source = rig.source.clone();
    let key = register(&mut rig, &source, AccessFlags::LOCAL_READ);
    let list = [segment(&source, 0, key, 8).encode()];
    let operation = Operation::Read {
        remote: rig.remote(0),
        scatter: DataSegments::new(&list),
    };
    refused(&mut rig, operation, Syndrome::LOCAL_PROTECTION);
}

#[test]
fn a_dump_checks_its_source() {
    let mut rig = with(inline(), &Setup::default());
    let source = segment(&rig.source, LENGTH as i64, rig.source_key, 8);
    refused(
        &mut rig,
        Operation::Dump { source },
        Syndrome::LOCAL_PROTECTION,
    );
}

#[test]
fn remote_keys_bounds_and_permissions() {
    let make: &[fn(&mut Rig) -> RemoteAddress] = &[
        |rig| RemoteAddress {
            key: MemoryKey::new(0),
            ..rig.remote(0)
        },
        |rig| RemoteAddress {
            key: MemoryKey::new(rig.target_key.get() ^ 1),
            ..rig.remote(0)
        },
        |rig| RemoteAddress {
            address: rig.target.address() - 1,
            key: rig.target_key,
        },
        |rig| rig.remote(LENGTH - 7),
        |rig| RemoteAddress {
            address: u64::MAX - 3,
            key: rig.target_key,
        },
        |rig| {
            let target = rig.target.clone();
            let access = AccessFlags {
                remote_write: false,
                ..AccessFlags::ALL
            };
            RemoteAddress {
                key: register(rig, &target, access),
                ..rig.remote(0)
            }
        },
        |rig| {
            let target = rig.target.clone();
            let key = register(rig, &target, AccessFlags::ALL);
            rig.registrations.pop();
            RemoteAddress {
                key,
                ..rig.remote(0)
            }
        },
    ];
    for make in make {
        let mut rig = with(inline(), &Setup::default());
        let remote = make(&mut rig);
        let list = [rig.local(0, 8).encode()];
        refused(&mut rig, write(remote, &list), Syndrome::REMOTE_ACCESS);
        assert_eq!(rig.b.pair.status().state, State::Error, "the responder too");
    }
}

#[test]
fn a_long_write_beyond_the_end_lands_nothing() {
    let mut rig = with(inline(), &Setup::default());
    let list = [rig.local(0, 600_000).encode()];
    let remote = rig.remote(LENGTH - 599_999);
    refused(&mut rig, write(remote, &list), Syndrome::REMOTE_ACCESS);
}

#[test]
fn reads_and_atomics_need_their_own_permissions() {
    let mut rig = with(inline(), &Setup::default());
    let target = rig.target.clone();
    let access = AccessFlags {
        remote_read: false,
        ..AccessFlags::ALL
    };
    let remote = RemoteAddress {
        key: register(&mut rig, &target, access),
        ..rig.remote(0)
    };
    let list = [rig.local(0, 8).encode()];
    let scatter = DataSegments::new(&list);
    refused(
        &mut rig,
        Operation::Read { remote, scatter },
        Syndrome::REMOTE_ACCESS,
    );

    let mut rig = with(inline(), &Setup::default());
    let target = rig.target.clone();
    let access = AccessFlags {
        remote_atomic: false,
        ..AccessFlags::ALL
    };
    let remote = RemoteAddress {
        key: register(&mut rig, &target, access),
        ..rig.remote(0)
    };
    let result = rig.local(0, 8);
    refused(
        &mut rig,
        Operation::FetchAdd {
            remote,
            add: 1,
            result,
        },
        Syndrome::REMOTE_ACCESS,
    );
}

#[test]
fn operations_that_the_peers_queue_does_not_enable() {
    for disabled in 0..3 {
        let rights = InitAttributes {
            remote_write: disabled != 0,
            remote_read: disabled != 1,
            remote_atomic: disabled != 2,
        };
        let mut rig = with(
            inline(),
            &Setup {
                rights,
                ..Setup::default()
            },
        );
        let list = [rig.local(0, 8).encode()];
        let remote = rig.remote(0);
        let operation = match disabled {
            0 => write(remote, &list),
            1 => Operation::Read {
                remote,
                scatter: DataSegments::new(&list),
            },
            _ => rig.fetch_add(0, 1, 0),
        };
        refused(&mut rig, operation, Syndrome::REMOTE_INVALID_REQUEST);
    }
}

#[test]
fn a_misaligned_atomic() {
    for offset in 1..8 {
        let mut rig = with(inline(), &Setup::default());
        let operation = rig.fetch_add(offset, 1, 0);
        refused(&mut rig, operation, Syndrome::REMOTE_INVALID_REQUEST);
    }
}

#[test]
fn an_atomic_result_that_is_not_eight_bytes() {
    for length in [4, 16] {
        let mut rig = with(inline(), &Setup::default());
        let result = rig.local(0, length);
        let operation = Operation::FetchAdd {
            remote: rig.remote(0),
            add: 1,
            result,
        };
        refused(&mut rig, operation, Syndrome::LOCAL_LENGTH);
    }
}

#[test]
fn a_message_longer_than_the_device_takes() {
    let capabilities = Capabilities {
        max_message: 4096,
        ..Capabilities::default()
    };
    let mut rig = with(
        DeviceConfig {
            capabilities,
            ..inline()
        },
        &Setup::default(),
    );
    let list = [rig.local(0, 4097).encode()];
    let remote = rig.remote(0);
    refused(&mut rig, write(remote, &list), Syndrome::LOCAL_LENGTH);
}

#[test]
fn atomics_on_a_device_without_them() {
    let capabilities = Capabilities {
        atomics: false,
        ..Capabilities::default()
    };
    let mut rig = with(
        DeviceConfig {
            capabilities,
            ..inline()
        },
        &Setup::default(),
    );
    let operation = rig.fetch_add(0, 1, 0);
    refused(&mut rig, operation, Syndrome::LOCAL_QP_OPERATION);
    let opcode = Opcode::FetchAdd;
    assert_eq!(
        rig.device.take_violations()[0].kind,
        ViolationKind::Unsupported { opcode }
    );
}

#[test]
fn more_outstanding_atomics_than_the_peer_allows() {
    let setup = Setup {
        reads: (4, 2),
        ..Setup::default()
    };
    let landing = Landing::Scattered {
        linger: std::time::Duration::from_millis(1),
    };
    let mut rig = with(
        DeviceConfig {
            landing,
            ..manual()
        },
        &setup,
    );
    for _ in 0..4 {
        rig.a.write(Flags::SIGNALLED, rig.fetch_add(0, 1, 0));
    }
    rig.a.publish();
    rig.device
        .run_at(Time::at(std::time::Duration::from_secs(1)));
    let failures: Vec<_> = (0..4)
        .map(|_| rig.a.wait().failure().map(|f| f.syndrome))
        .collect();
    let (refused, flushed) = (Syndrome::REMOTE_INVALID_REQUEST, Syndrome::FLUSHED);
    assert_eq!(failures, [None, None, Some(refused), Some(flushed)]);
    assert_eq!(rig.target.read_u64(0), 2);
}

#[test]
fn the_requester_keeps_to_its_own_limit_of_outstanding_atomics() {
    let setup = Setup {
        reads: (2, 2),
        ..Setup::default()
    };
    let landing = Landing::Scattered {
        linger: std::time::Duration::from_millis(1),
    };
    let mut rig = with(
        DeviceConfig {
            landing,
            ..manual()
        },
        &setup,
    );
    for _ in 0..20 {
        rig.a.write(Flags::SIGNALLED, rig.fetch_add(0, 1, 0));
    }
    rig.a.publish();
    rig.device
        .run_at(Time::at(std::time::Duration::from_secs(1)));
    for _ in 0..20 {
        assert_eq!(rig.a.wait().failure(), None);
    }
    assert_eq!(rig.target.read_u64(0), 20);
}

#[test]
fn peers_that_disagree_about_the_mtu_fail_on_large_packets_only() {
    let setup = Setup {
        mtu: (Mtu::Bytes4096, Mtu::Bytes1024),
        ..Setup::default()
    };
    let mut rig = Rig::new(inline(), &setup);
    rig.post_write(0, 0, 1024);
    assert_eq!(rig.a.wait().failure(), None);
    rig.post_write(0, 0, 1025);
    assert_eq!(rig.a.wait_failure(), Syndrome::REMOTE_INVALID_REQUEST);
}

/// Slots that were not written for their turn, by what gives them away.
#[test]
fn slots_that_are_not_the_next_request() {
    type Damage = fn(&mut Rig, &mut [u8; 64]);
    type Expected = fn(ViolationKind) -> bool;
    let damages: [(Damage, Expected); 8] = [
        (
            |_, slot| slot[2] ^= 1,
            |kind| kind == ViolationKind::StaleSlot { found: 1 },
        ),
        (
            |_, slot| slot[6] ^= 1,
            |kind| matches!(kind, ViolationKind::ForeignSlot { .. }),
        ),
        (
            |_, slot| slot.fill(0),
            |kind| matches!(kind, ViolationKind::ForeignSlot { .. }),
        ),
        (
            |_, slot| slot[3] = 0x25,
            |kind| matches!(kind, ViolationKind::Malformed { .. }),
        ),
        (
            |_, slot| slot[0] = 1,
            |kind| matches!(kind, ViolationKind::Malformed { .. }),
        ),
        (
            |_, slot| slot[7] = 1,
            |kind| matches!(kind, ViolationKind::Malformed { .. }),
        ),
        // More blocks than were announced.
        (
            |_, slot| slot[7] = 63,
            |kind| matches!(kind, ViolationKind::Malformed { .. }),
        ),
        (
            |_, slot| (slot[3], slot[7]) = (0x0f, 2),
            |kind| {
                kind == ViolationKind::Unsupported {
                    opcode: Opcode::Wait,
                }
            },
        ),
    ];
    for (i, (damage, expected)) in damages.into_iter().enumerate() {
        let mut rig = with(inline(), &Setup::default());
        let list = [rig.local(0, 8).encode()];
        let remote = rig.remote(0);
        rig.a.write(Flags::SIGNALLED, write(remote, &list));
        rig.a.write(Flags::SIGNALLED, Operation::Nop);
        let mut slot = [0; 64];
        rig.a.ring.read(0, &mut slot);
        damage(&mut rig, &mut slot);
        rig.a.ring.write(0, &slot);
        rig.a.publish();
        assert_eq!(
            rig.a.wait_failure(),
            Syndrome::LOCAL_QP_OPERATION,
            "damage {i}"
        );
        assert_eq!(rig.a.wait_failure(), Syndrome::FLUSHED);
        let violations = rig.device.take_violations();
        assert!(
            violations.len() == 1 && expected(violations[0].kind),
            "{i}: {violations:?}"
        );
        assert_eq!(violations[0].index, QueueIndex::ZERO);
        untouched(&rig);
    }
}

#[test]
fn the_slot_of_an_earlier_lap_is_stale() {
    let mut rig = Rig::inline();
    for _ in 0..64 {
        rig.a.post(Operation::Nop);
        rig.a.wait();
    }
    // The poster forgets to write and only announces.
    rig.a.head = rig.a.head.advance(1);
    rig.a.publish();
    assert_eq!(rig.a.wait_failure(), Syndrome::LOCAL_QP_OPERATION);
    let kind = rig.device.take_violations()[0].kind;
    assert_eq!(kind, ViolationKind::StaleSlot { found: 0 });
}

#[test]
fn announcements_that_go_back_or_too_far() {
    let mut rig = Rig::inline();
    for _ in 0..3 {
        rig.a.post(Operation::Nop);
        rig.a.wait();
    }
    rig.a.head = QueueIndex::new(2);
    rig.a.publish();
    assert_eq!(rig.a.wait_failure(), Syndrome::LOCAL_QP_OPERATION);
    let kind = rig.device.take_violations()[0].kind;
    assert_eq!(kind, ViolationKind::MovedBack { announced: 2 });

    // One more than the queue has room for, as without a credit check.
    let mut rig = Rig::new(manual(), &Setup::default());
    for _ in 0..65 {
        rig.a.write(Flags::SIGNALLED, Operation::Nop);
    }
    rig.a.publish();
    rig.device.run_at(Time::ZERO);
    assert_eq!(rig.a.wait_failure(), Syndrome::LOCAL_QP_OPERATION);
    let kind = rig.device.take_violations()[0].kind;
    assert_eq!(kind, ViolationKind::TooFar { announced: 65 });
}

/// A slot is free when a completion says so, not when its request is done.
#[test]
fn slots_that_no_completion_has_covered_are_not_free() {
    let mut rig = Rig::inline();
    for _ in 0..64 {
        rig.a.write(Flags::UNSIGNALLED, Operation::Nop);
    }
    rig.a.publish();
    assert_eq!(rig.a.pair.status().finished, 64);
    assert_eq!(rig.a.poll(), None);
    rig.a.post(Operation::Nop);
    assert_eq!(rig.a.wait_failure(), Syndrome::LOCAL_QP_OPERATION);
    let kind = rig.device.take_violations()[0].kind;
    assert_eq!(kind, ViolationKind::TooFar { announced: 65 });
}

#[test]
fn unsignalled_requests_fail_and_are_flushed_with_completions() {
    let mut rig = Rig::inline();
    let bad = RemoteAddress {
        key: MemoryKey::new(0),
        ..rig.remote(0)
    };
    let list = [rig.local(0, 8).encode()];
    let good = rig.remote(0);
    for i in 0..10 {
        rig.a.write(
            Flags::UNSIGNALLED,
            write(if i == 4 { bad } else { good }, &list),
        );
    }
    rig.a.publish();
    for i in 4..10u16 {
        let completion = rig.a.wait();
        assert_eq!(completion.wqe_counter, i);
        let expected = if i == 4 {
            Syndrome::REMOTE_ACCESS
        } else {
            Syndrome::FLUSHED
        };
        assert_eq!(
            completion.failure().map(|failure| failure.syndrome),
            Some(expected)
        );
    }
    assert_eq!(rig.a.poll(), None);
    // What is posted to a queue in error is flushed too.
    rig.a.write(Flags::UNSIGNALLED, write(good, &list));
    rig.a.publish();
    assert_eq!(rig.a.wait().wqe_counter, 10);
}

#[test]
fn a_queue_set_to_error_flushes_what_is_under_way() {
    let mut rig = Rig::new(manual(), &Setup::default());
    rig.device.set_link_up(false);
    for _ in 0..64 {
        let list = [rig.local(0, 8).encode()];
        let remote = rig.remote(0);
        rig.a.write(Flags::UNSIGNALLED, write(remote, &list));
    }
    rig.a.publish();
    rig.device.run_at(Time::ZERO);
    rig.a.pair.modify(Transition::Error).unwrap();
    rig.device.run_at(Time::ZERO);
    for i in 0..64 {
        let completion = rig.a.wait();
        assert_eq!(completion.wqe_counter, i);
        assert_eq!(completion.failure().unwrap().syndrome, Syndrome::FLUSHED);
    }
}
