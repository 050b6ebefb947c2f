// SPDX-License-Identifier: MIT
//! The executor itself.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use mscclpp_device::abi::{Host2DeviceSemaphoreDeviceHandle, Status};
use mscclpp_device::executor::{ExecutorError, HostKernel, LaunchDims, ThreadId, Trace};

use crate::support::{Cells, DEADLINE, Kernels, TestSemaphore};

#[derive(Clone, Copy)]
#[repr(C)]
struct Wait {
    semaphore: Host2DeviceSemaphoreDeviceHandle,
    budget: i64,
    status: u64,
    cpu_ns: u64,
}

fn wait_args(semaphore: &TestSemaphore, threads: usize) -> Wait {
    Wait {
        semaphore: semaphore.handle(),
        budget: -1,
        status: Cells::new(threads).address(),
        cpu_ns: Cells::new(threads).address(),
    }
}

#[test]
fn threads_know_their_place_and_barriers_count_the_returned_as_arrived() {
    let places = Cells::new(15);
    let dims = LaunchDims { grid: 3, block: 5 };
    let kernel = Kernels::of("grid").direct("place");
    kernel.run(dims, places.address(), DEADLINE).unwrap();
    for (id, place) in places.all().into_iter().enumerate() {
        assert_eq!(
            place,
            (id as u64 / 5) * 1_000_000 + (id as u64 % 5) * 10_000 + 305
        );
    }
}

#[test]
fn a_block_of_1024_threads_runs() {
    let places = Cells::new(1024);
    let kernel = Kernels::of("grid").direct("place");
    kernel
        .run(
            LaunchDims {
                grid: 1,
                block: 1024,
            },
            places.address(),
            DEADLINE,
        )
        .unwrap();
    assert!(places.all().iter().all(|place| place % 10_000 == 1124));
}

#[test]
fn a_join_past_its_deadline_names_kernel_and_threads_and_can_be_repeated() {
    let semaphore = TestSemaphore::new();
    semaphore.inbound.set(0, 1); // for one of the three
    let kernel = Kernels::of("semaphore").direct("semaphore_wait");
    let running = kernel
        .launch(LaunchDims { grid: 1, block: 3 }, wait_args(&semaphore, 3))
        .unwrap();
    while semaphore.expected.get(0) == 0 {
        std::thread::yield_now();
    }
    let started = Instant::now();
    let error = loop {
        // The winner may need a moment to return.
        let error = running.join(Duration::from_millis(50)).unwrap_err();
        if !matches!(error, ExecutorError::Unfinished { unfinished: 3, .. }) {
            break error;
        }
    };
    assert!(started.elapsed() < Duration::from_secs(10));
    let text = error.to_string();
    let ExecutorError::Unfinished {
        kernel,
        unfinished,
        total,
        first,
        waited,
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(
        (kernel, unfinished, total, first.block),
        ("semaphore_wait", 2, 3, 0)
    );
    assert!(waited >= Duration::from_millis(50));
    let says = format!("still run after {waited:.1?}, the first is {first}; see docs/errors.md, ");
    assert!(text.contains(&says), "{text}");
    assert!(!running.is_finished());

    semaphore.status.fail(Status::PeerDown);
    running.join(DEADLINE).unwrap();
    assert!(running.is_finished());
    running.join(Duration::ZERO).unwrap();
}

#[test]
fn a_dropped_kernel_goes_on_by_itself() {
    let semaphore = TestSemaphore::new();
    let kernel = Kernels::of("semaphore").direct("semaphore_wait");
    drop(
        kernel
            .launch(LaunchDims { grid: 1, block: 1 }, wait_args(&semaphore, 1))
            .unwrap(),
    );
    semaphore.inbound.set(0, 1);
    let started = Instant::now();
    while semaphore.expected.get(0) == 0 {
        assert!(started.elapsed() < DEADLINE);
        std::thread::yield_now();
    }
}

#[test]
fn launches_that_cannot_be_are_refused_with_the_reason() {
    let kernel = Kernels::of("grid").direct("place");
    let places = Cells::new(1).address();
    for (grid, block) in [(0, 1), (1, 0), (1, 1025), (5, 1024), (u32::MAX, u32::MAX)] {
        let error = kernel
            .launch(LaunchDims { grid, block }, places)
            .unwrap_err();
        assert!(
            matches!(
                error,
                ExecutorError::Dimensions {
                    kernel: "place",
                    ..
                }
            ),
            "{error}"
        );
    }
    let one = LaunchDims { grid: 1, block: 1 };
    let error = kernel.launch(one, [places; 2]).unwrap_err();
    assert!(
        matches!(
            error,
            ExecutorError::Arguments {
                expected: 8,
                given: 16,
                ..
            }
        ),
        "{error}"
    );
    let error = kernel
        .launch_modelled(one, places, Trace::new())
        .unwrap_err();
    assert!(
        matches!(error, ExecutorError::NotModelled { kernel: "place" }),
        "{error}"
    );

    unsafe extern "C" fn of_other_headers(_: *const c_void) {}
    // SAFETY: an entry that knows no version does nothing, as this one.
    let kernel = unsafe { HostKernel::new("old", of_other_headers) };
    let error = kernel.launch(one, places).unwrap_err();
    assert!(
        matches!(error, ExecutorError::OtherHeaders { kernel: "old" }),
        "{error}"
    );
}

#[test]
fn a_modelled_kernel_runs_without_a_model_too() {
    let places = Cells::new(4);
    let kernel = Kernels::of("grid").modelled("place");
    kernel
        .run(LaunchDims { grid: 2, block: 2 }, places.address(), DEADLINE)
        .unwrap();
    assert_eq!(places.get(3), 1_010_202);
}

#[test]
fn an_observer_that_panics_is_an_error_of_the_join() {
    let trace = Trace::observed(|event| {
        assert_eq!(
            event.thread,
            ThreadId {
                block: 9,
                thread: 9
            },
            "not where I thought"
        );
    });
    let kernel = Kernels::of("grid").modelled("place");
    let running = kernel
        .launch_modelled(
            LaunchDims { grid: 1, block: 2 },
            Cells::new(2).address(),
            trace,
        )
        .unwrap();
    let error = running.join(DEADLINE).unwrap_err();
    assert!(error.to_string().contains("not where I thought"), "{error}");
}
