// SPDX-License-Identifier: MIT
//! `cargo xtask bench`: the benchmark, a process per rank on this machine.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::launch::{Launch, print_line_but_zero, write_line};
use crate::report::Report;
use crate::rxe::guest::{JOB, Job, Machine, Network};
use crate::supervise::Interrupt;
use crate::workspace::{SUITE, Workspace};

/// The suite that needs an RDMA device.
const RDMA: &str = "ib";

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Bench {
    /// How many ranks.
    pub ranks: usize,
    /// Fewer samples and sizes.
    pub quick: bool,
    /// Only this suite.
    pub suite: Option<String>,
    /// Only backends whose name contains this text.
    pub backend: Option<String>,
    /// Where the report goes; by default under the target directory.
    pub json: Option<PathBuf>,
    /// For the whole run, after the build.
    pub timeout: Duration,
}

/// Builds and runs the benchmark, and checks the report that it writes.
///
/// # Errors
///
/// When it cannot be built, a rank fails, or the report is not in order.
pub fn bench(options: &Bench, interrupt: &Interrupt) -> Result<()> {
    let workspace = Workspace::load()?;
    let build = ["build", "--release", "--package", SUITE, "--bin", "bench"];
    let program = Workspace::build(workspace.cargo(), &build, interrupt)?;
    let json = match &options.json {
        Some(path) => std::path::absolute(path)?,
        None => workspace.target.join("bench").join("latest.json"),
    };
    if let Some(directory) = json.parent() {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }
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
    if options.suite.as_deref() == Some(RDMA) && !has_rdma_device() {
        let machine = Machine::prepare(&workspace.target, interrupt)?;
        in_guest(&machine, program, args, &json, options, interrupt)?;
    } else {
        args.push("--json".into());
        args.push(json.clone().into());
        Launch::new(options.ranks, program)
            .args(args)
            .timeout(options.timeout)
            .run(interrupt, &mut print_line_but_zero)?;
    }
    let report = Report::read(&json)?;
    println!("{} rows in {}", report.rows.len(), json.display());
    Ok(())
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
    options: &Bench,
    interrupt: &Interrupt,
) -> Result<()> {
    const REPORT: &str = "report.json";
    let mut command: Vec<OsString> = vec![std::env::current_exe()?.into(), "launch".into()];
    command.push(format!("-n{}", options.ranks).into());
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
