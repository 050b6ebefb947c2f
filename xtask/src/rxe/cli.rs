// SPDX-License-Identifier: MIT
//! The command lines of `rxe-run` and `test-rxe`.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;

use super::RxeError;
use super::guest::{Job, Machine, Network};
use super::test::{TestRxe, test_rxe};
use crate::cli::{ranks, seconds};
use crate::launch::write_line;
use crate::supervise::{Interrupt, exit_code};
use crate::tally::Tally;
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

/// Run what needs an RDMA device, in guests with Soft-RoCE devices
///
/// Tests of the launcher and of verbs, then the conformance suite on InfiniBand with 2 and 4 ranks
/// under mpirun. After each guest the kernel's counts of verbs objects have to be what they were. The
/// last line is `N passed, N failed, N skipped`.
///
/// Guests are explained at `rxe-run`. If something is not installed, all is skipped; with
/// RXE_VM=required set it is a failure.
#[derive(Debug, Args)]
pub struct TestRxeArgs {
    /// Run only tests whose name contains this text; none is an error
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Run the suite with so many ranks only
    #[arg(short, value_name = "N", value_parser = ranks)]
    n: Option<usize>,
    /// Stop after this many seconds, the builds not included
    #[arg(long, value_name = "SECONDS", default_value = "1200", value_parser = seconds)]
    timeout: Duration,
}

impl TestRxeArgs {
    /// Does what was asked for.
    pub(crate) fn run(self, interrupt: &Interrupt) -> Result<Tally> {
        let options = TestRxe {
            filter: self.filter,
            ranks: self.n,
            timeout: self.timeout,
        };
        test_rxe(&options, interrupt)
    }
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
        let done = machine.run(&job, interrupt, &mut |line| {
            write_line(line.stream, "", &line.bytes)
        })?;
        let seconds = started.elapsed().as_secs_f64();
        eprintln!("== guest with Linux {}: {seconds:.1} s", machine.kernel());
        if let Some(left) = done.left {
            eprintln!("== verbs objects are left:\n{left}");
        }
        Ok(exit_code(done.status).into())
    }
}
