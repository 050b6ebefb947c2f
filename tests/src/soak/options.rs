// SPDX-License-Identifier: MIT
//! The command line of a soak.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Operations and faults, for as long as is said: one process per rank, started by a launcher.
#[derive(Clone, Debug, Parser)]
#[command(name = "soak", version)]
pub struct Options {
    /// How long
    #[arg(long, default_value = "1800", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub seconds: u64,

    /// Where all that is drawn comes from
    #[arg(long, default_value = "1")]
    pub seed: u64,

    /// Where rank 0 writes counts and samples
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Keep something on rank 1 after each era, which must be found
    #[arg(long, hide = true, value_enum)]
    pub plant_leak: Option<Leak>,

    /// Play a part in a job beside the run; not for use by hand
    #[arg(long, hide = true)]
    pub child: Option<String>,
}

/// What a planted leak keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Leak {
    /// Bytes.
    Memory,
    /// A file.
    Descriptors,
    /// One that waits for ever.
    Threads,
    /// A registration.
    Objects,
}
