// SPDX-License-Identifier: MIT
//! How a queue is started, and what is noticed when it is not done right.

mod support;

use std::time::Duration;

use mlx5_queue::*;
use mscclpp_softnic::*;
use support::slow_memory::SlowMemory;
use support::*;

const AUDIT: Duration = Duration::from_millis(100);

fn rig(trigger: TriggerMode, engine: EngineMode) -> Rig {
    let checks = Checks {
        audit_interval: AUDIT,
        ..Checks::default()
    };
    let config = DeviceConfig {
        trigger,
        engine,
        checks,
        seed: 3,
        ..DeviceConfig::default()
    };
    Rig::new(config, &Setup::default())
}

/// What is reported while the clock of a manual device passes `audits` audits.
fn after_audits(rig: &Rig, audits: u32) -> Vec<ViolationKind> {
    rig.device.run_at(rig.device.now().after(AUDIT * audits));
    rig.device
        .take_violations()
        .into_iter()
        .map(|violation| violation.kind)
        .collect()
}

#[test]
fn started_by_the_doorbell_it_does_not_wait_for_the_record() {
    let mut rig = rig(TriggerMode::Doorbell, EngineMode::Inline);
    rig.a.write(Flags::SIGNALLED, Operation::Nop);
    rig.a.ring();
    assert_eq!(rig.a.poll().unwrap().failure(), None);
    rig.a.publish();
    assert_eq!(
        rig.a.poll(),
        None,
        "the second doorbell announces nothing new"
    );
}

#[test]
fn started_by_the_record_it_drops_the_early_doorbell() {
    let mut rig = rig(TriggerMode::Record, EngineMode::Inline);
    rig.a.write(Flags::SIGNALLED, Operation::Nop);
    rig.a.ring();
    assert_eq!(rig.a.poll(), None);
    rig.a.store_record();
    rig.device.run();
    assert_eq!(rig.a.poll(), None, "a record alone starts nothing");
    rig.a.ring();
    assert_eq!(rig.a.poll().unwrap().failure(), None);
    let counters = rig.device.counters();
    assert_eq!((counters.doorbells, counters.doorbells_dropped), (2, 1));
}

#[test]
fn started_either_way_it_is_not_to_be_foretold() {
    let mut rig = rig(TriggerMode::Either, EngineMode::Inline);
    let mut early = 0;
    for _ in 0..200 {
        rig.a.write(Flags::SIGNALLED, Operation::Nop);
        rig.a.ring();
        let at_once = rig.a.poll().is_some();
        early += u32::from(at_once);
        rig.a.store_record();
        rig.a.ring();
        assert_eq!(rig.a.poll().is_some(), !at_once);
    }
    assert!((50..150).contains(&early), "{early} of 200");
    assert_eq!(rig.device.take_violations(), []);
}

/// A record that is read late tells less than doorbells that came meanwhile.
#[test]
fn a_record_read_late_does_not_move_the_queue_back() {
    for trigger in [TriggerMode::Either, TriggerMode::Record] {
        for seed in 0..20 {
            let memory = SlowMemory::new(seed);
            let config = DeviceConfig {
                trigger,
                seed,
                engine: EngineMode::Thread,
                ..DeviceConfig::default()
            };
            let mut rig = Rig::within(config, &Setup::default(), &|buffer| memory.range(buffer));
            for _ in 0..10 {
                memory.stall(true);
                for _ in 0..6 {
                    rig.a.write(Flags::SIGNALLED, Operation::Nop);
                    rig.a.publish();
                }
                memory.stall(false);
                for _ in 0..6 {
                    let failure = rig.a.wait().failure();
                    assert_eq!(
                        (failure, rig.device.take_violations()),
                        (None, vec![]),
                        "{trigger:?}"
                    );
                }
            }
            assert_eq!(rig.device.take_violations(), [], "{trigger:?}, seed {seed}");
        }
    }
}

