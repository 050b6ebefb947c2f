// SPDX-License-Identifier: MIT
//! Checks that print a line each, `PASS`, `SKIP` or `FAIL`, and a tally at the end.

use anyhow::{Result, bail};

use crate::tally::Tally;
use crate::test_cpu::required;

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Well, and what it says.
    Passed(String),
    /// It could not run here, and why.
    Skipped(String),
    /// What is wrong.
    Failed(String),
}

impl From<Result<()>> for Verdict {
    fn from(result: Result<()>) -> Self {
        match result {
            Ok(()) => Self::Passed(String::new()),
            Err(error) => Self::Failed(format!("{error:#}")),
        }
    }
}

/// All checks of a command.
#[derive(Debug)]
pub struct Verdicts {
    filter: Option<String>,
    /// Of which things a skip is a failure.
    required: Vec<String>,
    tally: Tally,
}

impl Verdicts {
    /// None yet. With a filter, those whose name holds it are wanted.
    pub fn new(filter: Option<String>) -> Self {
        Self {
            filter,
            required: required(),
            tally: Tally::default(),
        }
    }

    /// Whether a check is asked for.
    pub fn wants(&self, name: &str) -> bool {
        let filter = self.filter.as_deref();
        filter.is_none_or(|filter| name.contains(filter))
    }

    /// Counts one, and prints and returns its line.
    pub fn tell(&mut self, name: &str, verdict: Verdict) -> String {
        let (word, text) = match verdict {
            Verdict::Passed(text) => {
                self.tally.passed += 1;
                ("PASS", text)
            }
            Verdict::Skipped(reason) if self.must_run(name, &reason) => {
                self.tally.failed += 1;
                ("FAIL", format!("it has to run here: {reason}"))
            }
            Verdict::Skipped(reason) => {
                self.tally.skipped += 1;
                ("SKIP", reason)
            }
            Verdict::Failed(problem) => {
                self.tally.failed += 1;
                ("FAIL", problem)
            }
        };
        let colon = if text.is_empty() { "" } else { ": " };
        let line = format!("{word} {name}{colon}{text}");
        println!("{line}");
        line
    }

    fn must_run(&self, name: &str, reason: &str) -> bool {
        let text = format!("{name} {reason}").to_lowercase();
        (self.required.iter()).any(|word| text.contains(&word.to_lowercase()))
    }

    /// Prints the tally.
    ///
    /// # Errors
    ///
    /// When nothing was asked for.
    pub fn conclude(self) -> Result<Tally> {
        if self.tally == Tally::default() {
            bail!(
                "nothing has {:?} in its name",
                self.filter.unwrap_or_default()
            );
        }
        println!("{}", self.tally);
        Ok(self.tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_once_and_a_skip_that_must_run_is_a_failure() {
        let mut verdicts = Verdicts::new(Some("a".into()));
        verdicts.required = vec!["CMake".into()];
        assert!(verdicts.wants("cmake") && !verdicts.wants("x"));
        verdicts.tell("a", Verdict::Passed(String::new()));
        verdicts.tell("b", Verdict::Skipped("no GPU".into()));
        verdicts.tell("c", Verdict::Skipped("there is no cmake".into()));
        verdicts.tell("d", Err(anyhow::anyhow!("no")).into());
        let tally = verdicts.conclude().unwrap();
        assert_eq!((tally.passed, tally.failed, tally.skipped), (1, 2, 1));
        assert!(Verdicts::new(Some("nothing".into())).conclude().is_err());
    }
}
