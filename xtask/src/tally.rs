// SPDX-License-Identifier: MIT
//! How many tests passed, failed and were skipped, and the line that says so.

use std::fmt;
use std::iter::Sum;
use std::ops::AddAssign;

/// The counts of a run. Its text is the last line that every run prints:
/// `N passed, N failed, N skipped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests that ran and hold.
    pub passed: u64,
    /// Tests that ran and do not.
    pub failed: u64,
    /// Tests that could not run here. Never counted as passed.
    pub skipped: u64,
}

impl Tally {
    /// Reads the line, exactly as printed.
    pub fn parse(line: &str) -> Option<Self> {
        let mut parts = line.trim().split(", ");
        let mut count = |word: &str| -> Option<u64> {
            let (number, rest) = parts.next()?.split_once(' ')?;
            (rest == word).then(|| number.parse().ok())?
        };
        let tally = Self {
            passed: count("passed")?,
            failed: count("failed")?,
            skipped: count("skipped")?,
        };
        parts.next().is_none().then_some(tally)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            passed,
            failed,
            skipped,
        } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed = self.passed.saturating_add(other.passed);
        self.failed = self.failed.saturating_add(other.failed);
        self.skipped = self.skipped.saturating_add(other.skipped);
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |mut sum, tally| {
            sum += tally;
            sum
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_read_as_it_is_written() {
        let tally = Tally {
            passed: 12,
            failed: 0,
            skipped: 3,
        };
        assert_eq!(tally.to_string(), "12 passed, 0 failed, 3 skipped");
        assert_eq!(Tally::parse(&tally.to_string()), Some(tally));
        assert_eq!(
            Tally::parse("12 passed, 0 failed, 3 skipped\r"),
            Some(tally)
        );
    }

    #[test]
    fn other_lines_are_not_taken_for_it() {
        for line in [
            "",
            "12 passed",
            "12 passed, 0 failed",
            "12 passed, 0 failed, 3 skipped, 4 ignored",
            "12 failed, 0 passed, 3 skipped",
            "x passed, 0 failed, 3 skipped",
            "-1 passed, 0 failed, 3 skipped",
            "total: 12 passed, 0 failed, 3 skipped",
            "99999999999999999999999 passed, 0 failed, 3 skipped",
        ] {
            assert_eq!(Tally::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn sums_saturate() {
        let most = Tally {
            passed: u64::MAX,
            failed: 1,
            skipped: 0,
        };
        let sum: Tally = [most, most].into_iter().sum();
        assert_eq!((sum.passed, sum.failed), (u64::MAX, 2));
    }
}