#[test]
fn a_polled_record_needs_no_doorbell() {
    let mut rig = rig(TriggerMode::PollRecord, EngineMode::Thread);
    for _ in 0..300 {
        rig.a.write(Flags::SIGNALLED, Operation::Nop);
        rig.a.store_record();
        assert_eq!(rig.a.wait().failure(), None);
    }
    assert_eq!(rig.device.counters().doorbells, 0);
    let mut rig = self::rig(TriggerMode::PollRecord, EngineMode::Inline);
    rig.a.write(Flags::SIGNALLED, Operation::Nop);
    rig.a.ring();
    assert_eq!(rig.a.poll(), None, "the doorbell tells it nothing");
    rig.a.store_record();
    rig.device.run();
    assert!(rig.a.poll().is_some());
}

#[test]
fn a_record_without_a_doorbell_is_reported_once() {
    let mut rig = rig(TriggerMode::Doorbell, EngineMode::Manual);
    rig.a.write(Flags::SIGNALLED, Operation::Nop);
    rig.a.store_record();
    assert_eq!(after_audits(&rig, 1), []);
    assert_eq!(
        after_audits(&rig, 4),
        [ViolationKind::NoDoorbellAfterRecord]
    );
    assert_eq!(after_audits(&rig, 9), []);
    assert_eq!(rig.a.poll(), None);
}

/// The early doorbell has started the NIC this time. On the day that it is
/// missed, the poster hangs.
#[test]
fn a_last_doorbell_that_never_comes_is_reported_though_all_went_well() {
    let mut rig = rig(TriggerMode::Doorbell, EngineMode::Manual);
    rig.a.write(Flags::SIGNALLED, Operation::Nop);
    rig.a.ring();
    rig.device.run_at(Time::ZERO);
    assert!(rig.a.poll().is_some());
    rig.a.store_record();
    assert_eq!(
        after_audits(&rig, 4),
        [ViolationKind::NoDoorbellAfterRecord]
    );
}

#[test]
fn a_record_that_is_never_written_is_reported_though_all_went_well() {
    let mut rig = rig(TriggerMode::Doorbell, EngineMode::Manual);
    rig.a.write(Flags::SIGNALLED, Operation::Nop);
    rig.a.ring();
    assert_eq!(
        after_audits(&rig, 4),
        [ViolationKind::NoRecordAfterDoorbell]
    );
    assert!(rig.a.poll().is_some());
}

#[test]
fn a_poster_by_the_rules_is_never_reported() {
    for trigger in [
        TriggerMode::Doorbell,
        TriggerMode::Record,
        TriggerMode::Either,
    ] {
        let mut rig = rig(trigger, EngineMode::Manual);
        for round in 0..100u32 {
            rig.a.write(Flags::SIGNALLED, Operation::Nop);
            if round.is_multiple_of(2) {
                rig.a.ring();
                rig.device.run_at(Time::at(AUDIT / 3 * round));
            }
            rig.a.publish();
            rig.device.run_at(Time::at(AUDIT / 3 * (round + 1)));
            assert_eq!(rig.a.wait().failure(), None);
        }
        assert_eq!(rig.device.take_violations(), []);
    }
}

#[test]
fn queues_that_share_a_register_are_told_apart_by_doorbell_calls() {
    let rig = rig(TriggerMode::Doorbell, EngineMode::Manual);
    let page = rig.device.allocate_doorbell_page().unwrap();
    let buffer = HostBuffer::new(1 << 16);
    let entries = HostBuffer::new(1 << 16);
    let queue = rig
        .device
        .create_completion_queue(entries.range(), 64)
        .unwrap();
    let pairs: Vec<QueuePair> = (0..4)
        .map(|i| {
            let config = QueuePairConfig {
                send_ring: buffer.slice(i * 4096, 4096),
                send_blocks: 64,
                record: buffer.slice(32768 + i * 8, 8),
                send_completions: &queue,
                receive: None,
                page: &page,
                trigger: None,
            };
            rig.domain.create_queue_pair(config).unwrap()
        })
        .collect();
    for (i, pair) in pairs.iter().enumerate() {
        pair.modify(Transition::Init(InitAttributes::ALL)).unwrap();
        let receive = ReceiveAttributes::new(pair.address());
        pair.modify(Transition::ReadyToReceive(receive)).unwrap();
        pair.modify(Transition::ReadyToSend(SendAttributes::default()))
            .unwrap();
        let (queue, operation) = (pair.number(), Operation::Nop);
        let request = WorkRequest {
            queue,
            index: 0,
            flags: Flags::SIGNALLED,
            operation,
        };
        let mut slot = [0; 64];
        request.encode(&mut slot).unwrap();
        buffer.write(i * 4096, &slot);
        page.ring(Doorbell::new(queue, QueueIndex::new(1)));
    }
    rig.device.run_at(Time::ZERO);
    assert!(pairs.iter().all(|pair| pair.status().finished == 1));
    // A queue's doorbell on another page is no one's.
    rig.a
        .pair
        .page()
        .ring(Doorbell::new(pairs[0].number(), QueueIndex::new(2)));
    rig.device.run_at(Time::ZERO);
    assert_eq!(pairs[0].status().announced, 1);
}

