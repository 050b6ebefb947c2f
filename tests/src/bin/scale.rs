// SPDX-License-Identifier: MIT
//! Measures one world. A launcher starts it once a rank, or its ranks are threads.

use std::process::ExitCode;

use clap::Parser;
use mscclpp_conformance::closed_pipe;
use mscclpp_conformance::log;
use mscclpp_conformance::scale::{Options, Row, processes, threads};
use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    closed_pipe::guard(world)
}

fn world() -> ExitCode {
    log::init(LevelFilter::WARN);
    match measure(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> anyhow::Result<()> {
    let degree = usize::from(options.degree);
    let row: Option<Row> = match options.threads {
        Some(world) => Some(threads(world.into(), degree)?),
        None => processes(degree)?,
    };
    if let Some(row) = row {
        println!("{}", serde_json::to_string(&row)?);
    }
    Ok(())
}
