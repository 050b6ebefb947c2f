// SPDX-License-Identifier: MIT
//! The parts of a run, each with a log of its own.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::run::GpuRun;
use super::{BENCH, DOCTOR, Manifest, SUITE};
use crate::examples::launched;
use crate::launch::{Launch, LaunchError, find_program};
use crate::report::Report;
use crate::supervise::{Ending, Interrupt, Line, Stream};
use crate::tally::Tally;
use crate::test_output::{Shown, TestOutput};
use crate::verdict::{Verdict, Verdicts};
use crate::workspace::{describe, run_merged};

/// Streams that work at the same time must not share a queue of the GPU: a kernel that waits would
/// hold up what it waits for. The driver makes 8 queues unless told.
const QUEUES: (&str, &str) = ("CUDA_DEVICE_MAX_CONNECTIONS", "32");

/// The suite of the benchmark that measures what a post costs a GPU, with one process.
pub const POST: &str = "post";

/// What all parts know.
pub struct Parts<'a> {
    /// With the programs.
    pub directory: &'a Path,
    /// What is in it.
    pub manifest: &'a Manifest,
    /// How many GPUs there are.
    pub gpus: usize,
    /// What was asked for.
    pub options: &'a GpuRun,
    /// Ends everything.
    pub interrupt: &'a Interrupt,
}

/// A program and its arguments.
type Words = (OsString, Vec<OsString>);

