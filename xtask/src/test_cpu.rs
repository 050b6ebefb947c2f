// SPDX-License-Identifier: MIT
//! `cargo xtask test-cpu`: everything that needs no second process.

use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::launch::write_line;
use crate::loom;
use crate::sanitize::Sanitizer;
use crate::supervise::{Ending, Interrupt, Line, Stream};
use crate::tally::Tally;
use crate::test_output::{Shown, TestOutput};
use crate::weak::{self, Schedules};
use crate::workspace::{Package, Workspace, describe, run_merged};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct TestCpu {
    /// Only tests whose name holds this.
    pub filter: Option<String>,
    /// Only tests of these packages; none are all.
    pub packages: Vec<String>,
    /// What to build with.
    pub sanitize: Option<Sanitizer>,
    /// Only the device code's tests on weak memory, with so many seeds each.
    pub seeds: Option<u64>,
    /// For the whole run.
    pub timeout: Duration,
}

struct Progress<'a> {
    output: TestOutput,
    schedules: Schedules,
    started: Instant,
    deadline: Instant,
    interrupt: &'a Interrupt,
}

/// Runs the tests; the last line printed is the returned tally.
///
/// # Errors
///
/// When the tests cannot be run, there is no package of a name, the filter matches
/// none, or the user interrupts. Tests that fail are counted in the tally.
pub fn test_cpu(options: &TestCpu, interrupt: &Interrupt) -> Result<Tally> {
    let workspace = Workspace::load()?;
    let started = Instant::now();
    let mut progress = Progress {
        output: TestOutput::requiring(&required()),
        schedules: Schedules::default(),
        started,
        deadline: started + options.timeout,
        interrupt,
    };
    let filter = match (&options.filter, options.seeds) {
        (Some(filter), _) => Some(filter.as_str()),
        (None, seeds) => seeds.map(|_| weak::MARK),
    };

    let mut command = workspace.cargo();
    command.args(["test", "--no-fail-fast", "--color", "never"]);
    let left_out = left_out(&workspace, options)?;
    if let Some(seeds) = options.seeds {
        heading(&format!("device code on weak memory, {seeds} seeds a test"));
        command.env(weak::SEEDS, seeds.to_string());
        command.args(["--package", weak::PACKAGE, "--test", "device"]);
    } else {
        command.arg("--workspace");
        command.args(left_out.iter().flat_map(|package| ["--exclude", package]));
        command.args(workspace.test_features(&left_out));
    }
    if let Some(sanitizer) = options.sanitize {
        heading(&format!(
            "tests of crates with unsafe code, under {}",
            sanitizer.title()
        ));
        sanitizer.check_compiler()?;
        sanitizer.apply(&workspace, &mut command)?;
        command.args(["--lib", "--bins", "--tests"]);
    } else if options.seeds.is_none() {
        heading("tests of crates, and the examples in their documentation");
    }
    command.args(["--", "--show-output", "--color", "never"]);
    if options.sanitize == Some(Sanitizer::Thread) {
        // One test at a time: how the harness's own threads meet is not seen, because it comes
        // built without the sanitizer.
        command.args(["--test-threads", "1"]);
    }
    if let Some(sanitizer) = options.sanitize {
        let names = sanitizer.skipped_tests();
        command.args(names.iter().flat_map(|name| ["--skip", name]));
    }
    // After the second `--` a filter may begin with a dash.
    command.args(filter.map(|filter| ["--", filter]).into_iter().flatten());
    progress.run(command, "cargo test")?;

    let models = if options.sanitize.is_some() || options.seeds.is_some() {
        Vec::new()
    } else {
        loom::packages(&workspace)
    };
    let tested = |package: &&Package| !left_out.contains(&package.name.as_str());
    for package in models.into_iter().filter(tested) {
        let name = format!("{} (loom models)", package.name);
        heading(&name);
        match loom::command(&workspace, package, filter, interrupt) {
            Ok(Some(command)) => {
                progress.output.begin(&name);
                progress.run(command, &name)?;
            }
            Ok(None) => {}
            Err(error) => {
                eprintln!("error: {error:#}");
                progress.output.fail(format!("{name}: {error:#}"));
            }
        }
        if let Some(signal) = interrupt.signal() {
            bail!("stopped by signal {signal}");
        }
    }
    if options.seeds.is_some() {
        println!("{}", progress.schedules);
    }
    conclude(&progress.output, filter)
}

