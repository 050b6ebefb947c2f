// SPDX-License-Identifier: MIT
//! The lines of a communicator, by rank and tag.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use mscclpp_bootstrap::Bootstrap;

use super::pending::Line;

/// Fewer lines than this are not worth a look.
const FEW: usize = 32;

/// Lines that are in use, and some that were. One that nothing waits on has nothing to remember, so
/// that a job may take another tag each time, for as long as it runs.
#[derive(Default)]
pub(super) struct Lines(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    lines: HashMap<(usize, u32), Arc<Line>>,
    /// How many were in use at the last look.
    used: usize,
}

impl Lines {
    /// The line to a rank with a tag.
    pub(super) fn get(&self, bootstrap: &Arc<dyn Bootstrap>, rank: usize, tag: u32) -> Arc<Line> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = inner.lines.get(&(rank, tag)) {
            return Arc::clone(line);
        }
        // Not at each new line: most looks find only what is in use.
        if inner.lines.len() >= FEW.max(2 * inner.used) {
            // Whoever has one got it here, under the lock.
            (inner.lines).retain(|_, line| Arc::strong_count(line) > 1 || line.is_waited_on());
            inner.used = inner.lines.len();
        }
        let line = Arc::new(Line::new(Arc::clone(bootstrap), rank, tag));
        inner.lines.insert((rank, tag), Arc::clone(&line));
        line
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn count(&self) -> usize {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .lines
            .len()
    }
}
