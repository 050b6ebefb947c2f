// SPDX-License-Identifier: MIT
//! `__syncthreads` of one block: sleeps, and counts threads that returned as
//! arrived.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub(crate) struct Barrier {
    state: Mutex<State>,
    opened: Condvar,
}

struct State {
    live: u32,
    arrived: u32,
    round: u64,
    any: bool,
    result: bool,
}

impl State {
    fn open(&mut self) {
        self.result = self.any;
        self.any = false;
        self.arrived = 0;
        self.round += 1;
    }
}

impl Barrier {
    pub(crate) fn new(threads: u32) -> Self {
        let state = State {
            live: threads,
            arrived: 0,
            round: 0,
            any: false,
            result: false,
        };
        Self {
            state: Mutex::new(state),
            opened: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the others; tells whether any thread of this round gave true.
    pub(crate) fn arrive(&self, predicate: bool) -> bool {
        let mut state = self.lock();
        state.any |= predicate;
        state.arrived += 1;
        if state.arrived == state.live {
            state.open();
            self.opened.notify_all();
            return state.result;
        }
        let round = state.round;
        let state = self
            .opened
            .wait_while(state, |state| state.round == round)
            .unwrap_or_else(PoisonError::into_inner);
        // Not yet overwritten: the next round needs this thread.
        state.result
    }

    /// The calling thread returned from the kernel.
    pub(crate) fn leave(&self) {
        let mut state = self.lock();
        state.live -= 1;
        if state.arrived > 0 && state.arrived == state.live {
            state.open();
            self.opened.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn nobody_passes_before_all_have_arrived_in_any_round() {
        const THREADS: u32 = 8;
        const ROUNDS: u32 = 200;
        let barrier = Arc::new(Barrier::new(THREADS));
        let arrived = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..THREADS)
            .map(|id| {
                let (barrier, arrived) = (barrier.clone(), arrived.clone());
                thread::spawn(move || {
                    for round in 1..=ROUNDS {
                        arrived.fetch_add(1, Ordering::Relaxed);
                        let any = barrier.arrive(round % THREADS == id);
                        assert!(any, "one thread says yes in each round");
                        assert!(arrived.load(Ordering::Relaxed) >= round * THREADS);
                        assert!(!barrier.arrive(false));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_thread_that_returned_counts_as_arrived() {
        let barrier = Arc::new(Barrier::new(2));
        let other = barrier.clone();
        let waiting = thread::spawn(move || other.arrive(true));
        barrier.leave();
        assert!(waiting.join().unwrap());
        // And also if it left first.
        assert!(!barrier.arrive(false));
    }
}
