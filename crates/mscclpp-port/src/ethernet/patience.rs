// SPDX-License-Identifier: MIT
//! When an I/O thread parks.
//!
//! Waking a parked thread on an idle core can take tens of microseconds, so with cores to spare the
//! thread stays awake for a while after something arrived, and yields between looks. Where others
//! want the core it parks at once: they run earlier, whoever polls for what just arrived among
//! them, and the scheduler runs a thread that wakes before one that yields. A yield that takes long
//! tells that somebody else ran.

use std::thread;
use std::time::{Duration, Instant};

/// How long to stay awake after something arrived.
const AWAKE: Duration = Duration::from_micros(100);
/// A yield that takes longer let somebody else run.
const CROWDED: Duration = Duration::from_micros(3);
/// Arrivals after which a crowded core is tried again.
const RETRY: u32 = 64;

pub(super) struct Patience {
    /// When the thread began to wait.
    since: Option<Instant>,
    /// Arrivals for which the core counts as crowded.
    crowded: u32,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self {
            since: None,
            crowded: 0,
        }
    }

    /// Something arrived.
    pub(super) fn restore(&mut self) {
        self.since = None;
        self.crowded = self.crowded.saturating_sub(1);
    }

    /// Lets others run, and says true; or says that it is time to park.
    pub(super) fn yielded(&mut self) -> bool {
        if self.crowded > 0 {
            return false;
        }
        let before = Instant::now();
        let since = *self.since.get_or_insert(before);
        if before - since > AWAKE {
            return false;
        }
        thread::yield_now();
        if before.elapsed() > CROWDED {
            self.crowded = RETRY;
        }
        true
    }
}
