// SPDX-License-Identifier: MIT
//! Reads what `cargo test -- --show-output` prints, line by line.
//!
//! Counts come from each binary's `test result:` line. A test that could not
//! run prints `SKIP <name>: <reason>` and returns, so the test harness calls it
//! ok; here it is taken out of the passes. A binary that ends without its
//! result line (a crash) is one failure, and so is one that fails after it, as
//! with a leak that a sanitizer finds at the end.

use std::collections::BTreeSet;

use crate::tally::Tally;

/// A test that could not run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// Its name, or that of the part of it that could not run.
    pub name: String,
    /// Why.
    pub reason: String,
}

impl Skip {
    /// Reads the line `SKIP <name>: <reason>`.
    pub fn parse(line: &str) -> Option<Self> {
        let (name, reason) = line.trim().strip_prefix("SKIP ")?.split_once(": ")?;
        (!name.is_empty() && !reason.trim().is_empty()).then(|| Self {
            name: name.to_owned(),
            reason: reason.trim().to_owned(),
        })
    }

    /// Whether `test` speaks of itself. The name may have a part of the test
    /// after a space. Text of this form that a test prints as another's, or
    /// makes for its own ends, is no skip.
    fn is_of(&self, test: Option<&str>) -> bool {
        let name = self.name.split(' ').next().unwrap_or_default();
        test.is_none_or(|test| test.ends_with(name))
    }
}

/// What a line is to a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Print it.
    Yes,
    /// Do not: it is noise, or the output of a test that passed.
    No,
    /// A binary starts: print which, and the line.
    Start,
    /// A binary is done: print the line and how far the run is.
    Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Tests,
    Successes,
    Failures,
}

/// A test binary between `running N tests` and `test result:`.
#[derive(Debug)]
struct Run {
    tests: u64,
    section: Section,
    /// The test whose output is being read.
    speaker: Option<String>,
    passed: u64,
    failed: BTreeSet<String>,
    skipped: BTreeSet<String>,
    /// Skipped, but for want of something that must be there.
    unwanted: BTreeSet<String>,
    /// So, by the harness itself, which calls them ignored.
    unwanted_ignored: u64,
}

impl Run {
    /// The counts, of which the test harness says that `passed` were ok.
    fn tally(&self, passed: u64, failed: u64, ignored: u64) -> Tally {
        let count = |set: &BTreeSet<String>| u64::try_from(set.len()).unwrap_or(u64::MAX);
        let skipped = count(&self.skipped).min(passed);
        let unwanted = count(&self.unwanted).min(passed - skipped);
        Tally {
            passed: passed - skipped - unwanted,
            failed: failed
                .saturating_add(unwanted)
                .saturating_add(self.unwanted_ignored),
            skipped: skipped.saturating_add(ignored.saturating_sub(self.unwanted_ignored)),
        }
    }
}

/// Everything read so far.
#[derive(Debug, Default)]
pub struct TestOutput {
    tally: Tally,
    /// Failures of earlier commands.
    failed_before: u64,
    failures: Vec<String>,
    skips: Vec<Skip>,
    binaries: u64,
    binary: String,
    run: Option<Run>,
    /// What the binary said that it lacks, and why.
    lacks: Vec<(String, String)>,
    required: Vec<String>,
}

impl TestOutput {
    /// Nothing read yet. A skip whose name or reason holds one of the words in
    /// `required`, in capitals or not, is a failure.
    pub fn requiring(required: &[String]) -> Self {
        Self {
            required: required.iter().map(|word| word.to_lowercase()).collect(),
            ..Self::default()
        }
    }

    /// Counts of the binaries that are done.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// What failed: `binary: test`, or a binary that ended too early.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// What could not run, and why.
    pub fn skips(&self) -> &[Skip] {
        &self.skips
    }

    /// The binary that runs.
    pub fn binary(&self) -> &str {
        &self.binary
    }

    /// Binaries (and sets of doc tests) that had tests to run.
    pub fn binaries(&self) -> u64 {
        self.binaries
    }

    /// Says that `binary` runs next.
    pub fn begin(&mut self, binary: &str) {
        self.close_early(None);
        self.lacks.clear();
        binary.clone_into(&mut self.binary);
    }

