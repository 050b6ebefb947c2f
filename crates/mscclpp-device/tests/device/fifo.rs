// SPDX-License-Identifier: MIT
//! The FIFO between device threads and a consumer in Rust.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mscclpp_device::abi::{ProxyTrigger, Status};
use mscclpp_device::executor::memory::{Access, Order, Scope};
use mscclpp_device::executor::{ExecutorError, HostKernel, LaunchDims, Trace};

use crate::support::{
    Cells, DEADLINE, Kernels, Outcome, TestFifo, ensure, equal, seeds, weak_observed,
};

const LOW: u64 = !ProxyTrigger::COMMIT_BIT;

#[derive(Clone, Copy)]
#[repr(C)]
struct Push {
    fifo: mscclpp_device::abi::FifoDeviceHandle,
    count: u64,
    first: u64,
    complement: u64,
    sync_every: u64,
    budget: i64,
    payload: u64,
    pushed: u64,
    status: u64,
}

fn push_args(fifo: &TestFifo, count: u64, pushed: Cells, status: Cells) -> Push {
    Push {
        fifo: fifo.handle(),
        count,
        first: 0,
        complement: 0,
        sync_every: 0,
        budget: -1,
        payload: 0,
        pushed: pushed.address(),
        status: status.address(),
    }
}

const ONE: LaunchDims = LaunchDims { grid: 1, block: 1 };

/// Runs producers against a consumer on this thread's side; returns what was consumed.
fn exchange(
    kernel: HostKernel,
    fifo: &TestFifo,
    block: u32,
    args: Push,
) -> Result<Vec<ProxyTrigger>, String> {
    let stop = Arc::new(AtomicBool::new(false));
    let (own, stopping) = (*fifo, stop.clone());
    let consumer = std::thread::spawn(move || {
        let mut seen = Vec::new();
        own.consume(&stopping, Duration::from_secs(20), |_, trigger| {
            seen.push(trigger)
        });
        seen
    });
    let running = kernel
        .launch(LaunchDims { grid: 1, block }, args)
        .map_err(|error| error.to_string())?;
    let joined = running.join(Duration::from_secs(20));
    fifo.status.fail(Status::Aborted);
    stop.store(true, SeqCst);
    let seen = consumer
        .join()
        .map_err(|_| "the consumer panicked".to_owned())?;
    joined.map_err(|error| error.to_string())?;
    Ok(seen)
}

#[test]
fn ten_thousand_triggers_arrive_in_order_with_a_sync_each_512() {
    let fifo = TestFifo::new(512);
    let (pushed, status) = (Cells::new(1), Cells::new(1));
    let mut args = push_args(&fifo, 10_000, pushed, status);
    args.sync_every = 512;
    let seen = exchange(Kernels::of("fifo").direct("fifo_push"), &fifo, 1, args).unwrap();
    let expected: Vec<_> = (0..10_000)
        .map(|i| ProxyTrigger { fst: i, snd: i })
        .collect();
    assert_eq!(seen, expected);
    assert_eq!((pushed.get(0), status.get(0)), (10_000, 0));
}

#[test]
fn zero_triggers_are_delivered() {
    let fifo = TestFifo::new(8);
    let args = push_args(&fifo, 1, Cells::new(1), Cells::new(1));
    for _ in 0..32 {
        let kernel = Kernels::of("fifo").direct("fifo_push");
        kernel.run(ONE, args, DEADLINE).unwrap();
        assert_eq!(fifo.poll(), Some(ProxyTrigger { fst: 0, snd: 0 }));
        fifo.pop();
        assert_eq!(fifo.poll(), None);
    }
}

/// Four laps through four slots, each trigger exactly once, commit bit cleared.
pub(crate) fn four_laps(kernels: &Kernels) -> Outcome {
    let fifo = TestFifo::new(4);
    let mut args = push_args(&fifo, 16, Cells::new(1), Cells::new(1));
    args.complement = 1;
    let seen = exchange(kernels.direct("fifo_push"), &fifo, 1, args)?;
    let expected: Vec<_> = (0..16)
        .map(|i| ProxyTrigger {
            fst: i,
            snd: !i & LOW,
        })
        .collect();
    equal("consumed", seen, expected)
}

#[test]
fn four_laps_deliver_each_trigger_once() {
    four_laps(&Kernels::of("fifo")).unwrap();
}

