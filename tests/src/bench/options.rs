// SPDX-License-Identifier: MIT
//! The command line of the benchmark.

use std::path::PathBuf;

use clap::Parser;

use super::SUITES;
use crate::backend::Executor;

/// Latency, bandwidth and posting rate between two ranks, beside plain TCP
#[derive(Clone, Debug, Parser)]
#[command(name = "bench", version)]
pub struct Options {
    /// Fewer sizes and samples
    #[arg(long)]
    pub quick: bool,

    /// Only this suite
    #[arg(long, value_name = "NAME", value_parser = SUITES.map(|suite| suite.name))]
    pub suite: Option<String>,

    /// Only backends whose name contains this text, such as `ipc`
    #[arg(long, value_name = "TEXT")]
    pub backend: Option<String>,

    /// What runs kernels
    #[arg(long, value_enum, default_value = "host")]
    pub executor: Executor,

    /// With `--executor cuda --suite post`: measure the device functions of this checkout of GPUNetIO
    /// too; nvcc has to be there
    #[arg(long, value_name = "DIR")]
    pub gpunetio_dir: Option<PathBuf>,

    /// Write the report here
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// The commit that was built, for the report
    #[arg(long, value_name = "TEXT")]
    pub commit: Option<String>,

    /// What the user typed, for the report [default: this command]
    #[arg(long, value_name = "TEXT")]
    pub command: Option<String>,

    /// Play a part in a job that the benchmark started; not for use by hand
    #[arg(long, hide = true)]
    pub child: Option<String>,
}

impl Options {
    /// Whether it is the cost of a post on a GPU that is to be measured, which needs no ranks.
    pub fn is_posting(&self) -> bool {
        self.executor == Executor::Cuda && self.suite.as_deref() == Some("post")
    }
}
