// SPDX-License-Identifier: MIT
//! Building the targets for libFuzzer, and finding them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use cargo_metadata::Message;

use super::Target;
use crate::launch::write_line;
use crate::sanitize;
use crate::supervise::{Ending, Interrupt, Stream};
use crate::workspace::{Workspace, describe, run};

/// The packages whose libraries have targets. What xtask decodes is compiled into the first.
const PACKAGES: [&str; 5] = [
    "mscclpp-fuzz",
    "mlx5-queue",
    "mscclpp-bootstrap",
    "mscclpp-softnic",
    "mscclpp-port",
];

/// What a target's name begins with.
const MARK: &str = "fuzz_";

/// bolero's engine, and what counts edges and tells of comparisons.
const FLAGS: [&str; 7] = [
    "--cfg fuzzing",
    "--cfg fuzzing_libfuzzer",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Runs that are shorter are over before an optimised build is.
const WORTH_OPTIMISING: Duration = Duration::from_secs(10);

/// Builds them for runs of `time` each, in a target directory of their own.
///
/// # Errors
///
/// When that fails, or a package has no target.
pub(super) fn targets(
    workspace: &Workspace,
    home: &Path,
    time: Duration,
    interrupt: &Interrupt,
) -> Result<Vec<Target>> {
    let mut command = workspace.cargo();
    if time < WORTH_OPTIMISING {
        command.env("CARGO_PROFILE_FUZZ_OPT_LEVEL", "0");
    }
    command
        .env("RUSTFLAGS", FLAGS.join(" "))
        // Named, so that build scripts and procedural macros are built without.
        .env("CARGO_BUILD_TARGET", sanitize::host()?)
        .env("CARGO_TARGET_DIR", home)
        .args(["test", "--profile", "fuzz", "--no-run", "--lib"])
        .arg("--message-format=json-render-diagnostics");
    for package in PACKAGES {
        command.args(["--package", package]);
    }
    let others: Vec<&str> = (workspace.packages.iter())
        .map(|package| package.name.as_str())
        .filter(|name| !PACKAGES.contains(name))
        .collect();
    command.args(workspace.test_features(&others));
    let mut programs = Vec::new();
    let ending = run(command, None, interrupt, &mut |line| {
        if line.stream == Stream::Err {
            return write_line(Stream::Err, "", &line.bytes);
        }
        let message = serde_json::from_slice::<Message>(&line.bytes);
        if let Ok(Message::CompilerArtifact(artifact)) = message
            && let Some(path) = artifact.executable
        {
            programs.push((artifact.target.name, PathBuf::from(path)));
        }
        Ok(())
    })?;
    if !matches!(ending, Ending::Finished) {
        bail!("building the fuzz targets: {}", describe(&ending));
    }
    let mut targets = Vec::new();
    for (package, program) in programs {
        let before = targets.len();
        for test in tests(&program, interrupt)? {
            targets.push(Target {
                name: format!("{package}::{test}"),
                test,
                program: program.clone(),
            });
        }
        if targets.len() == before {
            bail!("{package} has no fuzz target");
        }
    }
    targets.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(targets)
}

/// The targets of one program.
fn tests(program: &Path, interrupt: &Interrupt) -> Result<Vec<String>> {
    let mut list = Command::new(program);
    list.args(["--list", "--format", "terse"]);
    let mut names = Vec::new();
    let ending = run(list, None, interrupt, &mut |line| {
        let text = String::from_utf8_lossy(&line.bytes);
        names.extend(text.strip_suffix(": test").map(str::to_owned));
        Ok(())
    })?;
    if !matches!(ending, Ending::Finished) {
        bail!("listing {}: {}", program.display(), describe(&ending));
    }
    names.retain(|name| is_target(name));
    Ok(names)
}

fn is_target(test: &str) -> bool {
    test.rsplit("::")
        .next()
        .is_some_and(|name| name.starts_with(MARK))
}

#[cfg(test)]
mod tests_of_names {
    use super::*;

    #[test]
    fn a_target_is_known_by_its_own_name() {
        assert!(is_target("devx::fuzz::fuzz_devx_commands"));
        assert!(is_target("fuzz_head"));
        assert!(!is_target("fuzz_x::other"));
        assert!(!is_target("not_fuzz_x"));
    }
}
