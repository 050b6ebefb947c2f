// SPDX-License-Identifier: MIT
//! Faults that a test asks for: refused and slow operations, dead queues,
//! memory that cannot be reached or takes its time.

mod support;

use std::time::{Duration, Instant};

use mlx5_queue::*;
use mscclpp_softnic::{Error, *};
use support::slow_memory::SlowMemory;
use support::*;

/// Everything that makes a connection, up to the first error.
fn set_up(device: &Device) -> Result<QueuePair, Error> {
    let domain = device.allocate_domain()?;
    let buffer = HostBuffer::new(1 << 16);
    domain.register(buffer.range(), AccessFlags::ALL, WriteOrdering::Strict)?;
    let page = device.allocate_doorbell_page()?;
    let queue = device.create_completion_queue(buffer.range(), 64)?;
    let pair = domain.create_queue_pair(QueuePairConfig {
        send_ring: buffer.slice(16384, 4096),
        send_blocks: 64,
        record: buffer.slice(32768, 8),
        send_completions: &queue,
        receive: None,
        page: &page,
        trigger: None,
    })?;
    pair.modify(Transition::Init(InitAttributes::ALL))?;
    pair.modify(Transition::ReadyToReceive(ReceiveAttributes::new(
        pair.address(),
    )))?;
    pair.modify(Transition::ReadyToSend(SendAttributes::default()))?;
    Ok(pair)
}

const STEPS: [ControlOperation; 8] = [
    ControlOperation::AllocateDomain,
    ControlOperation::Register,
    ControlOperation::AllocateDoorbellPage,
    ControlOperation::CreateCompletionQueue,
    ControlOperation::CreateQueuePair,
    ControlOperation::Transition(State::Init),
    ControlOperation::Transition(State::ReadyToReceive),
    ControlOperation::Transition(State::ReadyToSend),
];

#[test]
fn each_operation_can_be_refused_and_leaves_nothing() {
    for operation in STEPS {
        let faults = FaultPlan::refuse(operation);
        let device = Device::open("soft0", DeviceConfig { faults, ..inline() }).unwrap();
        let error = set_up(&device).unwrap_err();
        assert!(
            matches!(error, Error::Refused { operation: o } if o == operation),
            "{error}"
        );
        assert_eq!(device.counters().live.total(), 0, "{operation}");
        assert!(set_up(&device).is_ok(), "the plan is used up");
    }
}

#[test]
fn rules_skip_and_count() {
    let operation = ControlOperation::AllocateDomain;
    let rule = FaultRule {
        operation,
        skip: 2,
        count: 3,
        kind: FaultKind::Refuse,
    };
    let device = Device::open("soft0", inline()).unwrap();
    device.set_faults(FaultPlan::default().and(rule));
    let results: Vec<bool> = (0..8).map(|_| device.allocate_domain().is_ok()).collect();
    assert_eq!(results, [true, true, false, false, false, true, true, true]);
}

#[test]
fn a_slow_operation_takes_its_time_and_succeeds() {
    let delay = Duration::from_millis(60);
    let operation = ControlOperation::Transition(State::ReadyToReceive);
    let rule = FaultRule {
        operation,
        skip: 0,
        count: 1,
        kind: FaultKind::Delay(delay),
    };
    let faults = FaultPlan::default().and(rule);
    let device = Device::open("soft0", DeviceConfig { faults, ..inline() }).unwrap();
    let start = Instant::now();
    assert!(set_up(&device).is_ok());
    assert!(start.elapsed() >= delay);
}

#[test]
fn a_dead_queue_comes_up_and_executes_nothing() {
    let faults = FaultPlan {
        never_execute: true,
        ..FaultPlan::default()
    };
    let mut rig = Rig::new(DeviceConfig { faults, ..inline() }, &Setup::default());
    rig.post_write(0, 0, 8);
    rig.device.run();
    assert_eq!(rig.a.poll(), None);
    let status = rig.a.pair.status();
    assert_eq!(
        (status.state, status.announced, status.failure),
        (State::ReadyToSend, 0, None)
    );
    assert_eq!(rig.device.counters().doorbells, 1);
}

/// Queues and data in a memory that completes accesses late and in any order.
#[test]
fn everything_works_in_a_memory_that_takes_its_time() {
    for seed in 0..20 {
        let memory = SlowMemory::new(seed);
        let setup = Setup {
            receive_queue: true,
            ..Setup::default()
        };
        let reach = |buffer: &HostBuffer| memory.range(buffer);
        let mut rig = Rig::within(DeviceConfig { seed, ..inline() }, &setup, &reach);
        let data: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
        rig.source.write(0, &data);
        for i in 0..10usize {
            rig.post_write(i * 10_000, i * 10_000, 10_000);
            rig.a.post(rig.fetch_add(900_000, 1, 900_000));
        }
        let back = [rig.local(500_000, 100_000).encode()];
        let scatter = DataSegments::new(&back);
        rig.a.post(Operation::Read {
            remote: rig.remote(0),
            scatter,
        });
        let piece = DataSegment::new(rig.target.address() + 800_000, rig.target_key, 100).unwrap();
        rig.b.post_receive(&[piece]);
        rig.a.post(Operation::Send {
            payload: Payload::Inline(b"hello"),
            immediate: None,
        });
        for i in 0..22 {
            let completion = rig.a.wait();
            assert_eq!((completion.failure(), completion.wqe_counter), (None, i));
        }
        let mut seen = vec![0; 100_000];
        rig.source.read(500_000, &mut seen);
        assert!(seen == data);
        rig.target.read(800_000, &mut seen[..5]);
        assert_eq!(&seen[..5], b"hello");
        assert_eq!(rig.target.read_u64(900_000), 10);
        assert!(rig.b.poll_receive().is_some());
        assert!(memory.most_waiting() > 1, "accesses overlap");
    }
}

