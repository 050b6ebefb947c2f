// SPDX-License-Identifier: MIT
//! Its command line.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use super::{check, dist};
use crate::supervise::Interrupt;
use crate::tally::Tally;

/// Lay out the device headers for kernels that are built outside of Cargo
///
/// Headers, licence, a pkg-config file and a CMake package, below one directory that may be moved. There
/// is no C++ library: the host side of channels is in Rust. docs/kernels.md shows how to use it.
#[derive(Debug, Args)]
pub(crate) struct DistArgs {
    /// The directory, such as /usr/local
    #[arg(long, value_name = "DIR", required_unless_present = "check")]
    prefix: Option<PathBuf>,
    /// With the headers and the licence of GPUNetIO, from the checkout that `fetch` finds
    #[arg(long)]
    gpunetio: bool,
    /// Check it instead: lay it out, move it, compile with it; pack the crates, and build with what
    /// was packed
    #[arg(long, conflicts_with_all = ["prefix", "gpunetio"])]
    pub(crate) check: bool,
}

impl DistArgs {
    pub(crate) fn run(self, interrupt: &Interrupt) -> Result<()> {
        let prefix = self.prefix.context("--prefix names the directory")?;
        dist(&prefix, self.gpunetio, interrupt)
    }

    pub(crate) fn check(self, interrupt: &Interrupt) -> Result<Tally> {
        check::check(interrupt)
    }
}
