// SPDX-License-Identifier: MIT
//! What this machine has of what channels need: `mscclpp_port::doctor`, printed. `cargo xtask doctor`
//! starts it.

use std::process::ExitCode;

use clap::Parser;
use mscclpp_conformance::closed_pipe;
use mscclpp_port::doctor::{Check, examine};

/// Exit status: 0 if the default backend works here, 1 if it does not.
#[derive(Debug, Parser)]
struct Options {
    /// Print {"checks":[{"name","status","found","fix"}]}
    #[arg(long)]
    json: bool,
    /// A further check, as JSON
    #[arg(long, value_name = "JSON", value_parser = check)]
    check: Vec<Check>,
}

fn check(text: &str) -> Result<Check, serde_json::Error> {
    serde_json::from_str(text)
}

fn main() -> ExitCode {
    closed_pipe::guard(report)
}

fn report() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    let report = examine(options.check);
    let mut text = if options.json {
        serde_json::to_string_pretty(&report)?
    } else {
        report.to_string()
    };
    if options.json {
        text.push('\n');
    }
    print!("{text}");
    Ok(match report.default_works() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
