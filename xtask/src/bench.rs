// SPDX-License-Identifier: MIT
//! `cargo xtask bench`: the benchmark, a process per rank on this machine.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use tempfile::TempDir;

use crate::cli::{ranks, seconds};
use crate::known::{SUITES, backend};
use crate::launch::{Launch, print_line_but_zero, write_line};
use crate::paths::check_writable;
use crate::report::Report;
use crate::report::cli::Output;
use crate::rxe::guest::{JOB, Job, Machine, Network};
use crate::supervise::Interrupt;
use crate::workspace::{SUITE, Workspace};

/// The file that a run writes, in a directory of its own.
const REPORT: &str = "report.json";
/// The suite that needs an RDMA device.
const RDMA: &str = "ib";

/// How long is looked before a run who else is at work.
const LOOK: Duration = Duration::from_millis(500);
/// In so short a time, less of the CPU time says nothing.
const BUSY_PERCENT: f64 = 10.0;

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
    // What an earlier run left must not pass for this run's, and stays until this one has a report.
    let fresh = TempDir::new_in(json.parent().unwrap_or(Path::new("/")))
        .with_context(|| format!("cannot write beside {}", json.display()))?;
    let report = fresh.path().join(REPORT);
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
    warn_of_others();
    if options.suite.as_deref() == Some(RDMA) && !has_rdma_device() {
        let machine = Machine::prepare(&workspace.target, interrupt)?;
        in_guest(&machine, program, args, &report, options, interrupt)?;
    } else {
        args.push("--json".into());
        args.push(report.clone().into());
        Launch::new(options.n, program)
            .args(args)
            .timeout(options.timeout)
            .run(interrupt, &mut print_line_but_zero)?;
    }
    let report = keep(&report, &json)?;
    println!("{} points in {}", report.points.len(), json.display());
    output.make(&report)
}

/// Says before the run what its report would say after it: that others are at work here.
fn warn_of_others() {
    let look = || fs::read_to_string("/proc/stat").unwrap_or_default();
    let before = look();
    thread::sleep(LOOK);
    let busy = busy_percent(&before, &look());
    if let Some(percent) = busy.filter(|percent| *percent > BUSY_PERCENT) {
        println!(
            "WARNING: other processes take {percent:.0} % of the CPU time: figures will be worse than \
             the code is"
        );
    }
}

/// The CPU time of programs, of that of all cores, between two looks at /proc/stat. Its first line has
/// user, nice, system, idle and others; what guests took follows the first 8, and is in user already.
fn busy_percent(before: &str, after: &str) -> Option<f64> {
    let ticks = |text: &str| -> Option<(u64, u64)> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks = line.split_whitespace().take(8).map(str::parse);
        let ticks: Vec<u64> = ticks.collect::<Result<_, _>>().ok()?;
        Some((ticks.get(..3)?.iter().sum(), ticks.iter().sum()))
    };
    let ((busy, all), (busy_then, all_then)) = (ticks(before)?, ticks(after)?);
    let all = all_then.checked_sub(all).filter(|all| *all > 0)?;
    Some(100.0 * busy_then.saturating_sub(busy) as f64 / all as f64)
}

/// Moves a fresh report to its place if it is in order.
fn keep(fresh: &Path, place: &Path) -> Result<Report> {
    let read = || -> Result<Report> {
        let report = Report::parse(&fs::read(fresh)?)?;
        fs::rename(fresh, place)?;
        Ok(report)
    };
    read().with_context(|| format!("no new report in {}", place.display()))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::tests::example;

    #[test]
    fn who_else_is_at_work_is_seen_in_the_time_of_programs() {
        let idle = "cpu  100 0 50 1000 0 0 0 0 7 0\ncpu0 1 2 3 4\n";
        let busy = "cpu  130 5 65 1040 5 3 2 0 900 0\ncpu0 1 2 3 4\n";
        assert_eq!(busy_percent(idle, busy), Some(50.0));
        assert_eq!(busy_percent(idle, idle), None);
        assert_eq!(busy_percent("", busy), None);
        assert_eq!(busy_percent("cpu  1 2\n", busy), None);
    }

    #[test]
    fn a_report_without_points_says_why_and_leaves_the_older_one() {
        let home = tempfile::tempdir().unwrap();
        let [fresh, place] = ["fresh", "place"].map(|name| home.path().join(name));
        fs::write(&place, "an older one").unwrap();
        let mut report = example();
        let points = report["points"].take();
        report["points"] = json!([]);
        fs::write(&fresh, report.to_string()).unwrap();
        let text = format!("{:#}", keep(&fresh, &place).unwrap_err());
        assert!(text.contains("proxy-ib-host: no device"), "{text}");
        assert!(text.contains(place.to_str().unwrap()), "{text}");
        assert_eq!(fs::read_to_string(&place).unwrap(), "an older one");
        report["points"] = points;
        fs::write(&fresh, report.to_string()).unwrap();
        assert_eq!(keep(&fresh, &place).unwrap().points.len(), 5);
        assert_eq!(fs::read_to_string(&place).unwrap(), report.to_string());
    }
}
