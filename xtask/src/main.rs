// SPDX-License-Identifier: MIT
//! The project's tasks: `cargo xtask --help`.

use std::process::ExitCode;

use clap::Parser;
use xtask::cli::Cli;
use xtask::closed_pipe;
use xtask::supervise::Interrupt;

fn main() -> ExitCode {
    closed_pipe::guard(run)
}

fn run() -> ExitCode {
    let cli = Cli::parse();
    match Interrupt::install() {
        Ok(interrupt) => cli.run(&interrupt),
        Err(error) => {
            eprintln!("error: cannot catch signals: {error}");
            ExitCode::FAILURE
        }
    }
}
