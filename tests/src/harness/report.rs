// SPDX-License-Identifier: MIT
//! What rank 0 prints.

use std::sync::Arc;
use std::time::Duration;

use super::context::Measurement;
use super::options::Options;
use super::test::{Test, Verdict};

/// Counts on every rank, prints on one.
#[derive(Debug, Default)]
pub struct Report {
    prints: bool,
    passed: usize,
    failed: usize,
    skipped: usize,
    /// Something went wrong that no test counts.
    lost: bool,
}

impl Report {
    /// An empty report.
    pub(super) fn new(prints: bool) -> Self {
        Self {
            prints,
            ..Self::default()
        }
    }

    /// Adds a test that all ranks agree on.
    pub(super) fn add(
        &mut self,
        name: &str,
        verdict: &Verdict,
        took: Duration,
        figures: &[Measurement],
    ) {
        let ms = took.as_millis();
        match verdict {
            Verdict::Pass => {
                self.passed += 1;
                self.print(&format!("PASS {name} ({ms} ms)"));
            }
            Verdict::Skip(reason) => {
                self.skipped += 1;
                self.print(&format!("SKIP {name}: {reason}"));
            }
            Verdict::Fail { ranks, .. } => {
                self.failed += 1;
                self.print(&format!("FAIL {name} ({ms} ms)"));
                for (rank, text) in ranks {
                    self.print(&format!("     rank {rank}: {text}"));
                }
            }
        }
        for Measurement { label, value, unit } in figures {
            self.print(&format!("     {label}: {value:.3} {unit}"));
        }
    }

    /// Names tests that a hung one kept from running.
    pub(super) fn not_run(&mut self, tests: &[Arc<Test>]) {
        for test in tests {
            self.print(&format!("NOT RUN {}", test.name));
        }
    }

    /// This rank lost the others in the midst of a test.
    pub(super) fn lost(&mut self, name: &str, error: &anyhow::Error) {
        eprintln!("{name}: {error:#}");
        self.lost = true;
    }

    /// The command line selects no test: a typing error, more likely than a wish.
    pub(super) fn nothing_selected(&mut self, options: &Options) {
        if self.prints {
            eprintln!("no test is selected by {}", options.selection());
        }
        self.lost = true;
    }

    /// Whether the run is a failure.
    pub fn failed(&self) -> bool {
        self.failed > 0 || self.lost
    }

    /// The last line.
    pub(super) fn summary(&self) {
        self.print(&self.last_line());
    }

    /// The tally.
    pub(super) fn last_line(&self) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }

    fn print(&self, line: &str) {
        if self.prints {
            println!("{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_not_counted_as_a_pass() {
        let mut report = Report::new(false);
        report.add("A.B", &Verdict::Pass, Duration::ZERO, &[]);
        report.add("A.C", &Verdict::Skip("no NIC".into()), Duration::ZERO, &[]);
        assert_eq!(report.last_line(), "1 passed, 0 failed, 1 skipped");
        assert!(!report.failed());
        let fail = Verdict::Fail {
            ranks: vec![(1, "x".into())],
            go_on: true,
        };
        report.add("A.D", &fail, Duration::ZERO, &[]);
        assert_eq!(report.last_line(), "1 passed, 1 failed, 1 skipped");
        assert!(report.failed());
    }
}
