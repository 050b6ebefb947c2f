// SPDX-License-Identifier: MIT
//! The command lines of `rxe-run` and `test-rxe`.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;

use super::RxeError;
use super::guest::{Job, Machine, Network};
use crate::cli::seconds;
use crate::launch::write_line;
use crate::supervise::{Interrupt, exit_code};
use crate::workspace::Workspace;

/// Run a command in a guest with Soft-RoCE devices
///
/// Boots Debian's kernel under qemu, without virtualisation by hardware. The guest's files are this
/// machine's, and what the command writes is gone at the end. Both its outputs come as one.
///
/// The exit status is the command's; 124 at the timeout; 125 when the guest fails; 77 when something
/// is not installed, or 125 if RXE_VM=required is set. The kernel is downloaded once, by apt, into
/// the directory rxe of the target directory, or into MSCCLPP_RXE_CACHE.
#[derive(Debug, Args)]
pub struct RxeRunArgs {
    /// The devices: rxe0; or rxe0 and rxe1 with a link between the two
    #[arg(long, value_enum, default_value = "one")]
    network: Network,
    /// Stop after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    timeout: Duration,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RxeRunArgs {
    /// Does what was asked for. The error is one of this program, not of the command.
    pub(crate) fn run(self, interrupt: &Interrupt) -> Result<ExitCode> {
        match self.status(interrupt) {
            Ok(code) => Ok(code),
            Err(error) => match error.downcast_ref::<RxeError>() {
                Some(cause) => {
                    eprintln!("error: {error:#}");
                    Ok(cause.exit_code())
                }
                None => Err(error),
            },
        }
    }

    fn status(self, interrupt: &Interrupt) -> Result<ExitCode> {
        let machine = Machine::prepare(&Workspace::load()?.target, interrupt)?;
        let job = Job {
            network: self.network,
            command: self.command,
            environment: Vec::new(),
            timeout: self.timeout,
        };
        let started = Instant::now();
        let status = machine.run(&job, interrupt, &mut |line| {
            write_line(line.stream, "", &line.bytes)
        })?;
        let seconds = started.elapsed().as_secs_f64();
        eprintln!("== guest with Linux {}: {seconds:.1} s", machine.kernel());
        Ok(exit_code(status).into())
    }
}
