// SPDX-License-Identifier: MIT
//! Measures one world. A launcher starts it once a rank, or its ranks are threads.

use std::process::ExitCode;

use clap::Parser;
use mscclpp_conformance::scale::{Options, Row, processes, threads};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
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
