// SPDX-License-Identifier: MIT
//! One target under libFuzzer.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Target;
use crate::supervise::{Ending, Interrupt};
use crate::workspace::{describe, run_merged};

/// The longest input; all records and frames that are decoded whole are shorter or have small parts.
const LONGEST_INPUT: usize = 4096;
/// One input may take so long, on a machine that does other things too.
const INPUT_SECONDS: u32 = 30;
/// More memory than any target has, its corpus included.
const MEMORY_MIB: u32 = 1024;
/// How often a line of progress is printed.
const PROGRESS_EVERY: Duration = Duration::from_secs(30);
/// A target that does not end by itself so long after its time is stopped.
const PATIENCE: Duration = Duration::from_secs(120);
/// Lines that are kept of what a failed target says.
const KEPT: usize = 60;

/// What became of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing was found.
    Clean,
    /// An input that must not be, or another failure.
    Found {
        /// The input, if there is one.
        input: Option<PathBuf>,
        /// What the target said.
        said: String,
    },
}

/// A target that ran.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub(super) name: String,
    pub(super) outcome: Outcome,
    executions: u64,
    took: Duration,
    corpus: usize,
}

impl Ran {
    pub(super) fn heading() -> String {
        format!(
            "{:<70} {:>8} {:>12} {:>9} {:>7}  outcome",
            "target", "seconds", "executions", "per s", "corpus"
        )
    }

    pub(super) fn line(&self) -> String {
        let outcome = match self.outcome {
            Outcome::Clean => "nothing found",
            Outcome::Found { .. } => "FOUND",
        };
        let seconds = self.took.as_secs_f64();
        format!(
            "{:<70} {seconds:>8.0} {:>12} {:>9.0} {:>7}  {outcome}",
            self.name,
            self.executions,
            self.executions as f64 / seconds.max(0.001),
            self.corpus
        )
    }
}

/// Fuzzes one target for `time`, beginning with the corpus of earlier runs.
///
/// # Errors
///
/// When it cannot be started.
pub(super) fn run(
    target: &Target,
    time: Duration,
    home: &Path,
    interrupt: &Interrupt,
    say: &dyn Fn(&str) -> io::Result<()>,
) -> Result<Ran> {
    // Names relative to this one: libFuzzer's arguments are separated by spaces.
    let (corpus, found) = ("corpus", "found-");
    let directory = home.join("targets").join(target.directory());
    let inputs = directory.join(corpus);
    fs::create_dir_all(&inputs).with_context(|| format!("cannot make {}", inputs.display()))?;
    let before = crashes(&directory, found)?;
    let arguments = format!(
        "{corpus} -max_total_time={} -artifact_prefix={found} -print_final_stats=1 \
         -max_len={LONGEST_INPUT} -timeout={INPUT_SECONDS} -rss_limit_mb={MEMORY_MIB} \
         -use_value_profile=1 -len_control=10",
        time.as_secs()
    );
    let mut command = Command::new(&target.program);
    command
        .current_dir(&directory)
        .env("BOLERO_LIBFUZZER_ARGS", arguments)
        .args(["--exact", &target.test, "--nocapture", "--test-threads=1"]);
    let mut log = Log::default();
    let started = Instant::now();
    let mut told = started;
    let ending = run_merged(command, Some(time + PATIENCE), interrupt, &mut |line| {
        log.line(&String::from_utf8_lossy(&line.bytes));
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            let seconds = started.elapsed().as_secs();
            say(&format!("   {}: {} ({seconds} s)", target.name, log.last()))?;
        }
        Ok(())
    })?;
    let new = crashes(&directory, found)?;
    let input = new.into_iter().find(|path| !before.contains(path));
    let outcome = match (&ending, input) {
        // Without the last line of statistics it was no run of libFuzzer at all.
        (Ending::Finished, None) if log.executions.is_some() => Outcome::Clean,
        (Ending::Interrupted { .. }, None) => Outcome::Clean,
        (ending, input) => Outcome::Found {
            input,
            said: format!("{}\n{}", log.lines.join("\n"), describe(ending)),
        },
    };
    Ok(Ran {
        name: target.name.clone(),
        outcome,
        executions: log.executions.unwrap_or(log.seen),
        took: started.elapsed(),
        corpus: fs::read_dir(&inputs)?.count(),
    })
}

/// Inputs that were kept because they failed.
fn crashes(directory: &Path, prefix: &str) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

/// What libFuzzer says.
#[derive(Debug, Default)]
struct Log {
    /// The end of it.
    lines: Vec<String>,
    /// Executions, by the last line of progress.
    seen: u64,
    /// Executions, by the statistics at the end.
    executions: Option<u64>,
}

impl Log {
    fn line(&mut self, line: &str) {
        if let Some(count) = line.strip_prefix("stat::number_of_executed_units:") {
            self.executions = count.trim().parse().ok();
        }
        if let Some(count) = progress(line) {
            self.seen = count;
        }
        if self.lines.len() == KEPT {
            self.lines.remove(0);
        }
        self.lines.push(line.to_owned());
    }

    fn last(&self) -> &str {
        let mut lines = self.lines.iter().rev();
        let last = lines.find(|line| progress(line).is_some());
        last.map_or("no progress yet", |line| line.trim())
    }
}

/// The count of a line such as `#1024 pulse cov: 17 ...`.
fn progress(line: &str) -> Option<u64> {
    let digits = line.strip_prefix('#')?;
    let end = digits.find(|c: char| !c.is_ascii_digit())?;
    digits[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_libfuzzer() {
        let mut log = Log::default();
        log.line("INFO: Running with entropic power schedule");
        assert_eq!(log.last(), "no progress yet");
        log.line("#1024\tpulse  cov: 17 ft: 20 corp: 3/9b exec/s: 512 rss: 30Mb");
        assert_eq!((log.seen, log.executions), (1024, None));
        log.line("test x ... ok");
        assert!(log.last().starts_with("#1024"));
        log.line("stat::number_of_executed_units: 123456");
        assert_eq!(log.executions, Some(123_456));
    }

    #[test]
    fn only_the_end_of_what_is_said_is_kept() {
        let mut log = Log::default();
        for number in 0..KEPT + 5 {
            log.line(&number.to_string());
        }
        assert_eq!((log.lines.len(), log.lines[0].as_str()), (KEPT, "5"));
    }
}
