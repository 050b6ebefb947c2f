// SPDX-License-Identifier: MIT
//! `xtask gpu-run`, on a machine with GPUs and without cargo.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::machine::Machine;
use super::parts::{POST, Parts, bench, doctor, examples, post, suite, tests};
use super::{Manifest, upstream};
use crate::report::Report;
use crate::supervise::Interrupt;
use crate::tally::Tally;
use crate::test_mp::Profile;

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Only {
    /// Test programs of single crates.
    Tests,
    /// The conformance suite, with two ranks.
    Suite,
    /// Examples with a kernel for GPUs, with a GPU for each rank.
    Examples,
    /// The benchmark, with two ranks.
    Bench,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct GpuRun {
    /// Where logs and tables go.
    pub out: PathBuf,
    /// Only tests whose name holds this.
    pub filter: Option<String>,
    /// Only one part.
    pub only: Option<Only>,
    /// How much each test of the suite does.
    pub profile: Profile,
    /// Leave out the tests that measure.
    pub exclude_perf_tests: bool,
    /// Seconds of a test that looks for stale data.
    pub stress: Option<u64>,
    /// So many ranks of the suite, as threads of one process.
    pub threads: Option<usize>,
    /// The suite under compute-sanitizer.
    pub memcheck: bool,
    /// Fewer sizes and samples of the benchmark.
    pub quick: bool,
    /// Only this suite of the benchmark.
    pub suite: Option<String>,
    /// Only backends of the benchmark whose name contains this text.
    pub backend: Option<String>,
    /// A build of MSCCL++, whose tests are measured too.
    pub upstream: Option<PathBuf>,
    /// A checkout of GPUNetIO, whose device functions are measured too.
    pub gpunetio: Option<PathBuf>,
    /// For each part.
    pub timeout: Duration,
}

/// How one part ended.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    part: &'static str,
    /// Whether nothing failed.
    well: bool,
    /// The tally of tests, or what went wrong.
    said: String,
    seconds: u64,
}

#[derive(Serialize)]
struct Summary<'a> {
    machine: &'a Machine,
    built: &'a Manifest,
    outcomes: &'a [Outcome],
}

/// What a run writes.
const FILES: [&str; 10] = [
    "run.json",
    "tests.log",
    "suite.log",
    "doctor.txt",
    "examples.log",
    "bench.log",
    "bench.json",
    "post.json",
    "upstream.log",
    "tables.txt",
];

/// Runs the parts, and writes `run.json`, logs, reports and `tables.txt`.
///
/// # Errors
///
/// When a part fails: which ones. The others are run all the same.
pub fn run(options: &GpuRun, interrupt: &Interrupt) -> Result<()> {
    let directory = home()?;
    let manifest = Manifest::read(&directory)?;
    fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    // What an earlier run left must not pass for this run's.
    for file in FILES.map(|name| options.out.join(name)) {
        if file.exists() {
            fs::remove_file(&file).with_context(|| format!("cannot replace {}", file.display()))?;
        }
    }
    let machine = Machine::here();
    print!("{}commit: {}\n\n", machine.text(), manifest.commit);
    let parts = Parts {
        directory: &directory,
        manifest: &manifest,
        gpus: machine.gpus.len(),
        options,
        interrupt,
    };
    doctor(&parts)?;
    let mut outcomes = Vec::new();
    let mut tables = format!("{}commit: {}\n", machine.text(), manifest.commit);
    let wanted = |part| options.only.is_none_or(|only| only == part);
    let mut note = |part, started: Instant, result: Result<(bool, String)>| {
        let (well, said) = result.unwrap_or_else(|error| (false, format!("{error:#}")));
        let seconds = started.elapsed().as_secs();
        println!("== {part}: {said} ({seconds} s)\n");
        outcomes.push(Outcome {
            part,
            well,
            said,
            seconds,
        });
    };
    if wanted(Only::Tests) {
        let started = Instant::now();
        note("tests", started, tests(&parts).map(told));
    }
    if wanted(Only::Suite) {
        let started = Instant::now();
        note("suite", started, suite(&parts).map(told));
    }
    if wanted(Only::Examples) {
        let started = Instant::now();
        note("examples", started, examples(&parts).map(told));
    }
    if wanted(Only::Bench) {
        let asked = |is_post: fn(&str) -> bool| options.suite.as_deref().is_none_or(is_post);
        if asked(|suite| suite != POST) {
            let started = Instant::now();
            note("bench", started, bench(&parts, &mut tables));
        }
        if asked(|suite| suite == POST) {
            let started = Instant::now();
            note("post", started, post(&parts, &mut tables));
        }
        if let Some(build) = &options.upstream {
            let started = Instant::now();
            let ours = Report::read(&options.out.join("bench.json")).ok();
            let result = upstream::measure(&parts, build, ours.as_ref(), &mut tables);
            note("upstream", started, result);
        }
        fs::write(options.out.join("tables.txt"), &tables)?;
        println!("{tables}");
    }
    let summary = Summary {
        machine: &machine,
        built: &manifest,
        outcomes: &outcomes,
    };
    fs::write(
        options.out.join("run.json"),
        serde_json::to_string_pretty(&summary)? + "\n",
    )?;
    for Outcome {
        part,
        said,
        seconds,
        ..
    } in &outcomes
    {
        println!("{part}: {said} ({seconds} s)");
    }
    let failed: Vec<_> = outcomes
        .iter()
        .filter(|o| !o.well)
        .map(|o| o.part)
        .collect();
    ensure!(failed.is_empty(), "not well: {}", failed.join(", "));
    Ok(())
}

/// Some test ran, and none failed.
fn told(tally: Tally) -> (bool, String) {
    (tally.failed == 0 && tally.passed > 0, tally.to_string())
}

/// The directory of this program.
fn home() -> Result<PathBuf> {
    let program = std::env::current_exe().context("where this program is")?;
    Ok(program.parent().unwrap_or(Path::new("/")).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_ran_nothing_is_not_well() {
        let tally = |passed, failed, skipped| Tally {
            passed,
            failed,
            skipped,
        };
        assert!(told(tally(3, 0, 1)).0);
        assert!(!told(tally(0, 0, 5)).0);
        assert!(!told(tally(3, 1, 0)).0);
    }
}
