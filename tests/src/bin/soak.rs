// SPDX-License-Identifier: MIT
//! The soak. A launcher starts it once a rank.

use std::process::ExitCode;

use clap::Parser;
use mscclpp_conformance::closed_pipe;
use mscclpp_conformance::log;
use mscclpp_conformance::soak::{Options, play, run};
use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    closed_pipe::guard(rank)
}

fn rank() -> ExitCode {
    log::init(LevelFilter::ERROR);
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