/// Members that are not tested.
fn left_out<'a>(workspace: &'a Workspace, options: &TestCpu) -> Result<Vec<&'a str>> {
    let names = || {
        workspace
            .packages
            .iter()
            .map(|package| package.name.as_str())
    };
    for wanted in &options.packages {
        if !names().any(|name| name == wanted) {
            let known: Vec<&str> = names().collect();
            bail!(
                "there is no package `{wanted}`: there are {}",
                known.join(", ")
            );
        }
    }
    Ok(match (options.packages.is_empty(), options.sanitize) {
        (false, _) => names()
            .filter(|name| !options.packages.iter().any(|wanted| wanted == name))
            .collect(),
        (true, Some(sanitizer)) => sanitizer.left_out(workspace),
        (true, None) => Vec::new(),
    })
}

/// What must be there, by the environment: CI says what it has installed, and
/// a test that is skipped all the same has failed.
pub(crate) fn required() -> Vec<String> {
    let list = std::env::var("MSCCLPP_CI_REQUIRE").unwrap_or_default();
    let words = list
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

fn heading(text: &str) {
    println!("== {text}");
}

impl Progress<'_> {
    fn run(&mut self, command: Command, name: &str) -> Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let (output, started) = (&mut self.output, self.started);
        let schedules = &mut self.schedules;
        let ending = run_merged(command, Some(left), self.interrupt, &mut |line| {
            schedules.line(&String::from_utf8_lossy(&line.bytes));
            show(output, line, started)
        })?;
        let problem = format!("{name}: {}", describe(&ending));
        match ending {
            Ending::Finished => self.output.finish(None),
            // A failed build, or a failure that no test is known for.
            Ending::Failed { .. } => self.output.finish(Some(problem)),
            Ending::Deadline { .. } => {
                self.output.finish(None);
                self.output.fail(problem);
            }
            Ending::Interrupted { .. } | Ending::Output(_) => bail!("{problem}"),
        }
        Ok(())
    }
}

fn show(output: &mut TestOutput, line: &Line, started: Instant) -> io::Result<()> {
    let text = String::from_utf8_lossy(&line.bytes);
    match output.line(&text) {
        Shown::No => return Ok(()),
        Shown::Yes => write_line(Stream::Out, "", &line.bytes)?,
        Shown::Start => {
            let prefix = format!("-- {}: ", output.binary());
            write_line(Stream::Out, &prefix, &line.bytes)?;
        }
        Shown::Progress => {
            write_line(Stream::Out, "", &line.bytes)?;
            let note = format!(
                "   so far: {} ({} s)\n",
                output.tally(),
                started.elapsed().as_secs()
            );
            write_line(Stream::Out, "", note.as_bytes())?;
        }
    }
    Ok(())
}

fn conclude(output: &TestOutput, filter: Option<&str>) -> Result<Tally> {
    let tally = output.tally();
    println!();
    for skip in output.skips() {
        println!("skipped {}: {}", skip.name, skip.reason);
    }
    for failure in output.failures() {
        println!("FAILED {failure}");
    }
    if let Some(filter) = filter {
        let matched = tally.passed + tally.failed + tally.skipped;
        if matched == 0 {
            bail!("no test's name holds {filter:?}");
        }
        let binaries = output.binaries();
        println!("{filter:?} matched {matched} of the tests, in test binaries: {binaries}");
    }
    println!("{tally}");
    Ok(tally)
}
