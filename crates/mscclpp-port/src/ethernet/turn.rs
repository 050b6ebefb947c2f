// SPDX-License-Identifier: MIT
//! Work that one thread does at a time, for all that have some.

use std::sync::TryLockError;

use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering::SeqCst, lock};

/// What the work is done on.
pub(crate) struct Turn<T> {
    state: Mutex<T>,
    /// There is something to do that the thread at work may not have seen.
    kicked: AtomicBool,
}

impl<T> Turn<T> {
    pub(crate) fn new(state: T) -> Self {
        Self {
            state: Mutex::new(state),
            kicked: AtomicBool::new(false),
        }
    }

    /// Waits for the thread at work.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        lock(&self.state)
    }

    /// Does the work that the caller has handed over, and what is handed over meanwhile if that was
    /// `all`, and returns how it ended; or leaves it to the thread that is at work, which then does
    /// it: `None`.
    pub(crate) fn take<R>(
        &self,
        mut work: impl FnMut(&mut T) -> R,
        all: impl Fn(&R) -> bool,
    ) -> Option<R> {
        // Of this and the read-modify-write below the later one sees all that came before the
        // other: one that comes after the holder's last look finds the state unlocked.
        self.kicked.swap(true, SeqCst);
        loop {
            let mut state = match self.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return None,
            };
            self.kicked.swap(false, SeqCst);
            let result = work(&mut state);
            drop(state);
            // Left as it is: another thread may be at work now, and it is told so, too.
            if !all(&result) || !self.kicked.fetch_or(false, SeqCst) {
                return Some(result);
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use loom::thread;

    use super::*;

    /// Each thread hands some over and asks for it to be done: nothing may be left when all have
    /// returned.
    fn nothing_is_left(threads: usize) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let queue = Arc::new(Mutex::new(0));
            let sent = Arc::new(AtomicU64::new(0));
            let turn = Arc::new(Turn::new(()));
            let post = {
                let (queue, sent, turn) = (queue.clone(), sent.clone(), turn.clone());
                move || {
                    *lock(&queue) += 1;
                    let work = |(): &mut ()| {
                        let taken = std::mem::take(&mut *lock(&queue));
                        // A step of its own, so that others come in between.
                        sent.fetch_add(taken, Relaxed);
                    };
                    turn.take(work, |()| true);
                }
            };
            let others: Vec<_> = (1..threads).map(|_| thread::spawn(post.clone())).collect();
            post();
            for other in others {
                other.join().unwrap();
            }
            assert_eq!((sent.load(Relaxed), *lock(&queue)), (threads as u64, 0));
        });
    }

    #[test]
    fn loom_what_is_left_to_the_thread_at_work_is_done() {
        nothing_is_left(2);
        nothing_is_left(3);
    }
}
