// SPDX-License-Identifier: MIT
//! What a device reports of itself: once, to whoever waits or watches.

mod support;

use std::time::{Duration, Instant};

use mlx5_queue::*;
use mscclpp_softnic::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use support::*;

const PATIENCE: Duration = Duration::from_secs(10);

/// What an event says of a queue pair that failed.
#[derive(Debug, PartialEq)]
struct Failed {
    queue: QueueNumber,
    cause: FailureCause,
    syndrome: Option<Syndrome>,
    index: u64,
    opcode: Option<Opcode>,
}

fn failed(event: Option<Event>) -> Failed {
    let Some(Event::QueuePairFailed {
        queue,
        cause,
        syndrome,
        index,
        opcode,
        ..
    }) = event
    else {
        panic!("{event:?}")
    };
    Failed {
        queue,
        cause,
        syndrome,
        index,
        opcode,
    }
}

fn none_is_left(device: &Device) {
    assert_eq!(device.next_event(Duration::ZERO), None);
    assert!(!is_readable(device, Duration::ZERO));
}

fn is_readable(device: &Device, within: Duration) -> bool {
    let fd = device.event_fd();
    let mut watched = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = Timespec {
        tv_sec: within.as_secs() as i64,
        tv_nsec: within.subsec_nanos().into(),
    };
    poll(&mut watched, Some(&timeout)).unwrap() == 1
}

#[test]
fn a_request_that_is_refused_fails_both_ends_once() {
    let mut rig = Rig::inline();
    for _ in 0..3 {
        rig.post_write(0, 0, 8);
        assert_eq!(rig.a.wait().failure(), None);
    }
    none_is_left(&rig.device);
    // One past the end of what may be reached, and two that are flushed.
    rig.post_write(0, LENGTH - 4, 8);
    rig.post_write(0, 0, 8);
    rig.post_write(0, 0, 8);
    assert_eq!(rig.a.wait_failure(), Syndrome::REMOTE_ACCESS);
    assert_eq!(rig.a.wait_failure(), Syndrome::FLUSHED);
    let mut seen = [0, 1].map(|_| failed(rig.device.next_event(Duration::ZERO)));
    seen.sort_by_key(|failed| failed.queue);
    let syndrome = Some(Syndrome::REMOTE_ACCESS);
    let requester = Failed {
        queue: rig.a.pair.number(),
        cause: FailureCause::Requester,
        syndrome,
        index: 3,
        opcode: Some(Opcode::Write),
    };
    let responder = Failed {
        queue: rig.b.pair.number(),
        cause: FailureCause::Responder,
        syndrome,
        index: 0,
        opcode: None,
    };
    assert_eq!(seen, [requester, responder]);
    for poster in [&rig.a, &rig.b] {
        assert_eq!(poster.pair.status().state, State::Error);
    }
    none_is_left(&rig.device);
}

#[test]
fn each_way_to_fail_is_reported_with_its_syndrome() {
    let local = |rig: &mut Rig| {
        let stale = DataSegment::new(rig.source.address(), MemoryKey::new(0xdead), 8).unwrap();
        rig.a.post(write(rig.remote(0), &[stale.encode()]));
    };
    let misaligned = |rig: &mut Rig| {
        rig.a.post(rig.fetch_add(4, 1, 0));
    };
    let stale_slot = |rig: &mut Rig| {
        rig.a.head = rig.a.head.advance(1);
        rig.a.publish();
    };
    let too_far = |rig: &mut Rig| {
        rig.a.head = rig.a.head.advance(1000);
        rig.a.ring();
    };
    type Way<'a> = (&'a dyn Fn(&mut Rig), Syndrome, Option<Opcode>);
    let ways: [Way<'_>; 4] = [
        (&local, Syndrome::LOCAL_PROTECTION, Some(Opcode::Write)),
        (
            &misaligned,
            Syndrome::REMOTE_INVALID_REQUEST,
            Some(Opcode::FetchAdd),
        ),
        // The slot is all zeroes, which is a NOP for another queue.
        (&stale_slot, Syndrome::LOCAL_QP_OPERATION, Some(Opcode::Nop)),
        (&too_far, Syndrome::LOCAL_QP_OPERATION, None),
    ];
    for (fail, syndrome, opcode) in ways {
        let mut rig = Rig::inline();
        fail(&mut rig);
        let event = failed(rig.device.next_event(Duration::ZERO));
        let expected = Failed {
            queue: rig.a.pair.number(),
            cause: FailureCause::Requester,
            syndrome: Some(syndrome),
            index: 0,
            opcode,
        };
        let event = if event.cause == FailureCause::Responder {
            assert_eq!(event.syndrome, Some(syndrome));
            failed(rig.device.next_event(Duration::ZERO))
        } else {
            event
        };
        assert_eq!(event, expected);
        none_is_left(&rig.device);
    }
}

