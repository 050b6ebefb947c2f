// SPDX-License-Identifier: MIT
//! `cargo xtask bench`: the benchmark, a process per rank on this machine.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::cli::{ranks, seconds};
use crate::known::{SUITES, backend};
use crate::launch::{Launch, print_line_but_zero, write_line};
use crate::paths::check_writable;
use crate::report::Report;
use crate::report::cli::Output;
use crate::rxe::guest::{JOB, Job, Machine, Network};
use crate::supervise::Interrupt;
use crate::workspace::{SUITE, Workspace};

/// The suite that needs an RDMA device.
const RDMA: &str = "ib";

/// Measure latency, bandwidth and posting rate between processes on this machine
///
/// Prints progress and a table, and writes a report as JSON; with --html, a page with plots, too.
#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// How many ranks; two of them measure
    #[arg(short, default_value = "2", value_name = "N", value_parser = two_or_more)]
    n: usize,
    /// Fewer sizes and samples
    #[arg(long)]
    quick: bool,
    /// Only this suite; docs/benchmarks.md says what each measures. Where there is no RDMA device, ib
    /// runs in a guest with Soft-RoCE (see rxe-run), beside perftest
    #[arg(long, value_name = "NAME", value_parser = SUITES)]
    suite: Option<String>,
    /// Only backends whose name contains this text, such as gpu-initiated
    #[arg(long, value_name = "TEXT", value_parser = backend)]
    backend: Option<String>,
    /// Where to write the report [default: bench/latest.json in the target directory]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
    /// Stop after this many seconds, the build not included
    #[arg(long, value_name = "SECONDS", default_value = "1800", value_parser = seconds)]
    timeout: Duration,
}

fn two_or_more(text: &str) -> Result<usize, String> {
    match ranks(text)? {
        1 => Err("it needs 2 ranks".into()),
        number => Ok(number),
    }
}

/// Builds and runs the benchmark, and checks the report that it writes.
///
/// # Errors
///
/// When it cannot be built, a rank fails, or the report is not in order; those of [`Output`].
pub fn bench(options: &BenchArgs, interrupt: &Interrupt) -> Result<()> {
    let output = options.output.prepare()?;
    let workspace = Workspace::load()?;
    let json = match &options.json {
        Some(path) => std::path::absolute(path)?,
        None => workspace.target.join("bench").join("latest.json"),
    };
    check_writable(&json)?;
    let build = ["build", "--release", "--package", SUITE, "--bin", "bench"];
    let program = Workspace::build(workspace.cargo(), &build, interrupt)?;
    // What an earlier run left must not pass for this run's.
    if json.exists() {
        fs::remove_file(&json).with_context(|| format!("cannot replace {}", json.display()))?;
    }
    let mut args: Vec<OsString> = Vec::new();
    if options.quick {
        args.push("--quick".into());
    }
    if let Some(suite) = &options.suite {
        args.push(format!("--suite={suite}").into());
    }
    if let Some(backend) = &options.backend {
        args.push(format!("--backend={backend}").into());
    }
    args.push(format!("--commit={}", workspace.commit()).into());
    args.push(format!("--command={}", typed()).into());
    if options.suite.as_deref() == Some(RDMA) && !has_rdma_device() {
        let machine = Machine::prepare(&workspace.target, interrupt)?;
        in_guest(&machine, program, args, &json, options, interrupt)?;
    } else {
        args.push("--json".into());
        args.push(json.clone().into());
        Launch::new(options.n, program)
            .args(args)
            .timeout(options.timeout)
            .run(interrupt, &mut print_line_but_zero)?;
    }
    let report = Report::read(&json)?;
    println!("{} points in {}", report.points.len(), json.display());
    output.make(&report)
}

/// What the user typed, but for where the program lies.
fn typed() -> String {
    let words = std::env::args().skip(1);
    ["cargo xtask".to_owned()]
        .into_iter()
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}

fn has_rdma_device() -> bool {
    let devices = fs::read_dir("/sys/class/infiniband");
    devices.is_ok_and(|mut devices| devices.next().is_some())
}

/// The same in a guest with Soft-RoCE devices, from which the report is copied.
fn in_guest(
    machine: &Machine,
    program: PathBuf,
    args: Vec<OsString>,
    json: &Path,
    options: &BenchArgs,
    interrupt: &Interrupt,
) -> Result<()> {
    const REPORT: &str = "report.json";
    let mut command: Vec<OsString> = vec![std::env::current_exe()?.into(), "launch".into()];
    command.push(format!("-n{}", options.n).into());
    command.push("--".into());
    command.push(program.into());
    command.extend(args);
    command.extend(["--json".into(), format!("{JOB}/{REPORT}").into()]);
    let job = Job {
        network: Network::Two,
        command,
        environment: Vec::new(),
        timeout: options.timeout,
    };
    println!("== a guest with Linux {}", machine.kernel());
    let done = machine.run(&job, interrupt, &mut |line| {
        write_line(line.stream, "", &line.bytes)
    })?;
    ensure!(done.status.success(), "in the guest: {}", done.status);
    fs::copy(done.directory.path().join(REPORT), json)
        .with_context(|| format!("cannot write {}", json.display()))?;
    Ok(())
}
