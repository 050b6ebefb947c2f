// SPDX-License-Identifier: MIT
//! When a wait ends.

use std::time::{Duration, Instant};

use crate::Deadlines;

/// Further away than any job lives: what a duration too long to add becomes.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The moment at which a wait gives up. One deadline is handed through all the
/// steps of an operation, so that the whole of it is bounded and not each step.
///
/// ```
/// use std::time::Duration;
/// use mscclpp_bootstrap::Deadline;
///
/// let whole = Deadline::after(Duration::from_secs(10));
/// let step = whole.at_most(Duration::from_secs(2));
/// assert!(step.remaining() <= Duration::from_secs(2) && !step.expired());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    start: Instant,
    at: Instant,
}

impl Deadline {
    /// A deadline `timeout` from now.
    #[must_use]
    pub fn after(timeout: Duration) -> Self {
        let start = Instant::now();
        let at = start
            .checked_add(timeout)
            .or_else(|| start.checked_add(FAR))
            .unwrap_or(start);
        Self { start, at }
    }

    /// The time that is left; zero once the deadline has passed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Whether the deadline has passed.
    #[must_use]
    pub fn expired(&self) -> bool {
        Instant::now() >= self.at
    }

    /// The moment itself.
    #[must_use]
    pub fn at(&self) -> Instant {
        self.at
    }

    /// The whole time that was granted, for error texts.
    #[must_use]
    pub fn budget(&self) -> Duration {
        self.at - self.start
    }

    /// The earlier of this deadline and one `timeout` from now.
    #[must_use]
    pub fn at_most(&self, timeout: Duration) -> Self {
        let other = Self::after(timeout);
        if other.at < self.at { other } else { *self }
    }
}

impl Default for Deadline {
    /// [`Deadlines::step`] from now, as the environment says.
    fn default() -> Self {
        Self::after(Deadlines::default().step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_counts_down_and_expires() {
        let soon = Deadline::after(Duration::ZERO);
        assert!(soon.expired());
        assert_eq!(soon.remaining(), Duration::ZERO);
        let later = Deadline::after(Duration::from_secs(60));
        assert!(!later.expired());
        assert!(later.remaining() > Duration::from_secs(59));
        assert_eq!(later.budget(), Duration::from_secs(60));
    }

    #[test]
    fn an_endless_duration_does_not_overflow() {
        assert!(Deadline::after(Duration::MAX).remaining() > Duration::from_secs(1 << 30));
    }

    #[test]
    fn at_most_shortens_and_never_lengthens() {
        let long = Deadline::after(Duration::from_secs(60));
        assert!(long.at_most(Duration::from_secs(1)).at() < long.at());
        let short = Deadline::after(Duration::from_millis(1));
        assert_eq!(short.at_most(Duration::from_secs(60)), short);
    }
}
