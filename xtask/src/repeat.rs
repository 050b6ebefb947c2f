// SPDX-License-Identifier: MIT
//! `cargo xtask test-mp --repeat N`: the suite again and again, to find what fails now and then.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs;
use std::hint;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use signal_hook::consts::SIGTERM;

use crate::launch::{Launch, LaunchError, write_line};
use crate::rank_output::LastLine;
use crate::supervise::{Interrupt, Line, Stream};
use crate::tally::Tally;
use crate::test_mp::{TestMp, conclude};

/// Lines of a run that are kept for its log.
const KEPT: usize = 20_000;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Repeat {
    /// How many runs.
    pub runs: usize,
    /// How many of them at a time.
    pub jobs: usize,
    /// Threads that keep a core each busy meanwhile.
    pub busy: usize,
}

/// How one run ended.
struct Outcome {
    number: usize,
    took: Duration,
    /// Of the ranks.
    result: Result<(), LaunchError>,
    /// Of the suite.
    reported: Option<Tally>,
    failures: Failures,
    log: VecDeque<String>,
}

/// What the suite says of tests that failed.
#[derive(Default)]
struct Failures {
    /// Their names.
    rows: Vec<String>,
    /// What ranks say of them, line by line.
    reasons: Vec<String>,
    /// Whether the lines that come are such.
    within: bool,
}

/// The counts of all runs that ended.
#[derive(Default)]
struct Total {
    runs: usize,
    failed: usize,
    /// How often each test failed.
    rows: BTreeMap<String, usize>,
    tests: Tally,
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} runs, {} failed", self.runs, self.failed)
    }
}

