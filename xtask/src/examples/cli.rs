// SPDX-License-Identifier: MIT
//! Its command line.

use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::{Examples, examples};
use crate::cli::seconds;
use crate::supervise::Interrupt;
use crate::tally::Tally;

/// Build and run the examples as far as this machine can, and packages that use the crates
///
/// Each example under examples/ shows its help, runs with the local launcher and under mpirun, and
/// verifies its data. Then packages outside of the workspace are built that pick mscclpp-port and
/// mscclpp-device with each set of features. A line each, PASS, SKIP or FAIL; the last line is
/// `N passed, N failed, N skipped`.
#[derive(Debug, Args)]
pub(crate) struct ExamplesArgs {
    /// Only those whose line holds this text; none is an error
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    filter: Option<String>,
    /// Stop a run after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "90", value_parser = seconds)]
    timeout: Duration,
}

impl ExamplesArgs {
    pub(crate) fn run(self, interrupt: &Interrupt) -> Result<Tally> {
        let options = Examples {
            filter: self.filter,
            timeout: self.timeout,
        };
        examples(&options, interrupt)
    }
}
