// SPDX-License-Identifier: MIT
//! One at a time for each pair of HCAs: several connections of a pair need one wire between them.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use super::provider::HcaAddress;

/// How long to wait before looking whether the turn is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

type Pair = (HcaAddress, HcaAddress);

/// The pairs that are being wired.
#[derive(Default)]
pub(crate) struct Turns {
    taken: Mutex<HashSet<Pair>>,
    changed: Condvar,
}

/// The right to wire a pair. Given back when dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    pair: Pair,
}

impl Turns {
    /// Those of the process: several contexts may share an HCA, and the second of two wires between
    /// the same HCAs would end the first.
    pub(crate) fn of_process() -> Arc<Self> {
        static TURNS: LazyLock<Arc<Turns>> = LazyLock::new(Arc::default);
        Arc::clone(&TURNS)
    }

    /// Waits for the turn, until it is not wanted any more.
    pub(super) fn take(&self, pair: Pair, given_up: impl Fn() -> bool) -> Option<Turn<'_>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while !taken.insert(pair) {
            if given_up() {
                return None;
            }
            let waited = self.changed.wait_timeout(taken, LOOK_EVERY);
            taken = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(Turn { turns: self, pair })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut taken = (self.turns.taken.lock()).unwrap_or_else(PoisonError::into_inner);
        taken.remove(&self.pair);
        drop(taken);
        self.turns.changed.notify_all();
    }
}
