// SPDX-License-Identifier: MIT
//! `cargo xtask test-rxe`: everything that needs an RDMA device.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::guest::{Done, Job, Machine, Network};
use super::{RxeError, required};
use crate::launch::write_line;
use crate::supervise::{Ending, Interrupt, Line, Stream};
use crate::tally::Tally;
use crate::test_mp::{Profile, build_suite};
use crate::test_output::{Shown, Skip, TestOutput};
use crate::workspace::{Package, Workspace, describe, run_merged};

/// Test programs of this name, of any crate, run in a guest.
const PROGRAM: &str = "rxe";
/// The tests of the launcher, a test program of this package, run on this machine.
const LAUNCHER: (&str, &str) = ("xtask", "guest");
/// Backends of the suite that need an RDMA device.
const BACKEND: &str = "proxy-ib";
/// How many ranks the suite has. Tests that need no more than in an earlier run are not run again.
const RANKS: [usize; 2] = [2, 4];
/// A skip that says one of these cannot be right in a guest.
const NEEDLESS: [&str; 2] = ["no RDMA device", "not in the Soft-RoCE guest"];
/// Between the end of what runs in a guest and that of the guest.
const MARGIN: Duration = Duration::from_secs(15);

/// What is asked for.
#[derive(Clone, Debug)]
pub struct TestRxe {
    /// Only tests whose name holds this.
    pub filter: Option<String>,
    /// The suite with so many ranks only.
    pub ranks: Option<usize>,
    /// For the whole run, after the builds.
    pub timeout: Duration,
}

struct Runner<'a> {
    /// This program, which runs in guests too. Asked for early: cargo may replace it.
    this: PathBuf,
    machine: Machine,
    workspace: Workspace,
    options: &'a TestRxe,
    deadline: Instant,
    interrupt: &'a Interrupt,
    tally: Tally,
    failures: Vec<String>,
}

/// Runs the tests; the last line printed is the returned tally.
///
/// # Errors
///
/// When the tests cannot be built or started, the filter matches none, or the user interrupts. Tests
/// and guests that fail are counted in the tally.
pub fn test_rxe(options: &TestRxe, interrupt: &Interrupt) -> Result<Tally> {
    let this = std::env::current_exe().context("where this program is")?;
    let workspace = Workspace::load()?;
    let machine = match Machine::prepare(&workspace.target, interrupt) {
        Ok(machine) => machine,
        Err(error) if !required() && error.is::<RxeError>() => {
            println!("SKIP test-rxe: {error:#}");
            let tally = Tally {
                skipped: 1,
                ..Tally::default()
            };
            println!("{tally}");
            return Ok(tally);
        }
        Err(error) => return Err(error),
    };
    let suite = build_suite(None, false, interrupt)?;
    let programs = build_programs(&workspace, interrupt)?;
    let mut runner = Runner {
        this,
        machine,
        workspace,
        options,
        deadline: Instant::now() + options.timeout,
        interrupt,
        tally: Tally::default(),
        failures: Vec::new(),
    };
    println!("== guests with Linux {}", runner.machine.kernel());
    runner.launcher()?;
    for (name, program) in &programs {
        runner.program(name, program)?;
    }
    for ranks in RANKS
        .into_iter()
        .filter(|n| options.ranks.is_none_or(|only| only == *n))
    {
        runner.suite(&suite, ranks)?;
    }
    runner.conclude()
}

/// Builds the test programs for guests; a name and a path for each.
fn build_programs(workspace: &Workspace, interrupt: &Interrupt) -> Result<Vec<(String, PathBuf)>> {
    let has = |package: &&Package| package.has_test(PROGRAM);
    let build = |package: &Package| {
        let name = package.name.as_str();
        let features = workspace.test_features_of(package).join(",");
        let args = [
            "test",
            "--no-run",
            "--package",
            name,
            "--test",
            PROGRAM,
            "--features",
            &features,
        ];
        let program = Workspace::build(workspace.cargo(), &args, interrupt)?;
        Ok((format!("{name} ({PROGRAM})"), program))
    };
    workspace.packages.iter().filter(has).map(build).collect()
}