/// Several producers share few slots: nothing is lost, doubled or overtaken within a producer.
pub(crate) fn several_producers(kernels: &Kernels) -> Outcome {
    const PRODUCERS: u32 = 4;
    const COUNT: u64 = 2500;
    let fifo = TestFifo::new(8);
    let (pushed, status) = (
        Cells::new(PRODUCERS as usize),
        Cells::new(PRODUCERS as usize),
    );
    let args = push_args(&fifo, COUNT, pushed, status);
    let seen = exchange(kernels.direct("fifo_push"), &fifo, PRODUCERS, args)?;
    equal("count", seen.len() as u64, COUNT * u64::from(PRODUCERS))?;
    let mut next: Vec<u64> = (0..PRODUCERS).map(|p| u64::from(p) * COUNT).collect();
    for trigger in seen {
        equal("words", trigger.fst, trigger.snd)?;
        let producer = (trigger.fst / COUNT) as usize;
        equal("next of its producer", trigger.fst, next[producer])?;
        next[producer] += 1;
    }
    Ok(())
}

#[test]
fn several_producers_lose_nothing() {
    several_producers(&Kernels::of("fifo")).unwrap();
}

/// Several producers, each with a word of payload stored before its trigger.
pub(crate) fn payload_behind_triggers(kernels: &Kernels) -> Outcome {
    const PRODUCERS: u32 = 2;
    const COUNT: u64 = 500;
    let fifo = TestFifo::new(8);
    let counts = || Cells::new(PRODUCERS as usize);
    let payload = Cells::new(PRODUCERS as usize * COUNT as usize);
    let mut args = push_args(&fifo, COUNT, counts(), counts());
    args.payload = payload.address();
    let stop = Arc::new(AtomicBool::new(false));
    let (own, stopping) = (fifo, stop.clone());
    let consumer = std::thread::spawn(move || {
        let mut wrong = 0;
        own.consume(&stopping, Duration::from_secs(20), |_, trigger| {
            wrong += u64::from(payload.get(trigger.fst as usize) != trigger.fst);
        });
        wrong
    });
    let dims = LaunchDims {
        grid: 1,
        block: PRODUCERS,
    };
    let ran = kernels.direct("fifo_push").run(dims, args, DEADLINE);
    stop.store(true, SeqCst);
    let wrong = consumer
        .join()
        .map_err(|_| "the consumer panicked".to_owned())?;
    ran.map_err(|error| error.to_string())?;
    equal("triggers before their payload", wrong, 0)
}

#[test]
fn a_consumer_finds_the_payload_behind_each_trigger() {
    payload_behind_triggers(&Kernels::of("fifo")).unwrap();
}

/// On weak memory: whenever the consumer finds a slot committed, both words and the payload that
/// was stored before the push are there.
pub(crate) fn weak_publication(kernels: &Kernels) -> Outcome {
    for budget in [-1, 300] {
        for seed in seeds(40) {
            weak_publication_of(kernels, seed, budget)
                .map_err(|fault| format!("seed {seed}, budget {budget}: {fault}"))?;
        }
    }
    Ok(())
}

fn weak_publication_of(kernels: &Kernels, seed: u64, budget: i64) -> Outcome {
    const COUNT: u64 = 16;
    let fifo = TestFifo::new(4);
    let payload = Cells::new(COUNT as usize);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let consumed = seen.clone();
    // The consumer looks after each change of memory: no moment escapes it.
    let gpu = weak_observed(seed, move |_| {
        while let Some(trigger) = fifo.poll() {
            let position = fifo.tail.get(0) as usize;
            consumed
                .lock()
                .unwrap()
                .push((trigger, payload.get(position)));
            fifo.pop();
        }
    });
    let mut args = push_args(&fifo, COUNT, Cells::new(1), Cells::new(1));
    args.first = 1000;
    args.complement = 1;
    args.budget = budget;
    args.payload = payload.address();
    let running = kernels
        .modelled("fifo_push")
        .launch_modelled(ONE, args, gpu)
        .map_err(|error| error.to_string())?;
    if let Err(late) = running.join(Duration::from_secs(2)) {
        fifo.status.fail(Status::Aborted);
        running.join(DEADLINE).map_err(|error| error.to_string())?;
        return Err(late.to_string());
    }
    let seen = seen.lock().map_err(|error| error.to_string())?;
    let expected: Vec<_> = (1000..1000 + COUNT)
        .map(|i| {
            (
                ProxyTrigger {
                    fst: i,
                    snd: !i & LOW,
                },
                i,
            )
        })
        .collect();
    equal("consumed with payload", &*seen, &expected)
}

#[test]
fn on_weak_memory_a_committed_slot_is_whole_and_its_payload_there() {
    weak_publication(&Kernels::of("fifo")).unwrap();
}