#[test]
fn the_owners_step_is_reported_once_a_life() {
    for config in [inline(), manual(), DeviceConfig::default()] {
        let rig = Rig::new(config, &Setup::default());
        for _ in 0..2 {
            rig.a.pair.modify(Transition::Error).unwrap();
            rig.a.pair.modify(Transition::Error).unwrap();
            let event = failed(rig.device.next_event(Duration::ZERO));
            assert_eq!(event.queue, rig.a.pair.number());
            assert_eq!(
                (event.cause, event.syndrome, event.opcode),
                (FailureCause::Owner, None, None)
            );
            none_is_left(&rig.device);
            rig.a.pair.modify(Transition::Reset).unwrap();
        }
        none_is_left(&rig.device);
        // Nor is the end of a queue pair that had no failure.
        let device = rig.device.clone();
        drop(rig);
        none_is_left(&device);
    }
}

#[test]
fn the_descriptor_is_readable_as_long_as_something_waits() {
    let device = Device::open("soft0", inline()).unwrap();
    let domain = device.allocate_domain().unwrap();
    let posters = [(); 3].map(|()| Poster::new(&domain, &Setup::default()));
    assert!(!is_readable(&device, Duration::ZERO));
    for round in 0..3 {
        for poster in &posters {
            poster.pair.modify(Transition::Error).unwrap();
            assert!(is_readable(&device, Duration::ZERO), "round {round}");
        }
        for poster in &posters {
            assert!(is_readable(&device, Duration::ZERO));
            let event = failed(device.next_event(Duration::ZERO));
            assert_eq!(event.queue, poster.pair.number(), "in order");
            poster.pair.modify(Transition::Reset).unwrap();
        }
        none_is_left(&device);
    }
}

#[test]
fn who_waits_is_woken_by_the_engine() {
    let mut rig = Rig::new(DeviceConfig::default(), &Setup::default());
    let start = Instant::now();
    assert_eq!(rig.device.next_event(Duration::from_millis(20)), None);
    assert!(start.elapsed() >= Duration::from_millis(20));
    // One by the call, one by the descriptor; each takes one of the two.
    let seen: Vec<QueueNumber> = std::thread::scope(|scope| {
        let device = &rig.device;
        let by_call = scope.spawn(|| failed(device.next_event(PATIENCE)).queue);
        let by_descriptor = scope.spawn(|| {
            wait_for("an event", || {
                assert!(is_readable(device, PATIENCE));
                device.next_event(Duration::ZERO)
            })
        });
        let list = [rig.source.address()].map(|address| {
            DataSegment::new(address, MemoryKey::new(1), 8)
                .unwrap()
                .encode()
        });
        let remote = RemoteAddress {
            address: 0,
            key: rig.target_key,
        };
        // Fails at `a`; `b` is failed by its owner.
        rig.a.post(write(remote, &list));
        rig.b.pair.modify(Transition::Error).unwrap();
        let by_descriptor = failed(Some(by_descriptor.join().unwrap())).queue;
        vec![by_call.join().unwrap(), by_descriptor]
    });
    for poster in [&rig.a, &rig.b] {
        assert!(seen.contains(&poster.pair.number()));
    }
    none_is_left(&rig.device);
}

#[test]
fn what_nobody_asks_for_is_counted_and_not_kept_without_bound() {
    let device = Device::open("soft0", manual()).unwrap();
    let domain = device.allocate_domain().unwrap();
    let poster = Poster::new(&domain, &Setup::default());
    for round in 0..2 {
        for _ in 0..5000 {
            poster.pair.modify(Transition::Error).unwrap();
            poster.pair.modify(Transition::Reset).unwrap();
        }
        for _ in 0..4096 {
            failed(device.next_event(Duration::ZERO));
        }
        assert!(is_readable(&device, Duration::ZERO));
        let event = device.next_event(Duration::ZERO);
        assert!(
            matches!(event, Some(Event::Overflow { lost: 904, .. })),
            "round {round}: {event:?}"
        );
        none_is_left(&device);
    }
}

#[test]
fn a_timeout_without_end_does_not_overflow() {
    let device = Device::open("soft0", DeviceConfig::default()).unwrap();
    let domain = device.allocate_domain().unwrap();
    let poster = Poster::new(&domain, &Setup::default());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| device.next_event(Duration::MAX));
        poster.pair.modify(Transition::Error).unwrap();
        assert_eq!(failed(waiter.join().unwrap()).queue, poster.pair.number());
    });
}
