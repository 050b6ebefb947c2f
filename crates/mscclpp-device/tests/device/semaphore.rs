// SPDX-License-Identifier: MIT
//! The semaphore: counting, waiting, and what ends a wait.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mscclpp_device::abi::{Host2DeviceSemaphoreDeviceHandle, Status};
use mscclpp_device::executor::memory::{Access, Order, Scope};
use mscclpp_device::executor::{LaunchDims, Trace};

use crate::support::{
    Cells, DEADLINE, Kernels, Outcome, TestSemaphore, ensure, equal, seeds, weak,
};

#[derive(Clone, Copy)]
#[repr(C)]
struct Wait {
    semaphore: Host2DeviceSemaphoreDeviceHandle,
    budget: i64,
    status: u64,
    cpu_ns: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Poll {
    semaphore: Host2DeviceSemaphoreDeviceHandle,
    tries: u64,
    wins: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Publish {
    semaphore: Host2DeviceSemaphoreDeviceHandle,
    datum: u64,
    seen: u64,
}

const ONE: LaunchDims = LaunchDims { grid: 1, block: 1 };

fn block(threads: u32) -> LaunchDims {
    LaunchDims {
        grid: 1,
        block: threads,
    }
}

/// Status of one wait with a budget, in direct mode.
fn wait(kernels: &Kernels, semaphore: &TestSemaphore, budget: i64) -> Result<u64, String> {
    let status = Cells::new(1);
    let args = Wait {
        semaphore: semaphore.handle(),
        budget,
        status: status.address(),
        cpu_ns: Cells::new(1).address(),
    };
    kernels
        .direct("semaphore_wait")
        .run(ONE, args, DEADLINE)
        .map_err(|error| error.to_string())?;
    Ok(status.get(0))
}

/// The same on a trace.
fn wait_traced(
    kernels: &Kernels,
    semaphore: &TestSemaphore,
    budget: i64,
    trace: &Trace,
) -> Result<u64, String> {
    let status = Cells::new(1);
    let args = Wait {
        semaphore: semaphore.handle(),
        budget,
        status: status.address(),
        cpu_ns: Cells::new(1).address(),
    };
    kernels
        .modelled("semaphore_wait")
        .launch_modelled(ONE, args, trace)
        .and_then(|running| running.join(DEADLINE))
        .map_err(|error| error.to_string())?;
    Ok(status.get(0))
}

fn polls(
    kernels: &Kernels,
    semaphore: &TestSemaphore,
    threads: u32,
    tries: u64,
) -> Result<Vec<u64>, String> {
    let wins = Cells::new(threads as usize);
    let args = Poll {
        semaphore: semaphore.handle(),
        tries,
        wins: wins.address(),
    };
    kernels
        .direct("semaphore_poll")
        .run(block(threads), args, DEADLINE)
        .map_err(|error| error.to_string())?;
    Ok(wins.all())
}

#[test]
fn of_several_pollers_exactly_one_wins_each_signal() {
    let kernels = Kernels::of("semaphore");
    let semaphore = TestSemaphore::new();
    for round in 1..=50 {
        semaphore.inbound.add(0, 1);
        let wins = polls(&kernels, &semaphore, 4, 100).unwrap();
        assert_eq!(wins.iter().sum::<u64>(), 1, "round {round}: {wins:?}");
        assert_eq!(semaphore.expected.get(0), round);
    }
    semaphore.inbound.add(0, 777);
    let wins = polls(&kernels, &semaphore, 4, 1000).unwrap();
    assert_eq!(wins.iter().sum::<u64>(), 777, "{wins:?}");
}

/// Another thread takes the one signal between a poll's look and its claim: the poll fails.
pub(crate) fn a_lost_race_is_no_win(kernels: &Kernels) -> Outcome {
    let semaphore = TestSemaphore::new();
    semaphore.inbound.set(0, 1);
    let inbound = semaphore.inbound.address() as usize;
    let trace = Trace::observed(move |event| {
        if matches!(event.access, Access::Load { address, .. } if address == inbound) {
            semaphore.expected.set(0, 1);
        }
    });
    let wins = Cells::new(1);
    let args = Poll {
        semaphore: semaphore.handle(),
        tries: 1,
        wins: wins.address(),
    };
    kernels
        .modelled("semaphore_poll")
        .launch_modelled(ONE, args, &trace)
        .and_then(|running| running.join(DEADLINE))
        .map_err(|error| error.to_string())?;
    equal("wins", wins.get(0), 0)?;
    equal("consumed", semaphore.expected.get(0), 1)
}

#[test]
fn a_poll_that_lost_the_race_does_not_win() {
    a_lost_race_is_no_win(&Kernels::of("semaphore")).unwrap();
}

/// Budgets: Timeout when used up and never Ok early; nothing is consumed by it.
pub(crate) fn budgets(kernels: &Kernels) -> Outcome {
    let semaphore = TestSemaphore::new();
    for budget in [0, 1, 200] {
        equal(
            "wait in vain",
            wait(kernels, &semaphore, budget)?,
            Status::Timeout as u64,
        )?;
        equal("consumed", semaphore.expected.get(0), 0)?;
    }
    semaphore.inbound.set(0, 2);
    equal(
        "a look without patience",
        wait(kernels, &semaphore, 0)?,
        Status::Ok as u64,
    )?;
    equal(
        "no limit",
        wait(kernels, &semaphore, -1)?,
        Status::Ok as u64,
    )?;
    equal("consumed", semaphore.expected.get(0), 2)?;
    equal(
        "none left",
        wait(kernels, &semaphore, 0)?,
        Status::Timeout as u64,
    )
}

#[test]
fn a_budget_ends_a_wait_with_timeout_and_consumes_nothing() {
    budgets(&Kernels::of("semaphore")).unwrap();
}

/// The connection's status releases all waiting threads.
pub(crate) fn released_by_status(kernels: &Kernels) -> Outcome {
    for failure in [Status::PeerDown, Status::QueueError, Status::Aborted] {
        let semaphore = TestSemaphore::new();
        let status = Cells::new(3);
        let args = Wait {
            semaphore: semaphore.handle(),
            budget: -1,
            status: status.address(),
            cpu_ns: Cells::new(3).address(),
        };
        let running = kernels
            .direct("semaphore_wait")
            .launch(block(3), args)
            .map_err(|error| error.to_string())?;
        ensure(running.join(Duration::from_millis(30)).is_err(), || {
            "it did not wait".to_owned()
        })?;
        semaphore.status.fail(failure);
        if let Err(stuck) = running.join(Duration::from_secs(5)) {
            semaphore.inbound.set(0, 3);
            return Err(stuck.to_string());
        }
        equal("statuses", status.all(), vec![failure as u64; 3])?;
        equal("consumed", semaphore.expected.get(0), 0)?;
    }
    Ok(())
}

#[test]
fn a_wait_is_released_by_the_connections_status() {
    released_by_status(&Kernels::of("semaphore")).unwrap();
}

/// The signal arrives just after the status word was read: it wins.
pub(crate) fn an_arrived_signal_wins(kernels: &Kernels) -> Outcome {
    let semaphore = TestSemaphore::new();
    semaphore.status.fail(Status::PeerDown);
    let word = semaphore.status.address() as usize;
    let trace = Trace::observed(move |event| {
        if matches!(event.access, Access::Load { address, .. } if address == word) {
            semaphore.inbound.set(0, 1);
        }
    });
    equal(
        "status",
        wait_traced(kernels, &semaphore, -1, &trace)?,
        Status::Ok as u64,
    )?;
    equal("consumed", semaphore.expected.get(0), 1)
}

#[test]
fn a_signal_that_arrived_wins_over_the_status() {
    an_arrived_signal_wins(&Kernels::of("semaphore")).unwrap();
}

/// Looks at the status word are 10 µs apart, and the first comes 10 µs after the wait began.
pub(crate) fn status_is_looked_at_seldom(kernels: &Kernels) -> Outcome {
    let mut seen = 0;
    // A busy machine spreads the looks of a spoilt wait too; not in each of many runs.
    for _ in 0..30 {
        let semaphore = TestSemaphore::new();
        let word = semaphore.status.address() as usize;
        let looks = Arc::new(Mutex::new((None, 0, None)));
        let log = looks.clone();
        let trace = Trace::observed(move |event| {
            let now = Instant::now();
            let (first, count, early) = &mut *log.lock().unwrap();
            let took = now - *first.get_or_insert(now);
            if matches!(event.access, Access::Load { address, .. } if address == word) {
                *count += 1;
                if took < Duration::from_micros(10) * *count {
                    early.get_or_insert((*count, took));
                }
            }
        });
        // Few enough looks at the token that it does not begin to nap.
        equal(
            "status",
            wait_traced(kernels, &semaphore, 250, &trace)?,
            Status::Timeout as u64,
        )?;
        let (_, count, early) = *looks.lock().map_err(|error| error.to_string())?;
        if let Some((count, took)) = early {
            return Err(format!(
                "look {count} comes {took:?} after the first access"
            ));
        }
        seen += count;
    }
    ensure(seen > 0, || "no look at all".to_owned())
}

#[test]
fn the_status_is_looked_at_every_ten_microseconds_at_most() {
    status_is_looked_at_seldom(&Kernels::of("semaphore")).unwrap();
}

/// Each look at the inbound token acquires at system scope: what the peer wrote is visible behind it.
pub(crate) fn looks_acquire(kernels: &Kernels) -> Outcome {
    let semaphore = TestSemaphore::new();
    semaphore.inbound.set(0, 1);
    let inbound = semaphore.inbound.address() as usize;
    let trace = Trace::new();
    equal(
        "status",
        wait_traced(kernels, &semaphore, 0, &trace)?,
        Status::Ok as u64,
    )?;
    let looks: Vec<_> = trace
        .events()
        .into_iter()
        .filter_map(|event| match event.access {
            Access::Load {
                address,
                order,
                scope,
                ..
            } if address == inbound => Some((order, scope)),
            _ => None,
        })
        .collect();
    equal(
        "looks at the token",
        looks,
        vec![(Order::Acquire, Scope::System)],
    )
}

#[test]
fn a_wait_acquires_what_the_signal_released() {
    looks_acquire(&Kernels::of("semaphore")).unwrap();
}

fn publish(kernels: &Kernels, seed: Option<u64>) -> Outcome {
    let semaphore = TestSemaphore::new();
    let (datum, seen) = (Cells::new(1), Cells::new(1));
    let args = Publish {
        semaphore: semaphore.handle(),
        datum: datum.address(),
        seen: seen.address(),
    };
    let dims = LaunchDims { grid: 2, block: 1 };
    let running = match seed {
        None => kernels.direct("semaphore_publish").launch(dims, args),
        Some(seed) => {
            let kernel = kernels.modelled("semaphore_publish");
            kernel.launch_modelled(dims, args, weak(seed))
        }
    };
    running
        .and_then(|running| running.join(DEADLINE))
        .map_err(|error| error.to_string())?;
    equal("datum, plus one", seen.get(0), 8)
}

/// What is stored before a signal is there behind the wait.
pub(crate) fn datum_behind_a_signal(kernels: &Kernels) -> Outcome {
    (0..20).try_for_each(|_| publish(kernels, None))
}

#[test]
fn data_released_before_a_signal_is_there_after_the_wait() {
    datum_behind_a_signal(&Kernels::of("semaphore")).unwrap();
}

#[test]
fn on_weak_memory_data_released_before_a_signal_is_there_after_the_wait() {
    for seed in seeds(30) {
        publish(&Kernels::of("semaphore"), Some(seed))
            .map_err(|fault| format!("seed {seed}: {fault}"))
            .unwrap();
    }
}

#[test]
fn a_blocked_wait_uses_less_than_a_tenth_of_a_core() {
    let semaphore = TestSemaphore::new();
    let (status, cpu) = (Cells::new(1), Cells::new(1));
    let args = Wait {
        semaphore: semaphore.handle(),
        budget: -1,
        status: status.address(),
        cpu_ns: cpu.address(),
    };
    let blocked = Duration::from_secs(2);
    let running = Kernels::of("semaphore")
        .direct("semaphore_wait")
        .launch(ONE, args)
        .unwrap();
    assert!(running.join(blocked).is_err());
    semaphore.inbound.set(0, 1);
    running.join(DEADLINE).unwrap();
    assert_eq!(status.get(0), Status::Ok as u64);
    let used = Duration::from_nanos(cpu.get(0));
    assert!(used < blocked / 10, "{used:?} on a core in {blocked:?}");
}
