// SPDX-License-Identifier: MIT
//! Failed setups leave neither descriptors nor threads behind. Counted in a process of its own.

use std::thread;
use std::time::{Duration, Instant};

use super::faults::{RANKS, try_case};
use super::points;
use super::world::{PATIENCE, world};
use crate::testing::run_alone;

/// Setups that fail in each phase that has made something.
const POINTS: [&str; 10] = [
    "NIC, creation of a queue pair: refused the last time",
    "provider, Handle: panics, call 2",
    "bootstrap, records: garbled",
    "provider, Wire: refused",
    "provider, Wire: panics, call 1",
    "provider, Init: refused",
    "NIC, transition to RTR: refused the last time",
    "provider, Send: panics, call 2",
    "provider, Handle: panics, call 3",
    "provider, Fault: a failed last queue",
];

/// Descriptors and threads of this process.
fn held() -> [usize; 2] {
    ["/proc/self/fd", "/proc/self/task"].map(|path| std::fs::read_dir(path).unwrap().count())
}

#[test]
#[ignore = "run by the next test, in a process of its own"]
fn child() {
    let ranks = world(RANKS);
    let all = points::all();
    let fail = || {
        for name in POINTS {
            let point = all.iter().find(|point| point.name == name);
            let point = point.unwrap_or_else(|| panic!("no point {name}"));
            for rank in 0..RANKS {
                try_case(&ranks, point, rank).unwrap();
            }
        }
    };
    // Connections of the bootstrap are made when they are first needed, and stay.
    fail();
    thread::sleep(Duration::from_millis(200));
    let before = held();
    fail();
    let until = Instant::now() + PATIENCE;
    while (held().iter().zip(before)).any(|(now, before)| *now > before) {
        assert!(Instant::now() < until, "{:?}, {before:?} before", held());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn gpunetio_failed_setups_leave_no_descriptor_and_no_thread() {
    run_alone("gpu_net_io_service::tests::leaks::child", &[]);
}
