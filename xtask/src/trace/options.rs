// SPDX-License-Identifier: MIT
//! The options of `cargo xtask trace`, and, by the path of this file, of the program that it starts.

use std::path::PathBuf;

use clap::Parser;

/// What is written where nothing else is said.
pub(crate) const OUTPUT: &str = "trace.json";

/// Make one time line of ranks' traces, for Perfetto and Chrome
///
/// The files are what RankTrace::save of mscclpp_port::trace writes, one of each rank. The time line is
/// held against the rules of the Trace Event Format before it is written. docs/tracing.md says how
/// programs leave traces.
#[derive(Debug, Parser)]
pub(crate) struct TraceArgs {
    /// Files of ranks; with --check, time lines
    #[arg(value_name = "FILE", required_unless_present = "demo")]
    pub(crate) files: Vec<PathBuf>,
    /// Where to write it [default: trace.json, with --demo in the target directory]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Only hold time lines against the format's rules
    #[arg(long, conflicts_with = "demo")]
    pub(crate) check: bool,
    /// Make the traces, by ping-pongs of two ranks on CPU threads: trace-proxy.json, through proxies over
    /// TCP, and trace-queue.json, on queues of NICs in software
    #[arg(long, conflicts_with = "files")]
    pub(crate) demo: bool,
    /// Round trips of each ping-pong
    #[arg(long, value_name = "N", default_value = "20", conflicts_with = "files",
          value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) iterations: u64,
    /// Write the ranks' own files, too, beside the time lines: trace-proxy-rank0.json and so on
    #[arg(long, conflicts_with = "files")]
    pub(crate) keep: bool,
}