/// The requests are fetched after the doorbell was seen: what is stored to a
/// slot right before the doorbell is what is executed.
#[test]
fn requests_are_not_fetched_ahead() {
    let mut rig = rig(TriggerMode::Doorbell, EngineMode::Inline);
    for i in 0..64 {
        // Garbage in all slots that are not announced.
        rig.a.ring.write(i * 64, &[0xff; 64]);
    }
    for round in 0..1000u64 {
        rig.a.post(rig.fetch_add(0, round, 0));
        assert_eq!(rig.a.wait().failure(), None);
        let slot = QueueIndex::new(round).slot(rig.a.size) as usize;
        rig.a.ring.write(slot * 64, &[0xff; 64]);
    }
    assert_eq!(rig.device.take_violations(), []);
}

/// A slot that changes between two fetches was still being written.
#[test]
fn a_torn_slot_is_noticed() {
    let memory = SlowMemory::new(1);
    let checks = Checks {
        fetch_twice: true,
        ..Checks::default()
    };
    let config = DeviceConfig { checks, ..inline() };
    let mut rig = Rig::within(config, &Setup::default(), &|buffer| memory.range(buffer));
    rig.post_write(0, 0, 8);
    assert_eq!(rig.a.wait().failure(), None);

    let ring = rig.a.ring.clone();
    let slot = ring.address() + 64;
    memory.after_read(move |address| {
        if address == slot {
            ring.write(64 + 40, &[0x55]);
        }
    });
    rig.post_write(0, 0, 8);
    assert_eq!(rig.a.wait_failure(), Syndrome::LOCAL_QP_OPERATION);
    assert_eq!(
        rig.device.take_violations()[0].kind,
        ViolationKind::TornSlot
    );
}

/// A poster that relies on what an earlier lap left in a slot.
#[test]
fn a_segment_that_was_not_written_again_is_missed_where_slots_are_cleared() {
    for clear_slots in [false, true] {
        let checks = Checks {
            clear_slots,
            ..Checks::default()
        };
        let mut rig = Rig::new(DeviceConfig { checks, ..inline() }, &Setup::default());
        let list = [rig.local(0, 8).encode()];
        let remote = rig.remote(0);
        for _ in 0..64 {
            rig.a.post(write(remote, &list));
            assert_eq!(rig.a.wait().failure(), None);
        }
        // Control and data, but not the remote address.
        let request = WorkRequest {
            queue: rig.a.pair.number(),
            index: 64,
            flags: Flags::SIGNALLED,
            operation: write(remote, &list),
        };
        let mut slot = [0; 64];
        request.encode(&mut slot).unwrap();
        rig.a.ring.write(0, &slot[..16]);
        rig.a.ring.write(32, &slot[32..48]);
        rig.a.head = rig.a.head.advance(1);
        rig.a.publish();
        if clear_slots {
            assert_eq!(rig.a.wait_failure(), Syndrome::REMOTE_ACCESS);
        } else {
            assert_eq!(rig.a.wait().failure(), None);
        }
    }
}