/// Queues in host memory, data in another memory, and the other way round:
/// copies between the two.
#[test]
fn copies_between_memories_go_both_ways() {
    for swap in [false, true] {
        let memory = SlowMemory::new(4);
        let mut rig = Rig::inline();
        let (near, far) = (HostBuffer::new(4096), HostBuffer::new(4096));
        let ranges = if swap {
            [memory.range(&near), far.range()]
        } else {
            [near.range(), memory.range(&far)]
        };
        let [from, to] = ranges
            .map(|range| {
                rig.domain
                    .register(range, AccessFlags::ALL, WriteOrdering::Relaxed)
            })
            .map(Result::unwrap);
        near.write(0, b"there and back");
        let list = [DataSegment::new(near.address(), from.key(), 14)
            .unwrap()
            .encode()];
        let remote = RemoteAddress {
            address: far.address() + 1,
            key: to.key(),
        };
        rig.a.post(write(remote, &list));
        let list = [DataSegment::new(near.address() + 100, from.key(), 14)
            .unwrap()
            .encode()];
        let scatter = DataSegments::new(&list);
        rig.a.post(Operation::Read { remote, scatter });
        assert_eq!(
            (rig.a.wait().failure(), rig.a.wait().failure()),
            (None, None)
        );
        let mut seen = [0; 14];
        near.read(100, &mut seen);
        assert_eq!(&seen, b"there and back");
    }
}

#[test]
fn memory_that_cannot_be_reached_fails_the_request() {
    // 0: the send queue; 1: the source; 2: the target of a write; 3: of an
    // atomic; 4: the place of a result.
    let expected = [
        Syndrome::LOCAL_PROTECTION,
        Syndrome::REMOTE_OPERATION,
        Syndrome::REMOTE_OPERATION,
        Syndrome::REMOTE_OPERATION,
        Syndrome::LOCAL_PROTECTION,
    ];
    for (broken, syndrome) in expected.into_iter().enumerate() {
        let memory = SlowMemory::new(1);
        let mut rig = Rig::within(inline(), &Setup::default(), &|buffer| memory.range(buffer));
        match broken {
            0 => memory.break_range(&rig.a.ring),
            1 | 2 => memory.break_range(&rig.target),
            3 => memory.break_range(&rig.target),
            _ => memory.break_range(&rig.source),
        }
        match broken {
            0..=2 => rig.post_write(0, 0, 64),
            _ => rig.a.post(rig.fetch_add(0, 1, 0)),
        };
        assert_eq!(rig.a.wait_failure(), syndrome, "{broken}");
        let wrong = broken > 0 && rig.target.read_u64(0) != u64::from(broken == 4);
        assert!(!wrong, "{broken}");
    }
}

/// Memory that is let go while the NIC copies stays until it has finished.
#[test]
fn owners_outlive_the_accesses_that_had_begun() {
    let memory = SlowMemory::new(9);
    let buffer = HostBuffer::new(4096);
    let owners: Vec<_> = (0..2)
        .map(|_| std::sync::Arc::new(buffer.clone()))
        .collect();
    let mut rig = Rig::new(manual(), &Setup::default());
    let device = rig.device.clone();
    let registrations: Vec<Registration> = owners
        .iter()
        .map(|owner| {
            // SAFETY: the owner keeps the buffer.
            let range =
                unsafe { MemoryRange::new(memory.clone(), buffer.address(), 4096, owner.clone()) };
            rig.domain
                .register(range, AccessFlags::ALL, WriteOrdering::Relaxed)
                .unwrap()
        })
        .collect();
    let alive = || {
        owners
            .iter()
            .all(|owner| std::sync::Arc::strong_count(owner) > 1)
    };
    memory.stall(true);
    let from = DataSegment::new(buffer.address(), registrations[0].key(), 64).unwrap();
    let to = RemoteAddress {
        address: buffer.address() + 64,
        key: registrations[1].key(),
    };
    rig.a.post(write(to, &[from.encode()]));
    device.run_at(Time::ZERO);
    // The copy has begun. Every handle goes.
    drop((registrations, rig));
    assert_eq!(device.counters().live.total(), 0);
    device.run_at(Time::ZERO);
    assert!(alive(), "let go while a copy was under way");
    memory.stall(false);
    device.run_at(Time::ZERO);
    let counts = owners.iter().map(std::sync::Arc::strong_count);
    assert!(counts.eq([1, 1]), "kept for ever");
}
