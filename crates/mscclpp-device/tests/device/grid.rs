// SPDX-License-Identifier: MIT
//! The grid's barrier and the counting semaphore.

use std::time::Duration;

use mscclpp_device::abi::Status;
use mscclpp_device::executor::memory::{Access, Order, Scope};
use mscclpp_device::executor::{LaunchDims, Trace, Weak};

use crate::support::{Cells, DEADLINE, Kernels, Outcome, equal, seeds, weak};

#[derive(Clone, Copy)]
#[repr(C)]
struct Sync {
    syncer: u64,
    slots: u64,
    rounds: u64,
    budget: i64,
    blocks: u64,
    wrong: u64,
    status: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Hold {
    semaphore: u64,
    rounds: u64,
    budget: u64,
    inside: u64,
    too_many: u64,
    permits: u64,
    status: u64,
}

/// Runs rounds of the barrier; `Err` if a thread saw another's slot of another round.
fn rounds(kernels: &Kernels, dims: LaunchDims, rounds: u64, gpu: Option<Weak>) -> Outcome {
    let threads = (dims.grid * dims.block) as usize;
    let (syncer, slots) = (Cells::new(2), Cells::new(threads));
    let (wrong, status) = (Cells::new(threads), Cells::new(threads));
    let args = Sync {
        syncer: syncer.address(),
        slots: slots.address(),
        rounds,
        // Far more than the originals need; spoilt ones must end.
        budget: 3000,
        blocks: dims.grid.into(),
        wrong: wrong.address(),
        status: status.address(),
    };
    let running = match gpu {
        None => kernels.direct("grid_sync").launch(dims, args),
        Some(gpu) => kernels
            .modelled("grid_sync")
            .launch_modelled(dims, args, gpu),
    };
    running
        .and_then(|running| running.join(Duration::from_secs(30)))
        .map_err(|error| error.to_string())?;
    equal("statuses", status.all(), vec![0; threads])?;
    equal("slots of another round", wrong.all(), vec![0; threads])
}

#[test]
fn all_threads_of_all_blocks_meet_in_each_round() {
    for (grid, block) in [(1, 4), (2, 1), (3, 2)] {
        rounds(&Kernels::of("grid"), LaunchDims { grid, block }, 100, None).unwrap();
    }
}

/// On weak memory: what any thread stored before the barrier is seen by all behind it.
pub(crate) fn weak_rounds(kernels: &Kernels) -> Outcome {
    let dims = LaunchDims { grid: 2, block: 2 };
    for seed in seeds(40) {
        rounds(kernels, dims, 8, Some(weak(seed)))
            .map_err(|fault| format!("seed {seed}: {fault}"))?;
    }
    Ok(())
}

#[test]
fn on_weak_memory_the_barrier_publishes_what_each_thread_stored() {
    weak_rounds(&Kernels::of("grid")).unwrap();
}

/// The trace of one round: each block arrives by one release, and looks by acquires, at the grid's
/// scope.
pub(crate) fn traced_round(kernels: &Kernels) -> Outcome {
    let syncer = Cells::new(2);
    let args = Sync {
        syncer: syncer.address(),
        slots: Cells::new(2).address(),
        rounds: 1,
        budget: 3000,
        blocks: 2,
        wrong: Cells::new(2).address(),
        status: Cells::new(2).address(),
    };
    let trace = Trace::new();
    kernels
        .modelled("grid_sync")
        .launch_modelled(LaunchDims { grid: 2, block: 1 }, args, &trace)
        .and_then(|running| running.join(DEADLINE))
        .map_err(|error| error.to_string())?;
    // A kernel's round meets twice. The last of the four words is the index, not a counter.
    let counters = syncer.address() as usize..syncer.address() as usize + 12;
    let mut arrivals = Vec::new();
    for event in trace.events() {
        match event.access {
            Access::FetchAdd { order, scope, .. } => arrivals.push((order, scope)),
            Access::Load {
                address,
                order,
                scope,
                ..
            } if counters.contains(&address) => {
                equal("look", (order, scope), (Order::Acquire, Scope::Device))?;
            }
            _ => {}
        }
    }
    equal(
        "arrivals",
        arrivals,
        vec![(Order::Release, Scope::Device); 4],
    )
}

#[test]
fn a_block_arrives_by_a_release_and_leaves_by_an_acquire() {
    traced_round(&Kernels::of("grid")).unwrap();
}

/// A block that never comes: all threads of the others get Timeout, not only the one that waits.
pub(crate) fn late_blocks(kernels: &Kernels) -> Outcome {
    let (syncer, status) = (Cells::new(2), Cells::new(3));
    let args = Sync {
        syncer: syncer.address(),
        slots: Cells::new(3).address(),
        rounds: 1,
        budget: 30,
        blocks: 2,
        wrong: Cells::new(3).address(),
        status: status.address(),
    };
    kernels
        .direct("grid_sync")
        .run(LaunchDims { grid: 1, block: 3 }, args, DEADLINE)
        .map_err(|error| error.to_string())?;
    equal("statuses", status.all(), vec![Status::Timeout as u64; 3])
}

#[test]
fn a_missing_block_gives_every_thread_a_timeout() {
    late_blocks(&Kernels::of("grid")).unwrap();
}

#[test]
fn a_semaphore_lets_in_as_many_as_it_was_set_to() {
    const THREADS: u32 = 4;
    let (semaphore, inside) = (Cells::new(1), Cells::new(1));
    let (too_many, status) = (Cells::new(THREADS as usize), Cells::new(THREADS as usize));
    let args = Hold {
        semaphore: semaphore.address(),
        rounds: 500,
        budget: u64::MAX,
        inside: inside.address(),
        too_many: too_many.address(),
        permits: 2,
        status: status.address(),
    };
    let kernel = Kernels::of("grid").direct("grid_hold");
    kernel
        .run(
            LaunchDims {
                grid: 1,
                block: THREADS,
            },
            args,
            DEADLINE,
        )
        .unwrap();
    assert_eq!(too_many.all(), vec![0; THREADS as usize]);
    assert_eq!(status.all(), vec![0; THREADS as usize]);
    assert_eq!(semaphore.get(0), 2, "all was given back");
}

#[test]
fn an_acquire_in_vain_times_out_and_takes_nothing() {
    let (semaphore, status) = (Cells::new(1), Cells::new(1));
    let args = Hold {
        semaphore: semaphore.address(),
        rounds: 1,
        budget: 10,
        inside: Cells::new(1).address(),
        too_many: Cells::new(1).address(),
        permits: 0,
        status: status.address(),
    };
    let kernel = Kernels::of("grid").direct("grid_hold");
    kernel
        .run(LaunchDims { grid: 1, block: 1 }, args, DEADLINE)
        .unwrap();
    assert_eq!(
        (status.get(0), semaphore.get(0)),
        (Status::Timeout as u64, 0)
    );
}
