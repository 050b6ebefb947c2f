// SPDX-License-Identifier: MIT
//! Loom models: tests named `loom_…` in a crate's `src`, under `cfg(loom)`.
//!
//! The flag is given to the crate under test alone. Given to all crates by
//! `RUSTFLAGS`, it would also switch off parts of tokio that a crate needs.
//! So loom must be a plain dev-dependency of the crate.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::supervise::{Ending, Interrupt, Stream};
use crate::workspace::{Package, Workspace, describe, run};

/// What every model's name has in it.
const MARK: &str = "loom_";

/// The members that have models.
pub fn packages(workspace: &Workspace) -> Vec<&Package> {
    // Not this package, which only talks about them.
    let others = workspace
        .packages
        .iter()
        .filter(|package| package.name != env!("CARGO_PKG_NAME"));
    others
        .filter(|package| has_models(&package.directory.join("src")))
        .collect()
}

fn has_models(directory: &Path) -> bool {
    let Ok(entries) = fs::read_dir(directory) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return has_models(&path);
        }
        path.extension().is_some_and(|extension| extension == "rs")
            && fs::read_to_string(&path).is_ok_and(|text| text.contains("fn loom_"))
    })
}

/// Builds the models of `package` and returns the command that runs those
/// whose name holds `filter`; `None` when there is none of that name.
///
/// # Errors
///
/// When they cannot be built or listed.
pub fn command(
    workspace: &Workspace,
    package: &Package,
    filter: Option<&str>,
    interrupt: &Interrupt,
) -> Result<Option<Command>> {
    let target = workspace.target.join("loom");
    let Some(target) = target.to_str() else {
        bail!("the target directory's name is not UTF-8");
    };
    let executable = Workspace::build(
        workspace.cargo(),
        &[
            "rustc",
            "--package",
            &package.name,
            "--lib",
            // The test harness, optimised: models explore many executions.
            "--profile",
            "bench",
            "--target-dir",
            target,
            "--",
            "--cfg",
            "loom",
        ],
        interrupt,
    )?;
    let mut command = Command::new(&executable);
    command.current_dir(&package.directory);
    command.args(["--test", "--show-output", "--color", "never"]);
    let Some(filter) = filter else {
        command.arg(MARK);
        return Ok(Some(command));
    };
    let mut list = Command::new(&executable);
    list.args(["--list", "--format", "terse"]);
    let mut names = Vec::new();
    let ending = run(list, None, interrupt, &mut |line| {
        if line.stream == Stream::Out {
            let text = String::from_utf8_lossy(&line.bytes);
            names.extend(text.strip_suffix(": test").map(str::to_owned));
        }
        Ok(())
    })?;
    if !matches!(ending, Ending::Finished) {
        bail!(
            "listing the models of {}: {}",
            package.name,
            describe(&ending)
        );
    }
    names.retain(|name| name.contains(MARK) && name.contains(filter));
    if names.is_empty() {
        return Ok(None);
    }
    command.arg("--exact").args(names);
    Ok(Some(command))
}
