// SPDX-License-Identifier: MIT
//! `cargo xtask check`: format, lints, documentation, and the rules for files
//! and dependencies.

pub mod dependencies;
pub mod files;
pub mod third_party;

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::bindings;
use crate::examples::MANIFEST as EXAMPLES;
use crate::launch::write_line;
use crate::supervise::{Ending, Interrupt};
use crate::workspace::{Workspace, describe, run};

/// Runs every check, also when an early one fails.
///
/// # Errors
///
/// When a check fails: which ones.
pub fn check(interrupt: &Interrupt) -> Result<()> {
    let workspace = Workspace::load()?;
    let mut failed = Vec::new();
    let mut note = |name: &str, started: Instant, result: Result<()>| {
        let seconds = started.elapsed().as_secs();
        match result {
            Ok(()) => println!("ok     {name} ({seconds} s)"),
            Err(error) => {
                println!("FAILED {name} ({seconds} s): {error:#}");
                failed.push(name.to_owned());
            }
        }
    };

    let started = Instant::now();
    note("files", started, files::check(&workspace.root, interrupt));
    let started = Instant::now();
    let lock = workspace.root.join("third_party.lock");
    note("third_party.lock", started, third_party::check(&lock));

    let mut fmt = workspace.cargo();
    // The names of the files alone; `cargo fmt` shows what it does to them.
    fmt.args(["fmt", "--all", "--check", "--", "-l"]);
    // It is in a workspace of its own.
    let mut fmt_oracle = workspace.cargo();
    let manifest = format!("{}/Cargo.toml", bindings::ORACLE);
    fmt_oracle.args(["fmt", "--manifest-path", &manifest, "--check", "--", "-l"]);
    // They are, too.
    let mut fmt_examples = workspace.cargo();
    fmt_examples.args([
        "fmt",
        "--all",
        "--manifest-path",
        EXAMPLES,
        "--check",
        "--",
        "-l",
    ]);
    let mut clippy_examples = workspace.cargo();
    clippy_examples.args(["clippy", "--locked", "--manifest-path", EXAMPLES]);
    clippy_examples.arg("--target-dir").arg(&workspace.target);
    clippy_examples.args(["--all-targets", "--all-features", "--", "-D", "warnings"]);
    let mut clippy = workspace.cargo();
    clippy.args(["clippy", "--workspace", "--all-targets"]);
    clippy.args(workspace.test_features(&[]));
    clippy.args(["--", "-D", "warnings"]);
    // As users choose them; the workspace's tests have nearly all.
    let clippy_features = |features: &str| {
        let mut clippy = workspace.cargo();
        clippy.args([
            "clippy",
            "--package",
            "mscclpp-port",
            "--no-default-features",
        ]);
        clippy.args(["--features", features, "--", "-D", "warnings"]);
        clippy
    };
    let mut docs = workspace.cargo();
    docs.args(["doc", "--workspace", "--no-deps"]);
    docs.args(workspace.test_features(&[]));
    docs.env("RUSTDOCFLAGS", "-D warnings");
    for (name, command) in [
        ("fmt", fmt),
        ("fmt of the oracle", fmt_oracle),
        ("fmt of the examples", fmt_examples),
        ("clippy", clippy),
        ("clippy of the examples", clippy_examples),
        ("clippy without features", clippy_features("")),
        ("clippy of ib alone", clippy_features("ib")),
        ("clippy of cuda alone", clippy_features("cuda")),
        ("docs", docs),
    ] {
        let started = Instant::now();
        note(name, started, cargo(command, interrupt));
        if let Some(signal) = interrupt.signal() {
            bail!("stopped by signal {signal}");
        }
    }
    for program in dependencies::PROGRAMS {
        let started = Instant::now();
        match program.command(&workspace) {
            Ok(command) => note(program.name, started, cargo(command, interrupt)),
            Err(reason) => println!("SKIP {}: {reason}", program.name),
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!(
        "{} of the checks failed: {}",
        failed.len(),
        failed.join(", ")
    )
}

fn cargo(command: Command, interrupt: &Interrupt) -> Result<()> {
    let ending = run(command, None, interrupt, &mut |line| {
        write_line(line.stream, "", &line.bytes)
    })?;
    match ending {
        Ending::Finished => Ok(()),
        ending => bail!("{}", describe(&ending)),
    }
}
