// SPDX-License-Identifier: MIT
//! How a proxy thread is told to stop.

use std::time::{Duration, Instant};

use crate::sync::{AtomicU64, Ordering};

/// The word between whoever stops a proxy and its thread: 0 while it is to run, then the deadline
/// for draining, in nanoseconds since `start` and at least 1.
pub(super) struct Control {
    start: Instant,
    word: AtomicU64,
}

impl Control {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            word: AtomicU64::new(0),
        }
    }

    /// Tells the thread to end what was begun, until `deadline`. A later call changes nothing.
    pub(super) fn stop_by(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(self.start).as_nanos();
        let word = u64::try_from(left).unwrap_or(u64::MAX).max(1);
        // Release: triggers that the caller saw pushed are seen by the thread that reads this.
        let _ = self
            .word
            .compare_exchange(0, word, Ordering::Release, Ordering::Relaxed);
    }

    /// Until when to drain, once told to stop.
    #[inline]
    pub(super) fn stopping(&self) -> Option<Instant> {
        match self.word.load(Ordering::Acquire) {
            0 => None,
            nanos => Some(self.start + Duration::from_nanos(nanos)),
        }
    }
}
