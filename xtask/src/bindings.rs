// SPDX-License-Identifier: MIT
//! `cargo xtask bindings --check`: holds the declarations of `mscclpp-ib-sys` against the headers of the
//! system's rdma-core.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::launch::write_line;
use crate::supervise::{Ending, Interrupt, Stream};
use crate::tally::Tally;
use crate::test_cpu::required;
use crate::test_output::TestOutput;
use crate::workspace::{Workspace, describe, run_merged};

/// The packages that hold the headers and what reads them.
const PACKAGES: &str = "libibverbs-dev librdmacm-dev libclang-dev pkg-config";

/// Where the package is that asks bindgen and rdma-sys. It is in a workspace of its own.
pub(crate) const ORACLE: &str = "crates/mscclpp-ib-sys/oracle";

/// Runs the check; the last line printed is the returned tally.
///
/// # Errors
///
/// When cargo cannot be run, or the user interrupts.
pub fn check(timeout: Duration, interrupt: &Interrupt) -> Result<Tally> {
    let workspace = Workspace::load()?;
    let tally = match missing() {
        Some(what) => skip(&what, &required()),
        None => run(&workspace, timeout, interrupt)?,
    };
    println!("{tally}");
    Ok(tally)
}

/// What is not installed, if anything is not.
fn missing() -> Option<String> {
    for library in ["libibverbs", "librdmacm"] {
        let found = Command::new("pkg-config")
            .args(["--exists", library])
            .status();
        match found {
            Ok(status) if status.success() => {}
            Ok(_) => return Some(format!("pkg-config knows no {library}")),
            Err(error) => return Some(format!("pkg-config: {error}")),
        }
    }
    (!has_libclang()).then(|| "there is no libclang".into())
}

/// Where bindgen looks for it.
fn has_libclang() -> bool {
    // libclang.so, libclang-14.so.1 and the like; not libclang-cpp.so.
    let is_it = |name: &str| {
        let rest = name.strip_prefix("libclang").unwrap_or_default();
        let version = rest.strip_prefix('-').unwrap_or_default();
        rest.starts_with(".so")
            || version.starts_with(|c: char| c.is_ascii_digit()) && rest.contains(".so")
    };
    let holds = |directory: &Path| {
        let files = fs::read_dir(directory).into_iter().flatten().flatten();
        files
            .map(|file| file.file_name())
            .any(|name| is_it(&name.to_string_lossy()))
    };
    if let Some(path) = std::env::var_os("LIBCLANG_PATH") {
        let path = Path::new(&path);
        return path.is_file() || holds(path);
    }
    let versions = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let versions =
        versions.filter(|entry| entry.file_name().to_string_lossy().starts_with("llvm-"));
    versions
        .map(|entry| entry.path().join("lib"))
        .any(|directory| holds(&directory))
        || [
            "/usr/lib64",
            "/usr/lib",
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
        ]
        .iter()
        .any(|directory| holds(Path::new(directory)))
}

/// A skip that is printed, or a failure where the environment says that it must run.
fn skip(what: &str, required: &[String]) -> Tally {
    let mut tally = Tally::default();
    let reason = format!("{what}; to run it: apt-get install {PACKAGES}");
    if required.iter().any(|word| word == "bindings") {
        println!("FAILED bindings: {reason}");
        tally.failed = 1;
    } else {
        println!("SKIP bindings: {reason}");
        tally.skipped = 1;
    }
    tally
}

fn run(workspace: &Workspace, timeout: Duration, interrupt: &Interrupt) -> Result<Tally> {
    let mut command = workspace.cargo();
    command.arg("test").arg("--manifest-path");
    command.arg(workspace.root.join(ORACLE).join("Cargo.toml"));
    command.args([
        "--locked",
        "--no-fail-fast",
        "--color",
        "never",
        "--target-dir",
    ]);
    command.arg(workspace.target.join("oracle"));
    // One thread, so that each count stands beside its test.
    command.args([
        "--tests",
        "--",
        "--nocapture",
        "--test-threads",
        "1",
        "--color",
        "never",
    ]);
    let mut output = TestOutput::requiring(&[]);
    let ending = run_merged(command, Some(timeout), interrupt, &mut |line| {
        output.line(&String::from_utf8_lossy(&line.bytes));
        write_line(Stream::Out, "", &line.bytes)
    })?;
    let problem = format!("bindings: {}", describe(&ending));
    match ending {
        Ending::Finished => output.finish(None),
        // A declaration that does not fit at all ends the build.
        Ending::Failed { .. } => output.finish(Some(problem)),
        Ending::Deadline { .. } => {
            output.finish(None);
            output.fail(problem);
        }
        Ending::Interrupted { .. } | Ending::Output(_) => bail!("{problem}"),
    }
    for failure in output.failures() {
        println!("FAILED {failure}");
    }
    Ok(output.tally())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_a_skip_or_where_it_is_required_a_failure() {
        let tally = skip("no headers", &["clang".into()]);
        assert_eq!(tally.to_string(), "0 passed, 0 failed, 1 skipped");
        let tally = skip("no headers", &["clang".into(), "bindings".into()]);
        assert_eq!(tally.to_string(), "0 passed, 1 failed, 0 skipped");
    }
}
