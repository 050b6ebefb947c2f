// SPDX-License-Identifier: MIT
//! The conformance suite. A launcher starts it once a rank.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use mscclpp_bootstrap::{TcpBootstrap, launcher};
use mscclpp_conformance::cases;
use mscclpp_conformance::harness::{Control, Options, run, selected};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("error"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let options = Options::parse();
    if let Some(part) = &options.child {
        return cases::play(part);
    }
    if options.list {
        return list(&options);
    }
    match join() {
        Ok(control) if run(&control, &options, cases::all()).failed() => ExitCode::FAILURE,
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the ranks of the suite do not meet: {error}");
            println!("0 passed, 1 failed, 0 skipped");
            ExitCode::FAILURE
        }
    }
}

/// Prints the selected tests, on one rank only.
fn list(options: &Options) -> ExitCode {
    let rank = launcher::detect()
        .ok()
        .flatten()
        .map_or(0, |info| info.rank);
    if rank == 0 {
        for test in cases::all().iter().filter(|test| selected(options, test)) {
            println!("{}", test.name);
        }
    }
    ExitCode::SUCCESS
}

/// Meets the other ranks of the run. Without a launcher this process is the only one.
fn join() -> Result<Control, mscclpp_bootstrap::BootstrapError> {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let bootstrap = if launcher::detect()?.is_some() {
        TcpBootstrap::from_launcher(TIMEOUT)?
    } else {
        eprintln!("no launcher: rank 0 of 1; `cargo xtask test-mp -n 2` starts two ranks");
        let alone = TcpBootstrap::new(0, 1)?;
        let id = alone.create_unique_id()?;
        alone.initialize(&id, TIMEOUT)?;
        alone
    };
    Ok(Control::new(Arc::new(bootstrap)))
}