impl Parts<'_> {
    /// A program of the packed directory.
    fn program(&self, name: &str, args: Vec<OsString>) -> Words {
        (self.directory.join(name).into(), args)
    }

    /// A log, to be gone on with.
    pub fn log(&self, name: &str) -> Result<File> {
        let path = self.options.out.join(format!("{name}.log"));
        let open = OpenOptions::new().create(true).append(true).open(&path);
        open.with_context(|| format!("cannot write {}", path.display()))
    }

    /// Runs one process and passes on its lines. What went wrong, unless it ended well.
    pub fn process(
        &self,
        mut command: Command,
        on_line: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> Result<Option<String>> {
        command.env(QUEUES.0, QUEUES.1);
        let limit = Some(self.options.timeout);
        let ending = run_merged(command, limit, self.interrupt, &mut |line| {
            on_line(&String::from_utf8_lossy(&line.bytes))
        })?;
        match ending {
            Ending::Finished => Ok(None),
            Ending::Failed { .. } | Ending::Deadline { .. } => Ok(Some(describe(&ending))),
            Ending::Interrupted { .. } | Ending::Output(_) => bail!("{}", describe(&ending)),
        }
    }

    /// Runs two ranks of a program. What went wrong, unless both ended well.
    fn ranks(
        &self,
        (program, args): Words,
        on_line: &mut dyn FnMut(&Line) -> io::Result<()>,
    ) -> Result<Option<String>> {
        let launch = Launch::new(2, program)
            .args(args)
            .env(QUEUES.0, QUEUES.1)
            .timeout(self.options.timeout);
        match launch.run(self.interrupt, on_line) {
            Ok(()) => Ok(None),
            Err(error @ (LaunchError::Rank { .. } | LaunchError::Deadline { .. })) => {
                Ok(Some(error.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// What the machine has of what channels need, in `doctor.txt`.
///
/// # Errors
///
/// When it cannot be started, or the file cannot be written.
pub fn doctor(parts: &Parts<'_>) -> Result<()> {
    let path = parts.options.out.join("doctor.txt");
    let mut page =
        File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let command = Command::new(parts.directory.join(DOCTOR));
    // Its status says which backends work, which is no failure of the run's.
    parts.process(command, &mut |line| writeln!(page, "{line}"))?;
    Ok(())
}

/// Runs the test programs, one after the other.
///
/// # Errors
///
/// When one cannot be started, or the log cannot be written.
pub fn tests(parts: &Parts<'_>) -> Result<Tally> {
    let mut log = parts.log("tests")?;
    let mut output = TestOutput::requiring(&[]);
    for name in &parts.manifest.tests {
        let mut command = Command::new(parts.directory.join(name));
        command.args(&parts.options.filter).arg("--test-threads=1");
        output.begin(name);
        println!("-- {name}");
        writeln!(log, "-- {name}")?;
        let problem = parts.process(command, &mut |line| {
            writeln!(log, "{line}")?;
            if !matches!(output.line(line), Shown::No) {
                println!("{line}");
            }
            Ok(())
        })?;
        output.finish(problem.map(|problem| format!("{name}: {problem}")));
    }
    for failure in output.failures() {
        println!("FAILED {failure}");
        writeln!(log, "FAILED {failure}")?;
    }
    Ok(output.tally())
}

/// Runs the examples that have a kernel for GPUs, with a GPU for each rank.
///
/// # Errors
///
/// As [`tests`].
pub fn examples(parts: &Parts<'_>) -> Result<Tally> {
    let mut log = parts.log("examples")?;
    let mut verdicts = Verdicts::new(parts.options.filter.clone());
    for run in &parts.manifest.examples {
        let name = run.name();
        if !verdicts.wants(&name) {
            continue;
        }
        let verdict = if run.ranks > parts.gpus {
            Verdict::Skipped(format!("{} ranks, and {} GPUs", run.ranks, parts.gpus))
        } else {
            let job = Launch::new(run.ranks, parts.directory.join(&run.package))
                .args(&run.args)
                .env(QUEUES.0, QUEUES.1)
                .timeout(parts.options.timeout);
            launched(job, run.ranks, parts.interrupt)?
        };
        writeln!(log, "{}", verdicts.tell(&name, verdict))?;
    }
    verdicts.conclude()
}

/// What is seen of the suite: its tests as they end, counted here too, because a run that is stopped
/// has no last line.
#[derive(Default)]
struct Seen {
    counted: Tally,
    last: Option<Tally>,
    /// Whether the lines that follow belong to a test that failed.
    failing: bool,
}

impl Seen {
    /// Whether to print the line.
    fn line(&mut self, line: &str) -> bool {
        let word = line.split(' ').next().unwrap_or_default();
        match word {
            "PASS" => self.counted.passed += 1,
            "SKIP" => self.counted.skipped += 1,
            "FAIL" => self.counted.failed += 1,
            // A measurement, or why it failed.
            "" => return self.failing,
            _ => self.last = Tally::parse(line).or(self.last),
        }
        self.failing = word == "FAIL";
        word != "PASS"
    }

    fn tally(self, problem: Option<&String>) -> Tally {
        let mut tally = self.last.unwrap_or(self.counted);
        if problem.is_some() || self.last.is_none() {
            tally.failed = tally.failed.max(1);
        }
        tally
    }
}

/// Runs the suite with two ranks: two processes, or two threads where there is one GPU.
///
/// # Errors
///
/// When it cannot be started, or the log cannot be written.
pub fn suite(parts: &Parts<'_>) -> Result<Tally> {
    let GpuRun {
        filter,
        profile,
        exclude_perf_tests,
        stress,
        threads,
        memcheck,
        ..
    } = parts.options;
    let mut args: Vec<OsString> = vec!["--executor=cuda".into()];
    args.push(format!("--profile={}", profile.name()).into());
    args.extend(
        filter
            .iter()
            .map(|filter| format!("--filter={filter}").into()),
    );
    args.extend(exclude_perf_tests.then(|| "--exclude-perf-tests".into()));
    args.extend(stress.map(|seconds| format!("--stress={seconds}").into()));
    let mut words = parts.program(SUITE, args);
    if *memcheck {
        words = checked(words)?;
    }
    let mut log = parts.log("suite")?;
    let mut seen = Seen::default();
    let mut first = |line: &str| -> io::Result<()> {
        writeln!(log, "{line}")?;
        if seen.line(line) {
            println!("{line}");
        }
        Ok(())
    };
    let threads = threads.or((parts.gpus == 1).then_some(2));
    let problem = if let Some(ranks) = threads {
        first(&format!("-- {ranks} ranks, threads of one process"))?;
        let (program, args) = words;
        let mut command = Command::new(program);
        command.args(args).arg(format!("--threads={ranks}"));
        parts.process(command, &mut first)?
    } else {
        parts.ranks(words, &mut |line| {
            let text = String::from_utf8_lossy(&line.bytes);
            match (line.index, line.stream) {
                (0, Stream::Out) => first(&text),
                (rank, _) => first(&format!("[{rank}] {text}")),
            }
        })?
    };
    if let Some(problem) = &problem {
        first(&format!("error: {problem}"))?;
    }
    Ok(seen.tally(problem.as_ref()))
}

/// The same under NVIDIA's checker of memory accesses, whose findings are failures.
fn checked((program, args): Words) -> Result<Words> {
    const CHECKER: &str = "compute-sanitizer";
    find_program(CHECKER).with_context(|| format!("there is no {CHECKER} on the search path"))?;
    let mut all: Vec<OsString> = vec!["--tool=memcheck".into(), "--error-exitcode=9".into()];
    all.push(program);
    all.extend(args);
    Ok((CHECKER.into(), all))
}

/// Runs the benchmark with two ranks, whose report is `bench.json`.
///
/// # Errors
///
/// When it cannot be started, or the log cannot be written.
pub fn bench(parts: &Parts<'_>, tables: &mut String) -> Result<(bool, String)> {
    let mut args = bench_args(parts, "bench.json");
    args.extend((parts.options.suite.iter()).map(|suite| format!("--suite={suite}").into()));
    let backends = parts.options.backend.iter();
    args.extend(backends.map(|backend| format!("--backend={backend}").into()));
    let mut log = parts.log("bench")?;
    let problem = parts.ranks(parts.program(BENCH, args), &mut |line| {
        let text = String::from_utf8_lossy(&line.bytes);
        writeln!(log, "[{}] {text}", line.index)?;
        match (line.index, line.stream) {
            // The table.
            (0, Stream::Out) => *tables += &format!("{text}\n"),
            _ if text.starts_with("SKIP") || line.index != 0 => println!("[{}] {text}", line.index),
            _ => {}
        }
        Ok(())
    })?;
    if let Some(problem) = problem {
        return Ok((false, problem));
    }
    let report = Report::read(&parts.options.out.join("bench.json"))?;
    Ok((true, format!("{} points", report.points.len())))
}

/// Measures what a post costs, with one process, whose report is `post.json`.
///
/// # Errors
///
/// As [`suite`].
pub fn post(parts: &Parts<'_>, tables: &mut String) -> Result<(bool, String)> {
    let mut command = Command::new(parts.directory.join(BENCH));
    command
        .args(bench_args(parts, "post.json"))
        .arg(format!("--suite={POST}"));
    if let Some(checkout) = &parts.options.gpunetio {
        command.arg("--gpunetio-dir").arg(checkout);
    }
    let mut log = parts.log("bench")?;
    let problem = parts.process(command, &mut |line| {
        writeln!(log, "{line}")?;
        *tables += &format!("{line}\n");
        Ok(())
    })?;
    Ok(match problem {
        None => (true, "measured".to_owned()),
        Some(problem) => (false, problem),
    })
}

fn bench_args(parts: &Parts<'_>, json: &str) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["--executor=cuda".into(), "--json".into()];
    args.push(parts.options.out.join(json).into());
    args.extend(parts.options.quick.then(|| "--quick".into()));
    args.push(format!("--commit={}", parts.manifest.commit).into());
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_suite_is_counted_and_failed() {
        let mut seen = Seen::default();
        let shown = |seen: &mut Seen, line: &str| seen.line(line);
        assert!(!shown(&mut seen, "PASS A.B (3 ms)"));
        assert!(!shown(&mut seen, "     round trip: 3.000 us"));
        assert!(shown(&mut seen, "FAIL A.C (3 ms)"));
        assert!(shown(&mut seen, "     rank 1: wrong"));
        assert!(shown(&mut seen, "SKIP A.D: no NIC"));
        let tally = seen.tally(Some(&"stopped".into()));
        assert_eq!(tally.to_string(), "1 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn the_suites_own_tally_counts() {
        let mut seen = Seen::default();
        seen.line("PASS A.B (3 ms)");
        seen.line("2 passed, 0 failed, 0 skipped");
        assert_eq!(
            seen.tally(None).to_string(),
            "2 passed, 0 failed, 0 skipped"
        );
        assert_eq!(Seen::default().tally(None).failed, 1);
    }
}