/// The trace of one push: both words, the commit word last and released to the system.
pub(crate) fn traced_publication(kernels: &Kernels) -> Outcome {
    let fifo = TestFifo::new(4);
    let trace = Trace::new();
    let mut args = push_args(&fifo, 1, Cells::new(1), Cells::new(1));
    args.first = 7;
    kernels
        .modelled("fifo_push")
        .launch_modelled(ONE, args, &trace)
        .and_then(|running| running.join(DEADLINE))
        .map_err(|error| error.to_string())?;
    let slot = fifo.triggers.address() as usize;
    let stores: Vec<_> = trace
        .events()
        .into_iter()
        .filter_map(|event| match event.access {
            Access::Store {
                address,
                value,
                order,
                scope,
                ..
            } if address == slot || address == slot + 8 => {
                Some((address - slot, value, order, scope))
            }
            _ => None,
        })
        .collect();
    let expected = vec![
        (0, 7, Order::Relaxed, Scope::System),
        (
            8,
            7 | ProxyTrigger::COMMIT_BIT,
            Order::Release,
            Scope::System,
        ),
    ];
    equal("stores to the slot", stores, expected)
}

#[test]
fn the_commit_word_is_stored_last_and_released_to_the_system() {
    traced_publication(&Kernels::of("fifo")).unwrap();
}

/// A full FIFO: a push with a budget takes no slot; a push without one holds its slot until there
/// is room, and fills it.
pub(crate) fn taken_slots_are_filled(kernels: &Kernels) -> Outcome {
    let fifo = TestFifo::new(2);
    let (pushed, status) = (Cells::new(1), Cells::new(1));
    let mut args = push_args(&fifo, 3, pushed, status);
    args.budget = 20;
    kernels
        .direct("fifo_push")
        .run(ONE, args, DEADLINE)
        .map_err(|error| error.to_string())?;
    equal("pushed in time", pushed.get(0), 2)?;
    equal("status", status.get(0), Status::Timeout as u64)?;
    equal("slots taken", fifo.head.get(0), 2)?;

    args.budget = -1;
    args.count = 1;
    let running = kernels
        .direct("fifo_push")
        .launch(ONE, args)
        .map_err(|error| error.to_string())?;
    let early = running.join(Duration::from_millis(50));
    ensure(
        matches!(early, Err(ExecutorError::Unfinished { .. })),
        || "a push without room returned".to_owned(),
    )?;
    equal("live trigger", fifo.triggers.get(0), 0)?;
    equal("slots taken", fifo.head.get(0), 3)?;
    fifo.pop();
    running.join(DEADLINE).map_err(|error| error.to_string())?;
    fifo.pop();
    equal(
        "third trigger",
        fifo.poll(),
        Some(ProxyTrigger { fst: 0, snd: 0 }),
    )
}

#[test]
fn a_taken_slot_is_always_filled() {
    taken_slots_are_filled(&Kernels::of("fifo")).unwrap();
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Position {
    fifo: mscclpp_device::abi::FifoDeviceHandle,
    budget: i64,
    position: u64,
    executed: u64,
}

#[test]
fn push_returns_its_position_or_that_the_fifo_is_dead() {
    let fifo = TestFifo::new(1);
    let (position, executed) = (Cells::new(1), Cells::new(1));
    let args = Position {
        fifo: fifo.handle(),
        budget: -1,
        position: position.address(),
        executed: executed.address(),
    };
    let kernel = Kernels::of("fifo").direct("fifo_position");
    kernel.run(ONE, args, DEADLINE).unwrap();
    assert_eq!((position.get(0), executed.get(0)), (0, 0));

    fifo.pop();
    kernel.run(ONE, args, DEADLINE).unwrap();
    assert_eq!((position.get(0), fifo.tail_cache.get(0)), (1, 1));

    // No room, and nobody to make some.
    fifo.status.fail(Status::Aborted);
    kernel.run(ONE, args, DEADLINE).unwrap();
    assert_eq!(position.get(0), u64::MAX);

    let (pushed, status) = (Cells::new(1), Cells::new(1));
    let push = push_args(&fifo, 1, pushed, status);
    let kernel = Kernels::of("fifo").direct("fifo_push");
    kernel.run(ONE, push, DEADLINE).unwrap();
    assert_eq!((pushed.get(0), status.get(0)), (0, Status::Aborted as u64));
}

#[test]
fn a_sync_ends_by_budget_or_by_the_death_of_the_fifo() {
    for (budget, fail, expected) in [
        (10, Status::Ok, Status::Timeout),
        (-1, Status::QueueError, Status::QueueError),
    ] {
        let fifo = TestFifo::new(4);
        let (pushed, status) = (Cells::new(1), Cells::new(1));
        let mut args = push_args(&fifo, 2, pushed, status);
        args.sync_every = 1;
        args.budget = budget;
        fifo.status.fail(fail);
        Kernels::of("fifo")
            .direct("fifo_push")
            .run(ONE, args, DEADLINE)
            .unwrap();
        assert_eq!((pushed.get(0), status.get(0)), (1, expected as u64));
    }
}
