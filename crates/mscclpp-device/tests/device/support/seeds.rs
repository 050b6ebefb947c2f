// SPDX-License-Identifier: MIT
//! Weak memories and their seeds: a few in each test, or as many as
//! `MSCCLPP_WEAK_SEEDS` says (`cargo xtask test-cpu --filter weak --seeds N`).

use std::cell::Cell;

use mscclpp_device::executor::Weak;
use mscclpp_device::executor::memory::Write;

thread_local! {
    /// Memories that this thread, which runs one test, has made.
    static SCHEDULES: Cell<u64> = const { Cell::new(0) };
}

/// A weakly ordered GPU whose stores are drawn from `seed`: one schedule.
pub(crate) fn weak(seed: u64) -> Weak {
    SCHEDULES.set(SCHEDULES.get() + 1);
    Weak::new(seed)
}

/// The same with an observer.
pub(crate) fn weak_observed(seed: u64, look: impl Fn(&Write) + Send + Sync + 'static) -> Weak {
    SCHEDULES.set(SCHEDULES.get() + 1);
    Weak::observed(seed, look)
}

/// The seeds of a loop over weak memories; says at its end how many schedules they made.
pub(crate) struct Seeds {
    next: u64,
    end: u64,
    before: u64,
}

/// `quick` seeds, if none are asked for.
pub(crate) fn seeds(quick: u64) -> Seeds {
    let asked = std::env::var("MSCCLPP_WEAK_SEEDS").ok();
    let asked = asked.map(|text| text.parse().expect("MSCCLPP_WEAK_SEEDS is a number"));
    Seeds {
        next: 0,
        end: asked.unwrap_or(quick),
        before: SCHEDULES.get(),
    }
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.next == self.end {
            // `xtask` reads this line.
            let schedules = SCHEDULES.get() - self.before;
            println!("WEAK {} seeds, {schedules} schedules", self.end);
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }
}
