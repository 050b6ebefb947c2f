// SPDX-License-Identifier: MIT
//! The benchmark. A launcher starts it once a rank; ranks 0 and 1 measure.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::Parser;
use mscclpp_bootstrap::{Bootstrap as _, Deadline, TcpBootstrap, launcher};
use mscclpp_conformance::bench::{LIMIT, Options, Run, Source, posting, run, table};
use mscclpp_conformance::cases;
use mscclpp_conformance::closed_pipe;
use mscclpp_conformance::harness::{Context, Profile};
use mscclpp_conformance::log;
use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    closed_pipe::guard(measured)
}

fn measured() -> ExitCode {
    log::init(LevelFilter::WARN);
    let options = Options::parse();
    if let Some(part) = &options.child {
        return cases::play(part);
    }
    let measured = if options.is_posting() {
        post(&options)
    } else {
        measure(&options)
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Alone: if a launcher has started several, the first one does it.
fn post(options: &Options) -> anyhow::Result<()> {
    if launcher::detect()?.is_some_and(|launched| launched.rank != 0) {
        return Ok(());
    }
    let (checkout, json) = (options.gpunetio_dir.as_deref(), options.json.as_deref());
    posting(options.quick, checkout, json)
}

fn measure(options: &Options) -> anyhow::Result<()> {
    let bootstrap = Arc::new(TcpBootstrap::from_launcher(Duration::from_secs(60))?);
    let (rank, ranks) = (bootstrap.rank(), bootstrap.world_size());
    ensure!(
        ranks >= 2,
        "the benchmark needs 2 ranks: `cargo xtask bench` starts them"
    );
    let profile = if options.quick {
        Profile::Quick
    } else {
        Profile::Full
    };
    if rank < 2 {
        let context = Context::of_job(bootstrap.clone(), Deadline::after(LIMIT)).with(2, profile);
        let started = Run::start();
        let found = run(
            &context,
            options.executor,
            options.suite.as_deref(),
            options.backend.as_deref(),
            |points| {
                if rank == 0 {
                    println!("\n{}", table(points));
                }
            },
        )?;
        let source = Source {
            commit: options.commit.as_deref(),
            command: options.command.as_deref(),
        };
        started.end(
            &context,
            options.executor,
            &found,
            source,
            options.json.as_deref(),
        )?;
    }
    Ok(bootstrap.barrier()?)
}
