// SPDX-License-Identifier: MIT
//! `cargo xtask doctor`: what this machine has of what channels need.

use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::fetch::{self, checkout};
use crate::launch::write_line;
use crate::mpi::{Flavour, Mpi};
use crate::supervise::{Ending, Interrupt};
use crate::workspace::{SUITE, Workspace, describe, run};

/// Drivers that hang are told of instead of waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// Check everything that channels need, and say what to do about the rest
///
/// A line for each check: ok, missing, not needed or unknown, with what was found and the fix; then one
/// line for each backend: does it work here, and if not, why. Changes nothing. The checks are
/// explained in the documentation of mscclpp_port::doctor.
///
/// The exit status is 0 if the default backend works here (the proxy over TCP, with kernels on CPU
/// threads or on GPUs), else 1.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print {"checks":[{"name","status","found","fix"}]}; the backends are the last checks
    #[arg(long)]
    json: bool,
}

impl DoctorArgs {
    /// Builds the program that does it, adds what only this workspace knows, and runs it.
    ///
    /// # Errors
    ///
    /// When the program cannot be built or run.
    pub fn run(&self, interrupt: &Interrupt) -> Result<ExitCode> {
        let workspace = Workspace::load()?;
        let build = [
            "build",
            "--package",
            SUITE,
            "--bin",
            "doctor",
            "--features",
            "cuda",
        ];
        let program = Workspace::build(workspace.cargo(), &build, interrupt).context(
            "the doctor cannot be built (if for want of a C++17 compiler: apt install g++)",
        )?;
        let mut command = Command::new(program);
        for check in [mpi(interrupt), gpunetio(&workspace)] {
            command.arg("--check").arg(check.to_string());
        }
        if self.json {
            command.arg("--json");
        }
        let ending = run(command, Some(PATIENCE), interrupt, &mut |line| {
            write_line(line.stream, "", &line.bytes)
        })?;
        match ending {
            Ending::Finished => Ok(ExitCode::SUCCESS),
            Ending::Failed { status, .. } if status.code() == Some(1) => Ok(ExitCode::FAILURE),
            ending => bail!("the doctor: {}", describe(&ending)),
        }
    }
}

fn check(name: &str, status: &str, found: String, fix: &str) -> Value {
    json!({"name": name, "status": status, "found": found, "fix": fix})
}

/// The launcher that `test-mp` would take.
fn mpi(interrupt: &Interrupt) -> Value {
    const NAME: &str = "mpi launcher";
    match Mpi::find(interrupt) {
        Ok(mpi) => {
            let flavour = match mpi.flavour {
                Flavour::OpenMpi(major) => format!("Open MPI {major}"),
                Flavour::Hydra => "Hydra (MPICH, Intel MPI)".into(),
            };
            check(
                NAME,
                "ok",
                format!("{}, {flavour}", mpi.program.display()),
                "",
            )
        }
        Err(why) => {
            let found = format!("{why}; cargo xtask launch, srun or torchrun start ranks, too");
            check(NAME, "not needed", found, "")
        }
    }
}

/// The checkout whose headers `dist --gpunetio` lays out.
fn gpunetio(workspace: &Workspace) -> Value {
    const NAME: &str = "gpunetio checkout";
    let variable = |name: &str| std::env::var_os(name);
    let source = match fetch::source(workspace) {
        Ok(source) => source,
        Err(error) => {
            return check(
                NAME,
                "missing",
                format!("{error:#}"),
                "git checkout third_party.lock",
            );
        }
    };
    let pin = fetch::pin(&source);
    let asked = variable(checkout::SOURCE_DIR).is_some_and(|value| !value.is_empty());
    let fetched = checkout::cached(&pin, &variable).is_ok_and(|directory| directory.exists());
    match checkout::locate(&pin, &variable) {
        Ok(found) => {
            let directory = found.directory.display();
            match found.unpinned {
                None => check(
                    NAME,
                    "ok",
                    format!(
                        "{directory}, version {}, the pinned commit {}",
                        source.version, pin.commit
                    ),
                    "",
                ),
                Some(fault) => check(
                    NAME,
                    "ok",
                    format!("{directory}, not the pinned state, which is allowed: {fault}"),
                    "",
                ),
            }
        }
        Err(why) if asked || fetched => {
            let fix = "cargo xtask fetch, without GPUNETIO_SOURCE_DIR";
            check(NAME, "missing", why, fix)
        }
        Err(_) => {
            let (version, commit) = (&source.version, &pin.commit);
            let found = format!(
                "none; no backend needs it (cargo xtask fetch gets version {version}, commit {commit})"
            );
            check(NAME, "not needed", found, "")
        }
    }
}
