// SPDX-License-Identifier: MIT
//! The soak. A launcher starts it once a rank.

use std::process::ExitCode;

use clap::Parser;
use mscclpp_conformance::soak::{Options, play, run};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("error"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let options = Options::parse();
    let well = match &options.child {
        Some(part) => play(part).map(|()| true),
        None => run(&options),
    };
    match well {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