/// Runs `suite` as often as asked for, by the local launcher; prints a line a run, the total, and
/// last the returned tally of the tests of all runs.
///
/// What the ranks of a failed run printed is written to a file below `logs`.
///
/// # Errors
///
/// When ranks cannot be started, a log cannot be written, or the user interrupts. Runs that fail
/// are counted.
pub fn repeat(
    suite: &Path,
    options: &TestMp,
    repeat: Repeat,
    logs: &Path,
    interrupt: &Interrupt,
) -> Result<Tally> {
    let Repeat { runs, jobs, busy } = repeat;
    let logs = logs.join(format!("repeat.{}", std::process::id()));
    println!(
        "== {runs} runs of {} ranks by the local launcher, {jobs} at a time, {busy} cores kept busy",
        options.ranks
    );
    let next = AtomicUsize::new(1);
    let over = AtomicBool::new(false);
    let (done, outcomes) = mpsc::channel();
    let mut total = Total::default();
    let result = thread::scope(|scope| {
        for _ in 0..busy {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        for _ in 0..jobs.min(runs) {
            let (done, next, over) = (done.clone(), &next, &over);
            scope.spawn(move || {
                // Who fails to take an outcome has set `over`.
                while !over.load(Ordering::Relaxed) && interrupt.signal().is_none() {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number > runs || done.send(run(number, suite, options, interrupt)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        let result = outcomes
            .iter()
            .try_for_each(|outcome| total.add(outcome, &logs));
        if result.is_err() {
            // Runs under way are of no use.
            interrupt.raise(SIGTERM);
        }
        over.store(true, Ordering::Relaxed);
        result
    });
    println!();
    for (row, times) in &total.rows {
        println!("FAILED {times} of {} runs: {row}", total.runs);
    }
    println!("{total}");
    result?;
    if let Some(signal) = interrupt.signal() {
        bail!("stopped by signal {signal}");
    }
    println!("{}", total.tests);
    Ok(total.tests)
}

fn run(number: usize, suite: &Path, options: &TestMp, interrupt: &Interrupt) -> Outcome {
    let started = Instant::now();
    let mut last = LastLine::default();
    let (mut failures, mut log) = (Failures::default(), VecDeque::new());
    let result = Launch::new(options.ranks, suite)
        .args(options.suite_args())
        .timeout(options.timeout)
        .run(interrupt, &mut |line| {
            if line.index == 0 && line.stream == Stream::Out {
                last.keep(line);
                failures.line(&String::from_utf8_lossy(&line.bytes));
            }
            keep(&mut log, line);
            Ok(())
        });
    Outcome {
        number,
        took: started.elapsed(),
        result,
        reported: last.0,
        failures,
        log,
    }
}

impl Failures {
    fn line(&mut self, line: &str) {
        if let Some(row) = failed_row(line) {
            self.rows.push(row);
            self.within = true;
        } else if self.within && line.starts_with("     ") {
            self.reasons.push(line.trim_end().to_owned());
        } else {
            self.within = false;
        }
    }
}

/// The name in a line `FAIL name (N ms)`.
fn failed_row(line: &str) -> Option<String> {
    let (name, _) = line.strip_prefix("FAIL ")?.rsplit_once(" (")?;
    Some(name.to_owned())
}

fn keep(log: &mut VecDeque<String>, line: &Line) {
    if log.len() == KEPT {
        log.pop_front();
    }
    let text = String::from_utf8_lossy(&line.bytes);
    log.push_back(format!("[{}] {text}\n", line.index));
}

impl Total {
    fn add(&mut self, outcome: Outcome, logs: &Path) -> Result<()> {
        let Outcome { number, took, .. } = outcome;
        let problem = match outcome.result {
            Ok(()) => None,
            Err(error @ (LaunchError::Rank { .. } | LaunchError::Deadline { .. })) => {
                Some(error.to_string())
            }
            // A run that the user stopped is no run.
            Err(LaunchError::Interrupted { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let tally = conclude(outcome.reported, problem.clone());
        self.runs += 1;
        self.tests += tally;
        let seconds = took.as_secs_f64();
        if tally.failed == 0 {
            return say(&format!("run {number}: ok, {tally} ({seconds:.1} s)"));
        }
        self.failed += 1;
        let Failures {
            mut rows, reasons, ..
        } = outcome.failures;
        if rows.is_empty() {
            rows.push(problem.unwrap_or_else(|| "no test, but the suite".to_owned()));
        }
        let log = write(logs, number, &outcome.log)
            .with_context(|| format!("the log of run {number}"))?;
        let names = rows.join(", ");
        for row in rows {
            *self.rows.entry(row).or_default() += 1;
        }
        say(&format!(
            "run {number}: FAILED, {tally} ({seconds:.1} s): {names}; see {}",
            log.display()
        ))?;
        reasons.iter().try_for_each(|reason| say(reason))
    }
}

fn say(line: &str) -> Result<()> {
    write_line(Stream::Out, "", line.as_bytes()).context("nobody reads the output")
}

fn write(logs: &Path, number: usize, log: &VecDeque<String>) -> io::Result<PathBuf> {
    fs::create_dir_all(logs)?;
    let path = logs.join(format!("run-{number}.log"));
    fs::write(&path, log.iter().map(String::as_str).collect::<String>())?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_say_of_a_failed_test_is_kept() {
        let mut failures = Failures::default();
        let said = "PASS A.A (1 ms)\n     12 us\nFAIL A.B (3 ms)\n     rank 1: it is 3\n     not 4\n\
                    PASS A.C (2 ms)\n     7 us\n";
        said.lines().for_each(|line| failures.line(line));
        assert_eq!(failures.rows, ["A.B"]);
        assert_eq!(failures.reasons, ["     rank 1: it is 3", "     not 4"]);
    }

    #[test]
    fn a_failed_test_is_named_as_the_suite_has_it() {
        let row = failed_row("FAIL FlushTest.Deep[proxy-ethernet] (12 ms)");
        assert_eq!(row.as_deref(), Some("FlushTest.Deep[proxy-ethernet]"));
        for line in ["PASS A.B (1 ms)", "     rank 1: FAIL x (1)", "FAIL"] {
            assert_eq!(failed_row(line), None, "{line}");
        }
    }
}
