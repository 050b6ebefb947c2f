// SPDX-License-Identifier: MIT
use std::time::Duration;

/// The NIC's clock: time since its device was opened. The core never asks for
/// it; it is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(u64);

impl Time {
    /// When the device was opened.
    pub const ZERO: Self = Self(0);

    /// The time `since` after the device was opened.
    pub fn at(since: Duration) -> Self {
        Self(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// `later` than this.
    #[must_use]
    pub fn after(self, later: Duration) -> Self {
        Self(self.0.saturating_add(Self::at(later).0))
    }

    /// From `earlier` to here; zero if it is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Nanoseconds since the device was opened.
    pub const fn nanos(self) -> u64 {
        self.0
    }
}
