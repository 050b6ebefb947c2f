// SPDX-License-Identifier: MIT
//! How the end of a connection waits for its threads: for a bounded time, whatever they are in.

use std::thread::{self, JoinHandle};

use mscclpp_bootstrap::Deadline;

use crate::idle::Idle;

/// Waits until `done`, or until the deadline; whether it was in time.
pub(crate) fn wait_until(deadline: Deadline, mut done: impl FnMut() -> bool) -> bool {
    let mut idle = Idle::new();
    while !done() {
        if deadline.expired() {
            return false;
        }
        idle.pause(|nap| thread::sleep(nap.min(deadline.remaining())));
    }
    true
}

/// Waits for the end of a thread that was told to end. One that does not (a call of a driver may
/// hang) is left behind: it owns all that it uses.
pub(crate) fn join_within(thread: JoinHandle<()>, deadline: Deadline, rank: Option<usize>) {
    let name = thread.thread().name().unwrap_or_default().to_owned();
    if !wait_until(deadline, || thread.is_finished()) {
        let waited = deadline.budget();
        tracing::warn!(
            name,
            ?rank,
            ?waited,
            "a thread does not end: it is left behind"
        );
    } else if thread.join().is_err() {
        tracing::warn!(name, ?rank, "a thread of a connection has panicked");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_thread_that_hangs_is_left_behind_when_the_time_is_up() {
        let (release, held) = mpsc::channel::<()>();
        let (ended, end) = mpsc::channel();
        let thread = thread::spawn(move || {
            let _ = held.recv();
            ended.send(()).unwrap();
        });
        let begun = Instant::now();
        join_within(thread, Deadline::after(Duration::from_millis(50)), Some(3));
        assert!(begun.elapsed() >= Duration::from_millis(50));
        drop(release);
        end.recv_timeout(Duration::from_secs(20)).unwrap();
    }

    #[test]
    fn what_ends_in_time_is_waited_for() {
        let begun = Instant::now();
        let thread = thread::spawn(|| thread::sleep(Duration::from_millis(30)));
        join_within(thread, Deadline::after(Duration::from_secs(20)), None);
        assert!(begun.elapsed() >= Duration::from_millis(30));
        assert!(!wait_until(Deadline::after(Duration::ZERO), || false));
    }
}
