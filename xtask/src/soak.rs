// SPDX-License-Identifier: MIT
//! `cargo xtask soak`: operations and faults for a long time, a process per rank on this machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use crate::cli::{ranks, seconds};
use crate::launch::{Launch, print_line_but_zero};
use crate::supervise::Interrupt;
use crate::workspace::{SUITE, Workspace};

/// How much longer than it was asked for a soak may take: its last era, and jobs beside it.
const GRACE: Duration = Duration::from_secs(300);

/// Run operations of all kinds under random faults, and see that nothing grows
///
/// Ranks make channels on all backends of this machine, use and drop them, for as long as is said;
/// data are checked. Every 10 s a line tells how it goes; at the end come tables of operations, faults
/// and of what each rank holds, and the exit status says whether any of it grew.
#[derive(Debug, Args)]
pub struct SoakArgs {
    /// How many ranks
    #[arg(short = 'n', long = "ranks", default_value = "4", value_name = "N", value_parser = ranks)]
    ranks: usize,
    /// How long
    #[arg(long, value_name = "MINUTES", default_value = "30", value_parser = minutes)]
    minutes: Duration,
    /// The same in seconds, for a short look
    #[arg(long, value_name = "SECONDS", conflicts_with = "minutes", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Where all that is drawn comes from
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Write counts and samples to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep something after each era, which must be found: memory, descriptors, threads or objects
    #[arg(long, hide = true, value_name = "WHAT")]
    plant_leak: Option<String>,
}

fn minutes(text: &str) -> Result<Duration, String> {
    /// A million seconds, which is as long as the program goes on.
    const MOST: u64 = 1_000_000 / 60;
    let number: u64 = text.parse().map_err(|_| "not a number of minutes")?;
    if !(1..=MOST).contains(&number) {
        return Err(format!("between 1 and {MOST} minutes"));
    }
    Ok(Duration::from_secs(number * 60))
}

impl SoakArgs {
    /// Builds and runs it.
    ///
    /// # Errors
    ///
    /// When it cannot be built, a rank fails, or something grows.
    pub fn run(self, interrupt: &Interrupt) -> Result<()> {
        let time = self.seconds.unwrap_or(self.minutes);
        let workspace = Workspace::load()?;
        let build = ["build", "--release", "--package", SUITE, "--bin", "soak"];
        let program = Workspace::build(workspace.cargo(), &build, interrupt)?;
        let mut args: Vec<OsString> = vec![
            format!("--seconds={}", time.as_secs()).into(),
            format!("--seed={}", self.seed).into(),
        ];
        if let Some(path) = &self.json {
            args.push("--json".into());
            args.push(std::path::absolute(path)?.into());
        }
        if let Some(what) = &self.plant_leak {
            args.push(format!("--plant-leak={what}").into());
        }
        Launch::new(self.ranks, program)
            .args(args)
            // What threads keep for later use would count as in use.
            .env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")
            .timeout(time + GRACE)
            .run(interrupt, &mut print_line_but_zero)
            .context("the soak")
    }
}
