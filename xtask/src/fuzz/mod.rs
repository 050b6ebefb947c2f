// SPDX-License-Identifier: MIT
//! `cargo xtask fuzz`: every fuzz target, guided by coverage, for as long as is asked for.
//!
//! A target is a test of a library whose name begins with `fuzz_` and that gives its bytes to a
//! decoder through bolero. Built as here, bolero hands the test to libFuzzer, whose sources it
//! brings; what tells libFuzzer of coverage is an LLVM pass that every rustc has. So stable Rust
//! and a C++ compiler are all that it takes, where `cargo bolero` would have to be installed by hand
//! and runs one target at a time.

mod build;
mod target;

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::launch::write_line;
use crate::supervise::{Interrupt, Stream};
use crate::tally::Tally;
use crate::workspace::Workspace;

use target::{Outcome, Ran};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Fuzz {
    /// For each target.
    pub time: Duration,
    /// Only targets whose name holds this.
    pub target: Option<String>,
    /// How many run at a time; one a CPU if it is not said.
    pub jobs: Option<NonZeroUsize>,
    /// Name them and end.
    pub list: bool,
}

/// One target.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    /// Its package's and its test's name.
    name: String,
    /// The test's name.
    test: String,
    /// The program that has it.
    program: PathBuf,
}

impl Target {
    /// The name as that of a directory.
    fn directory(&self) -> String {
        self.name.replace("::", ".")
    }
}

/// Runs the targets; the last line printed is the returned tally.
///
/// # Errors
///
/// When they cannot be built, none has the name, or the user interrupts. What a target finds is
/// counted in the tally.
pub fn fuzz(options: &Fuzz, interrupt: &Interrupt) -> Result<Tally> {
    let workspace = Workspace::load()?;
    let home = workspace.target.join("fuzz");
    let mut targets = build::targets(&workspace, &home, options.time, interrupt)?;
    if let Some(part) = &options.target {
        targets.retain(|target| target.name.contains(part.as_str()));
        if targets.is_empty() {
            bail!("no fuzz target's name holds {part:?}; --list shows them");
        }
    }
    if options.list {
        for target in &targets {
            println!("{}", target.name);
        }
        println!("{} targets", targets.len());
        return Ok(Tally::default());
    }
    let jobs = options.jobs.or(thread::available_parallelism().ok());
    let jobs = jobs.map_or(1, NonZeroUsize::get).min(targets.len());
    let count = targets.len();
    let seconds = options.time.as_secs();
    println!("== {count} targets, {jobs} at a time, {seconds} s each");
    let ran = run_all(targets, jobs, options.time, &home, interrupt)?;
    conclude(&ran, interrupt)
}

fn run_all(
    targets: Vec<Target>,
    jobs: usize,
    time: Duration,
    home: &Path,
    interrupt: &Interrupt,
) -> Result<Vec<Ran>> {
    let left = Mutex::new(VecDeque::from(targets));
    let ran = Mutex::new(Vec::new());
    let worker = || -> Result<()> {
        while interrupt.signal().is_none() {
            let Some(target) = lock(&left).pop_front() else {
                break;
            };
            let one = target::run(&target, time, home, interrupt, &say)?;
            say(&one.line())?;
            lock(&ran).push(one);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| {
            let ended = worker.join().unwrap_or_else(|_| bail!("it panicked"));
            ended.context("running a target")
        })
    })?;
    let mut ran = ran.into_inner().unwrap_or_else(PoisonError::into_inner);
    ran.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(ran)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A line of progress.
fn say(line: &str) -> io::Result<()> {
    write_line(Stream::Out, "", line.as_bytes())
}

fn conclude(ran: &[Ran], interrupt: &Interrupt) -> Result<Tally> {
    println!("\n{}", Ran::heading());
    for one in ran {
        println!("{}", one.line());
    }
    let mut tally = Tally::default();
    for one in ran {
        match &one.outcome {
            Outcome::Clean => tally.passed += 1,
            Outcome::Found { input, said } => {
                tally.failed += 1;
                println!("\nFAILED {}\n{said}", one.name);
                if let Some(input) = input {
                    println!("the input, {}: {}", input.display(), hexadecimal(input)?);
                }
            }
        }
    }
    if let Some(signal) = interrupt.signal() {
        bail!("stopped by signal {signal}");
    }
    println!("{tally}");
    Ok(tally)
}

/// The beginning of a file, to be copied into a test.
fn hexadecimal(path: &Path) -> Result<String> {
    const SHOWN: usize = 512;
    let bytes = fs::read(path).with_context(|| format!("{}", path.display()))?;
    let digits = bytes.iter().take(SHOWN).map(|byte| format!("{byte:02x}"));
    let more = if bytes.len() > SHOWN { "..." } else { "" };
    Ok(digits.collect::<String>() + more)
}
