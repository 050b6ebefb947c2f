// SPDX-License-Identifier: MIT
//! When a rank at a gate begins to ask, and when it gives up.
//!
//! All times are durations since the gate was made. The last part of the time, the
//! *reserve*, is for finding out who does not answer: a rank that has no verdict
//! when it begins asks its parent to hurry, the parent its own, until the root
//! hurries those who have not reported, and these hurry theirs. It is cut into
//! *slots*, one for each step of a message up or down the tree: nearer to whom all
//! wait for, a rank gives up a slot earlier, so that what it found out is with the
//! others before they give up themselves.

use std::time::Duration;

/// The reserve is half of the time, and not more than this.
const MAX_RESERVE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    deadline: Duration,
    reserve: Duration,
    slot: Duration,
    height: u32,
}

impl Timing {
    pub(crate) fn new(deadline: Duration, world: usize) -> Self {
        let height = usize::BITS - world.saturating_sub(1).leading_zeros();
        let reserve = (deadline / 2).min(MAX_RESERVE);
        Self {
            deadline,
            reserve,
            slot: reserve / (2 * height + 3),
            height,
        }
    }

    /// How long a message may take to the next rank and to be answered there.
    pub(crate) fn slot(&self) -> Duration {
        self.slot
    }

    /// How often a rank says whom it waits for.
    pub(crate) fn pause(&self) -> Duration {
        self.slot.max(Duration::from_millis(1))
    }

    /// When a rank begins to ask others to hurry.
    pub(crate) fn hurry_at(&self) -> Duration {
        self.deadline - self.reserve
    }

    /// When a rank so far below the root gives up waiting for the verdict.
    pub(crate) fn verdict_by(&self, depth: u32) -> Duration {
        self.deadline - self.slot * (self.height.saturating_sub(depth) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_has_room_for_the_way_up_and_down() {
        for world in [1, 2, 3, 8, 512, 1 << 20] {
            for millis in [0, 1, 40, 1000, 30_000, 3_600_000] {
                let timing = Timing::new(Duration::from_millis(millis), world);
                let up = timing.verdict_by(timing.height) - timing.hurry_at();
                assert!(up >= timing.slot * (2 * timing.height + 2));
                // What the root has left when a request comes up from the
                // farthest leaf is enough for the way down.
                let root = up - timing.slot * timing.height;
                assert!(root >= timing.slot * timing.height);
                assert!(timing.verdict_by(0) >= timing.hurry_at());
            }
        }
    }
}
