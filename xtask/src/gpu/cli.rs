// SPDX-License-Identifier: MIT
//! The command lines of `gpu-pack` and `gpu-run`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::pack::pack;
use super::run::{GpuRun, Only, run};
use crate::cli::{ranks, seconds};
use crate::known::{SUITES, gpu_backend};
use crate::supervise::Interrupt;
use crate::test_mp::Profile;

/// Build what a machine with GPUs and without Rust needs, into one directory
///
/// The suite, the benchmark, the crates' tests and examples for GPUs, and this program, to be copied there and run
/// by its `gpu-run`. There, the driver and NVRTC have to be installed; kernels are compiled then.
#[derive(Debug, Args)]
pub struct GpuPackArgs {
    /// The directory [default: gpu in the target directory]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// On a machine with GPUs, run what `gpu-pack` made: tests, suite, examples and benchmark
///
/// Run as `xtask gpu-run`, with the xtask of the packed directory; needs no cargo. The suite has two
/// ranks, processes if there are two GPUs, else threads of one process; examples need a GPU for each
/// rank. Writes doctor.txt, run.json, tests.log, suite.log, examples.log, bench.log, bench.json,
/// post.json, upstream.log and tables.txt, as far as they were asked for.
#[derive(Debug, Args)]
pub struct GpuRunArgs {
    /// The directory for logs and tables
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Run only tests whose name contains this text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    filter: Option<String>,
    /// Run only this part
    #[arg(long, value_enum)]
    only: Option<Only>,
    /// How much each test of the suite does
    #[arg(long, value_enum, default_value = "full")]
    profile: Profile,
    /// Leave out the suite's tests that measure
    #[arg(long)]
    exclude_perf_tests: bool,
    /// How long each test that looks for stale data goes on [default: the suite's]
    #[arg(long, value_name = "SECONDS")]
    stress: Option<u64>,
    /// Run so many ranks of the suite as threads of one process [default: 2, if there is one GPU]
    #[arg(long, value_name = "N", value_parser = ranks)]
    threads: Option<usize>,
    /// Run the suite under NVIDIA's compute-sanitizer, which has to be on the search path
    #[arg(long)]
    memcheck: bool,
    /// Fewer sizes and samples of the benchmark
    #[arg(long)]
    quick: bool,
    /// Only this suite of the benchmark
    #[arg(long, value_name = "NAME", value_parser = SUITES)]
    suite: Option<String>,
    /// Only backends of the benchmark whose name contains this text, such as ipc
    #[arg(long, value_name = "TEXT", value_parser = gpu_backend)]
    backend: Option<String>,
    /// Measure the tests of this build of MSCCL++ too, by mpirun
    #[arg(long, value_name = "DIR")]
    upstream_dir: Option<PathBuf>,
    /// Measure the device functions of this checkout of GPUNetIO too; needs nvcc
    #[arg(long, value_name = "DIR")]
    gpunetio_dir: Option<PathBuf>,
    /// Stop each program after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "540", value_parser = seconds)]
    timeout: Duration,
}

impl GpuPackArgs {
    /// Does what was asked for.
    pub(crate) fn run(self, interrupt: &Interrupt) -> Result<()> {
        pack(self.output.as_deref(), interrupt)
    }
}

impl GpuRunArgs {
    /// Does what was asked for.
    pub(crate) fn run(self, interrupt: &Interrupt) -> Result<()> {
        let options = GpuRun {
            out: self.out,
            filter: self.filter,
            only: self.only,
            profile: self.profile,
            exclude_perf_tests: self.exclude_perf_tests,
            stress: self.stress,
            threads: self.threads,
            memcheck: self.memcheck,
            quick: self.quick,
            suite: self.suite,
            backend: self.backend,
            upstream: self.upstream_dir,
            gpunetio: self.gpunetio_dir,
            timeout: self.timeout,
        };
        run(&options, interrupt)
    }
}