    /// Says that a command has ended. `problem` is why it failed, when it did:
    /// it counts as a failure if no test of the command has failed.
    pub fn finish(&mut self, problem: Option<String>) {
        self.close_early(None);
        if let Some(problem) = problem
            && self.tally.failed == self.failed_before
        {
            self.fail(problem);
        }
        self.failed_before = self.tally.failed;
        self.binary.clear();
    }

    /// Adds a failure that is no test's: a build that fails, a timeout.
    pub fn fail(&mut self, what: String) {
        self.tally.failed += 1;
        self.failures.push(what);
    }

    /// Reads the next line.
    pub fn line(&mut self, line: &str) -> Shown {
        if let Some(binary) = binary_name(line) {
            self.begin(&binary);
            return Shown::No;
        }
        if let Some(tests) = running(line) {
            self.close_early(None);
            return self.open(tests);
        }
        if let Some(status) = exit_status(line) {
            if self.run.is_some() {
                self.close_early(Some(status));
            } else if !self.binary.is_empty() {
                self.fail(format!("{}: {status}, after its tests", self.binary));
            }
            return Shown::Yes;
        }
        let Some(run) = &mut self.run else {
            // Before its tests, a binary may say what it skips tests for.
            if let Some((what, reason)) = line
                .strip_prefix("skipping ")
                .and_then(|rest| rest.split_once(": "))
            {
                self.lacks.push((what.to_lowercase(), reason.to_owned()));
            }
            // Else, what cargo says, and binaries without tests.
            let noise = line.trim().is_empty()
                || line == "successes:"
                || line.starts_with("test result: ok. 0 passed; 0");
            return if noise { Shown::No } else { Shown::Yes };
        };
        if let Some(counts) = result(line) {
            return self.close(counts);
        }
        match line {
            "successes:" => run.section = Section::Successes,
            "failures:" => run.section = Section::Failures,
            _ => {}
        }
        if let Some(name) = speaker(line) {
            run.speaker = Some(name.to_owned());
        }
        if run.section != Section::Failures
            && let Some(skip) = Skip::parse(line)
            && skip.is_of(run.speaker.as_deref())
        {
            let test = run.speaker.clone().unwrap_or_else(|| skip.name.clone());
            if is_required(&self.required, &skip) {
                run.skipped.remove(&test);
                if run.unwanted.insert(test) {
                    self.failures.push(unwanted(&skip));
                }
            } else if !run.unwanted.contains(&test) && run.skipped.insert(test) {
                self.skips.push(skip);
            }
            return Shown::Yes;
        }
        match run.section {
            Section::Tests => self.test_line(line),
            // Of what a test that passed has printed, how much it was.
            Section::Successes if is_count(line) => Shown::Yes,
            Section::Successes => Shown::No,
            Section::Failures => Shown::Yes,
        }
    }

    fn open(&mut self, tests: u64) -> Shown {
        if tests == 0 {
            return Shown::No;
        }
        self.binaries += 1;
        self.run = Some(Run {
            tests,
            section: Section::Tests,
            speaker: None,
            passed: 0,
            failed: BTreeSet::new(),
            skipped: BTreeSet::new(),
            unwanted: BTreeSet::new(),
            unwanted_ignored: 0,
        });
        Shown::Start
    }

    fn test_line(&mut self, line: &str) -> Shown {
        let Some(run) = &mut self.run else {
            return Shown::Yes;
        };
        let parts = line
            .strip_prefix("test ")
            .and_then(|rest| rest.rsplit_once(" ... "))
            // libtest-mimic pads names.
            .map(|(name, outcome)| (name.trim_end(), outcome));
        match parts {
            Some((_, outcome)) if outcome.starts_with("ok") => run.passed += 1,
            Some((name, outcome)) if outcome.starts_with("FAILED") => {
                run.failed.insert(name.to_owned());
            }
            Some((name, outcome)) => {
                if let Some(reason) = outcome.strip_prefix("ignored") {
                    let skip = ignored(name, reason, &self.lacks);
                    if is_required(&self.required, &skip) {
                        run.unwanted_ignored += 1;
                        self.failures.push(unwanted(&skip));
                    } else {
                        self.skips.push(skip);
                    }
                }
            }
            None if line.is_empty() => return Shown::No,
            None => {}
        }
        Shown::Yes
    }