impl Runner<'_> {
    /// The tests of the launcher, which start guests themselves.
    fn launcher(&mut self) -> Result<()> {
        let (package, test) = LAUNCHER;
        heading("the guest's launcher");
        let mut command = self.workspace.cargo();
        command.args([
            "test",
            "--package",
            package,
            "--test",
            test,
            "--color",
            "never",
            "--",
        ]);
        command.args(["--include-ignored", "--test-threads=1", "--show-output"]);
        command.args(&self.options.filter);
        let mut output = TestOutput::requiring(&words());
        let left = self.left();
        let ending = run_merged(command, Some(left), self.interrupt, &mut |line| {
            show(&mut output, line)
        })?;
        let problem = format!("{package}: {}", describe(&ending));
        match ending {
            Ending::Finished => output.finish(None),
            Ending::Failed { .. } | Ending::Deadline { .. } => output.finish(Some(problem)),
            Ending::Interrupted { .. } | Ending::Output(_) => bail!("{problem}"),
        }
        self.take(&output);
        Ok(())
    }

    /// A test program of a crate.
    fn program(&mut self, name: &str, program: &PathBuf) -> Result<()> {
        heading(name);
        let mut command: Vec<OsString> = vec![program.into()];
        command.extend(["--test-threads=1", "--show-output"].map(Into::into));
        command.extend(self.options.filter.iter().map(Into::into));
        let mut output = TestOutput::requiring(&words());
        output.begin(name);
        let result = self.guest(command, &mut |line| show(&mut output, line))?;
        let problem = match &result {
            Ok(done) => failed(done.status),
            Err(problem) => Some(problem.clone()),
        };
        output.finish(problem.map(|problem| format!("{name}: {problem}")));
        let ran = output.binaries() > 0;
        self.take(&output);
        if ran && let Ok(done) = result {
            self.nothing_left(name, &done);
        }
        Ok(())
    }

    /// The conformance suite.
    fn suite(&mut self, suite: &PathBuf, ranks: usize) -> Result<()> {
        let name = format!("the suite, {ranks} ranks");
        let mut words: Vec<OsString> = vec![format!("--backend={BACKEND}").into()];
        words.extend(
            self.options
                .filter
                .iter()
                .map(|text| format!("--filter={text}").into()),
        );
        // What emulated cores measure is for the benchmark, beside a reference.
        words.push("--exclude-perf-tests".into());
        let fewer = RANKS.into_iter().take_while(|fewer| *fewer < ranks).last();
        if let Some(fewer) = fewer.filter(|_| self.options.ranks.is_none()) {
            words.push(format!("--ranks-above={fewer}").into());
        }
        let list = Command::new(suite).args(&words).arg("--list").output();
        let list = list.with_context(|| format!("cannot start {}", suite.display()))?;
        if list.stdout.is_empty() {
            println!("== {name}: no test of {BACKEND} is selected");
            return Ok(());
        }
        heading(&name);
        let mut command: Vec<OsString> = vec![self.this.clone().into()];
        let limit = self.left().saturating_sub(MARGIN).as_secs().max(1);
        command.extend(
            [
                "test-mp",
                "--launcher=mpirun",
                &format!("--profile={}", Profile::Quick.name()),
                &format!("--timeout={limit}"),
                &format!("-n{ranks}"),
            ]
            .map(Into::into),
        );
        command.extend(words);
        command.push("--program".into());
        command.push(suite.into());
        let (mut tally, mut needless) = (None, Vec::new());
        let result = self.guest(command, &mut |line| {
            let text = String::from_utf8_lossy(&line.bytes);
            if let Some(last) = Tally::parse(&text) {
                tally = Some(last);
                return Ok(());
            }
            if let Some(skip) = Skip::parse(&text)
                && NEEDLESS.iter().any(|words| skip.reason.contains(words))
            {
                needless.push(format!("{}: skipped: {}", skip.name, skip.reason));
            }
            write_line(Stream::Out, "", &line.bytes)
        })?;
        let mut tally = tally.unwrap_or_default();
        // The suite counts them as skipped.
        let count = u64::try_from(needless.len())?;
        tally.skipped = tally.skipped.saturating_sub(count);
        tally.failed += count;
        self.failures.extend(needless);
        let problem = match &result {
            Ok(done) => failed(done.status),
            Err(problem) => Some(problem.clone()),
        };
        if let Some(problem) = problem {
            tally.failed = tally.failed.max(1);
            self.failures.push(format!("{name}: {problem}"));
        }
        self.tally += tally;
        if let Ok(done) = result {
            self.nothing_left(&name, &done);
        }
        Ok(())
    }

    /// Runs a command in a guest; what went wrong, in words, unless it came to its end.
    fn guest(
        &self,
        command: Vec<OsString>,
        on_line: &mut dyn FnMut(&Line) -> io::Result<()>,
    ) -> Result<Result<Done, String>> {
        let job = Job {
            network: Network::Two,
            command,
            environment: Vec::new(),
            timeout: self.left(),
        };
        match self.machine.run(&job, self.interrupt, on_line) {
            Ok(done) => Ok(Ok(done)),
            Err(error) if error.is::<RxeError>() => Ok(Err(format!("{error:#}"))),
            Err(error) => Err(error),
        }
    }

    /// A test of its own: the kernel has as many verbs objects as before.
    fn nothing_left(&mut self, name: &str, done: &Done) {
        match &done.left {
            None => {
                println!("PASS {name}: no verbs object is left");
                self.tally.passed += 1;
            }
            Some(left) => {
                println!("FAIL {name}: verbs objects are left\n{left}");
                self.failures
                    .push(format!("{name}: verbs objects are left"));
                self.tally.failed += 1;
            }
        }
    }

    fn take(&mut self, output: &TestOutput) {
        self.tally += output.tally();
        self.failures.extend_from_slice(output.failures());
    }

    /// The time that is left, but enough for a guest to say that there is none.
    fn left(&self) -> Duration {
        let left = self.deadline.saturating_duration_since(Instant::now());
        left.max(Duration::from_secs(1))
    }

    fn conclude(self) -> Result<Tally> {
        let Self {
            tally,
            failures,
            options,
            ..
        } = self;
        println!();
        for failure in failures {
            println!("FAILED {failure}");
        }
        if tally == Tally::default() {
            let filter = options.filter.as_deref().unwrap_or_default();
            bail!("no test's name holds {filter:?}");
        }
        println!("{tally}");
        Ok(tally)
    }
}

fn words() -> Vec<String> {
    NEEDLESS.map(str::to_owned).into()
}

fn heading(text: &str) {
    println!("\n== {text}");
}

fn failed(status: ExitStatus) -> Option<String> {
    (!status.success()).then(|| status.to_string())
}

fn show(output: &mut TestOutput, line: &Line) -> io::Result<()> {
    match output.line(&String::from_utf8_lossy(&line.bytes)) {
        Shown::No => Ok(()),
        Shown::Yes | Shown::Start | Shown::Progress => write_line(Stream::Out, "", &line.bytes),
    }
}
