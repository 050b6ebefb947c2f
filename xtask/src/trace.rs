// SPDX-License-Identifier: MIT
//! `cargo xtask trace`: time lines of what kernels, proxies, NICs and the wire did.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::launch::write_line;
use crate::supervise::{Ending, Interrupt};
use crate::workspace::{SUITE, Workspace, describe, run};

const PATIENCE: Duration = Duration::from_secs(300);

/// Make one time line of ranks' traces, for Perfetto and Chrome
///
/// The files are what RankTrace::save of mscclpp_port::trace writes, one of each rank. The time line is
/// held against the rules of the Trace Event Format before it is written. docs/tracing.md says how
/// programs leave traces.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Files of ranks; with --check, time lines
    #[arg(value_name = "FILE", required_unless_present = "demo")]
    files: Vec<PathBuf>,
    /// Where to write it
    #[arg(short, long, value_name = "FILE", default_value = "trace.json")]
    output: PathBuf,
    /// Only hold time lines against the format's rules
    #[arg(long, conflicts_with = "demo")]
    check: bool,
    /// Make the traces, by ping-pongs of two ranks on CPU threads: trace-proxy.json, through proxies over
    /// TCP, and trace-queue.json, on queues of NICs in software
    #[arg(long, conflicts_with = "files")]
    demo: bool,
    /// Round trips of each ping-pong
    #[arg(long, value_name = "N", default_value = "20", requires = "demo")]
    iterations: u64,
}

impl TraceArgs {
    /// Builds the program that does it, and runs it.
    ///
    /// # Errors
    ///
    /// When the program cannot be built or run, or fails.
    pub fn run(&self, interrupt: &Interrupt) -> Result<()> {
        let workspace = Workspace::load()?;
        let build = ["build", "--package", SUITE, "--bin", "trace"];
        let program = Workspace::build(workspace.cargo(), &build, interrupt)
            .context("the program that makes time lines cannot be built")?;
        let mut command = Command::new(program);
        command.args(self.arguments());
        let ending = run(command, Some(PATIENCE), interrupt, &mut |line| {
            write_line(line.stream, "", &line.bytes)
        })?;
        match ending {
            Ending::Finished => Ok(()),
            ending => bail!("the time line: {}", describe(&ending)),
        }
    }

    fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = self.files.iter().map(Into::into).collect();
        if self.check {
            arguments.push("--check".into());
        } else {
            arguments.extend(["--output".into(), self.output.clone().into()]);
        }
        if self.demo {
            let iterations = self.iterations.to_string();
            arguments.extend(["--demo".into(), "--iterations".into(), iterations.into()]);
        }
        arguments
    }
}
