// SPDX-License-Identifier: MIT
//! How threads of this crate wait for a store of somebody who cannot wake them: they look again,
//! ever less often.

use std::time::{Duration, Instant};

use crate::sync::yield_now;

/// Looks in a row, right after work. Few: on two cores somebody else needs this one to bring the
/// next work about.
const SPINS: u32 = 16;
/// How long after the last work the thread only yields between looks.
const YIELDING: Duration = Duration::from_micros(200);
/// Longest time between two looks.
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// A nap is this part of the time since the last work, so that it delays whoever comes late by an
/// eighth at most, up to the longest nap.
const NAP_PART: u32 = 8;

/// What to do before the next look.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    Spin,
    Yield,
    Nap(Duration),
}

/// The time since the last work, as far as pausing needs it.
pub(crate) struct Idle {
    spins: u32,
    since: Option<Instant>,
}

impl Idle {
    pub(crate) fn new() -> Self {
        Self {
            spins: 0,
            since: None,
        }
    }

    /// There was work: the next pauses are short again.
    pub(crate) fn reset(&mut self) {
        *self = Self::new();
    }

    pub(crate) fn next(&mut self) -> Pause {
        if self.spins < SPINS {
            self.spins += 1;
            return Pause::Spin;
        }
        let now = Instant::now();
        Self::after_spins(now - *self.since.get_or_insert(now))
    }

    fn after_spins(idle: Duration) -> Pause {
        if idle < YIELDING {
            Pause::Yield
        } else {
            Pause::Nap((idle / NAP_PART).min(LONGEST_NAP))
        }
    }

    /// Pauses; `nap` sleeps, and may return early.
    pub(crate) fn pause(&mut self, nap: impl FnOnce(Duration)) {
        // A model explores all orders, so it needs no patience.
        let pause = if cfg!(loom) {
            Pause::Yield
        } else {
            self.next()
        };
        match pause {
            Pause::Spin => std::hint::spin_loop(),
            Pause::Yield => yield_now(),
            Pause::Nap(time) => nap(time),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_from_spins_to_naps_of_a_millisecond() {
        let mut idle = Idle::new();
        for _ in 0..SPINS {
            assert_eq!(idle.next(), Pause::Spin);
        }
        assert_ne!(idle.next(), Pause::Spin);
        idle.reset();
        assert_eq!(idle.next(), Pause::Spin);

        let after = Idle::after_spins;
        assert_eq!(after(Duration::ZERO), Pause::Yield);
        assert_eq!(
            after(Duration::from_micros(800)),
            Pause::Nap(Duration::from_micros(100))
        );
        assert_eq!(after(Duration::from_secs(9)), Pause::Nap(LONGEST_NAP));
    }
}
