// SPDX-License-Identifier: MIT
//! The device code's tests on weak memory, with as many seeds as wanted.

use std::fmt;

/// How many seeds each loop of these tests takes; they say what came of it in a line
/// `WEAK N seeds, M schedules`.
pub const SEEDS: &str = "MSCCLPP_WEAK_SEEDS";

/// The package that has them.
pub const PACKAGE: &str = "mscclpp-device";

/// What all of their names have in them.
pub const MARK: &str = "on_weak_memory";

/// What the tests of a run said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedules {
    loops: u64,
    fewest: u64,
    schedules: u64,
}

impl Schedules {
    /// Reads a line of output.
    pub fn line(&mut self, line: &str) {
        let Some((seeds, schedules)) = parse(line) else {
            return;
        };
        self.fewest = if self.loops == 0 {
            seeds
        } else {
            self.fewest.min(seeds)
        };
        self.loops += 1;
        self.schedules += schedules;
    }
}

fn parse(line: &str) -> Option<(u64, u64)> {
    let (seeds, rest) = line.strip_prefix("WEAK ")?.split_once(" seeds, ")?;
    let schedules = rest.trim_end().strip_suffix(" schedules")?;
    Some((seeds.parse().ok()?, schedules.parse().ok()?))
}

impl fmt::Display for Schedules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            loops,
            fewest,
            schedules,
        } = self;
        write!(
            f,
            "weak memory: {fewest} seeds in each of {loops} loops, {schedules} schedules"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_summed_and_others_are_not() {
        let mut sum = Schedules::default();
        for line in [
            "WEAK 1000 seeds, 24000 schedules",
            "WEAK 900 seeds, 900 schedules",
            "WEAK many seeds, 1 schedules",
            "test weak ... ok",
        ] {
            sum.line(line);
        }
        let text = "weak memory: 900 seeds in each of 2 loops, 24900 schedules";
        assert_eq!(sum.to_string(), text);
    }
}