    /// The result line came.
    fn close(&mut self, counts: Counts) -> Shown {
        let Some(run) = self.run.take() else {
            return Shown::Yes;
        };
        self.tally += run.tally(counts.passed, counts.failed, counts.ignored);
        let mut named = 0;
        for name in &run.failed {
            self.failures.push(format!("{}: {name}", self.binary));
            named += 1;
        }
        if named < counts.failed {
            let rest = counts.failed - named;
            self.failures
                .push(format!("{}: {rest} more, see above", self.binary));
        }
        Shown::Progress
    }

    /// The result line did not come, and why, if that is known.
    fn close_early(&mut self, status: Option<&str>) {
        let Some(run) = self.run.take() else {
            return;
        };
        let failed = u64::try_from(run.failed.len()).unwrap_or(u64::MAX);
        self.tally += run.tally(run.passed, failed, 0);
        for name in &run.failed {
            self.failures.push(format!("{}: {name}", self.binary));
        }
        let tests = run.tests;
        let why = status.map(|why| format!(": {why}")).unwrap_or_default();
        self.fail(format!(
            "{}: ended without a result ({tests} tests){why}",
            self.binary
        ));
    }
}

/// Whether it is `N <some> cases`.
fn is_count(line: &str) -> bool {
    let cases = line.strip_suffix(" cases");
    let number = cases.and_then(|rest| rest.split_once(' '));
    number.is_some_and(|(number, _)| number.parse::<u64>().is_ok())
}

/// `     Running unittests src/lib.rs (target/debug/deps/name-hash)` and
/// `   Doc-tests name`.
fn binary_name(line: &str) -> Option<String> {
    if let Some(name) = line.strip_prefix("   Doc-tests ") {
        return Some(format!("{} (doc tests)", name.trim()));
    }
    let (source, path) = line.strip_prefix("     Running ")?.rsplit_once(" (")?;
    let file = path.strip_suffix(')')?.rsplit('/').next()?;
    let name = file.rsplit_once('-').map_or(file, |(name, _)| name);
    Some(format!("{name} ({})", source.trim()))
}

/// What cargo says of a binary that ended otherwise than a test harness does:
/// `  process didn't exit successfully: `command` (exit status: 1)`.
fn exit_status(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("  process didn't exit successfully: `")?;
    let (_, status) = rest.rsplit_once("` (")?;
    status.trim_end().strip_suffix(')')
}

/// A test that the harness ignored, for a reason of its own or because its
/// name holds something that its binary said it lacks.
fn ignored(name: &str, reason: &str, lacks: &[(String, String)]) -> Skip {
    let lower = name.to_lowercase();
    let lack = lacks.iter().find(|(what, _)| lower.contains(what));
    let reason = match (reason.trim_start_matches([',', ' ']), lack) {
        ("", Some((_, reason))) => reason,
        ("", None) => "ignored",
        (reason, _) => reason,
    };
    Skip {
        name: name.to_owned(),
        reason: reason.to_owned(),
    }
}

fn is_required(required: &[String], skip: &Skip) -> bool {
    let text = format!("{} {}", skip.name, skip.reason).to_lowercase();
    required.iter().any(|word| text.contains(word))
}

fn unwanted(skip: &Skip) -> String {
    let Skip { name, reason } = skip;
    format!("{name}: skipped, but required: {reason}")
}

fn running(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("running ")?;
    let (number, word) = rest.split_once(' ')?;
    matches!(word, "test" | "tests").then(|| number.parse().ok())?
}

/// `---- name stdout ----`, or without `stdout` from libtest-mimic.
fn speaker(line: &str) -> Option<&str> {
    let name = line.strip_prefix("---- ")?.strip_suffix(" ----")?;
    Some(name.strip_suffix(" stdout").unwrap_or(name))
}

struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; …`
fn result(line: &str) -> Option<Counts> {
    let rest = line.strip_prefix("test result: ")?;
    let (_, counts) = rest.split_once(". ")?;
    let mut parts = counts.split("; ");
    let mut count = |word: &str| -> Option<u64> {
        let (number, rest) = parts.next()?.trim().split_once(' ')?;
        (rest == word).then(|| number.parse().ok())?
    };
    Some(Counts {
        passed: count("passed")?,
        failed: count("failed")?,
        ignored: count("ignored")?,
    })
}

#[cfg(test)]
#[path = "test_output_tests.rs"]
mod tests;
