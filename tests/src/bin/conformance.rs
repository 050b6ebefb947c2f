// SPDX-License-Identifier: MIT
//! The conformance suite. A launcher starts it once a rank, or its ranks are threads.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use mscclpp_bootstrap::{BootstrapError, TcpBootstrap, launcher};
use mscclpp_conformance::backend::Executor;
use mscclpp_conformance::cases;
use mscclpp_conformance::closed_pipe;
use mscclpp_conformance::harness::{Control, Options, run, selected};
use mscclpp_conformance::log;
use tracing_subscriber::filter::LevelFilter;

/// How long ranks may take to find each other.
const MEET: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    closed_pipe::guard(suite)
}

fn suite() -> ExitCode {
    log::init(LevelFilter::ERROR);
    let options = Options::parse();
    if let Err(why) = options.provider.choose() {
        eprintln!("{why}");
        println!("0 passed, 1 failed, 0 skipped");
        return ExitCode::FAILURE;
    }
    if let Some(part) = &options.child {
        return cases::play(part);
    }
    if options.list {
        return list(&options);
    }
    let well = match options.threads {
        Some(ranks) => threads(ranks.into(), &options),
        None => join().map(|control| rank(&control, &options)),
    };
    match well {
        Ok(true) => ExitCode::SUCCESS,
        // A kernel that did not end may be why, and the driver would wait for it at the exit.
        Ok(false) if options.executor == Executor::Cuda => end_at_once(),
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the ranks of the suite do not meet: {error}");
            println!("0 passed, 1 failed, 0 skipped");
            ExitCode::FAILURE
        }
    }
}

/// Ends this process as failed, without what libraries do at an exit.
fn end_at_once() -> ! {
    // What was printed is complete: standard output is written line by line.
    // SAFETY: it does not return, so nothing of this process can be in a bad state after it.
    unsafe { libc::_exit(1) }
}

/// Runs one rank; whether nothing failed.
fn rank(control: &Control, options: &Options) -> bool {
    let report = run(control, options, cases::all(options.executor));
    let kills = cases::kill_cases();
    if kills > 0 {
        println!("{kills} kill cases");
    }
    !report.failed()
}

/// Runs all ranks as threads, and the first of them on this one.
fn threads(ranks: usize, options: &Options) -> Result<bool, BootstrapError> {
    let first = TcpBootstrap::new(0, ranks)?;
    let id = first.create_unique_id()?;
    let meet = |bootstrap: TcpBootstrap| -> Result<bool, BootstrapError> {
        bootstrap.initialize(&id, MEET)?;
        Ok(rank(&Control::new(Arc::new(bootstrap)), options))
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..ranks)
            .map(|rank| scope.spawn(move || meet(TcpBootstrap::new(rank, ranks)?)))
            .collect();
        let mut well = meet(first)?;
        for other in others {
            match other.join() {
                Ok(result) => well &= result?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(well)
    })
}

/// Prints the selected tests, on one rank only.
fn list(options: &Options) -> ExitCode {
    let rank = launcher::detect()
        .ok()
        .flatten()
        .map_or(0, |info| info.rank);
    if rank == 0 {
        let tests = cases::all(options.executor);
        for test in tests.iter().filter(|test| selected(options, test)) {
            println!("{}", test.name);
        }
    }
    ExitCode::SUCCESS
}

/// Meets the other ranks of the run. Without a launcher this process is the only one.
fn join() -> Result<Control, BootstrapError> {
    let bootstrap = if launcher::detect()?.is_some() {
        TcpBootstrap::from_launcher(MEET)?
    } else {
        eprintln!("no launcher: rank 0 of 1; `cargo xtask test-mp -n 2` starts two ranks");
        let alone = TcpBootstrap::new(0, 1)?;
        let id = alone.create_unique_id()?;
        alone.initialize(&id, MEET)?;
        alone
    };
    Ok(Control::new(Arc::new(bootstrap)))
}
