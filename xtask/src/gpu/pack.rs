// SPDX-License-Identifier: MIT
//! `cargo xtask gpu-pack`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::machine::{now, output};
use super::{BENCH, DOCTOR, MANIFEST, Manifest, SUITE, XTASK};
use crate::examples;
use crate::launch::find_program;
use crate::supervise::Interrupt;
use crate::workspace::{SUITE as PACKAGE, Workspace};

/// The feature, which tests want anyway, and the name of the test programs that want a GPU.
const CUDA: &str = "cuda";

/// Above this a directory does not travel well.
const MOST: u64 = 60 << 20;

/// Builds what a machine with GPUs needs into `directory`, by default `gpu` in the target directory.
///
/// # Errors
///
/// When something cannot be built or written, or the whole is too large.
pub fn pack(directory: Option<&Path>, interrupt: &Interrupt) -> Result<()> {
    let workspace = Workspace::load()?;
    let directory = match directory {
        Some(path) => std::path::absolute(path)?,
        None => workspace.target.join("gpu"),
    };
    let mut programs: Vec<(String, PathBuf)> = Vec::new();
    for name in [SUITE, BENCH, DOCTOR] {
        let args = [
            "build",
            "--release",
            "-p",
            PACKAGE,
            "--features",
            CUDA,
            "--bin",
            name,
        ];
        programs.push((
            name.into(),
            Workspace::build(workspace.cargo(), &args, interrupt)?,
        ));
    }
    let args = ["build", "--release", "-p", XTASK, "--bin", XTASK];
    programs.push((
        XTASK.into(),
        Workspace::build(workspace.cargo(), &args, interrupt)?,
    ));
    let mut tests = Vec::new();
    for package in workspace
        .packages
        .iter()
        .filter(|package| package.has_test(CUDA))
    {
        // The features that its tests want, as in `test-cpu`.
        let features = workspace.test_features_of(package).join(",");
        let args = [
            "test",
            "--release",
            "--no-run",
            "-p",
            &package.name,
            "--features",
            &features,
            "--test",
            CUDA,
        ];
        let name = format!("{}-{CUDA}", package.name);
        programs.push((
            name.clone(),
            Workspace::build(workspace.cargo(), &args, interrupt)?,
        ));
        tests.push(name);
    }

    let examples = examples::gpu_runs(&workspace)?;
    for run in &examples {
        if programs.iter().any(|(name, _)| *name == run.package) {
            continue;
        }
        let mut args = vec!["build", "--release", "--locked", "--all-features"];
        args.extend(["--manifest-path", examples::MANIFEST, "-p", &run.package]);
        let mut cargo = workspace.cargo();
        // Cargo takes a manifest's own workspace's otherwise.
        cargo.env("CARGO_TARGET_DIR", &workspace.target);
        let program = Workspace::build(cargo, &args, interrupt)?;
        programs.push((run.package.clone(), program));
    }

    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    // What an earlier run left must not travel too.
    for entry in fs::read_dir(&directory)? {
        let path = entry?.path();
        if path.is_file() {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    let mut bytes = 0;
    for (name, program) in &programs {
        let packed = directory.join(name);
        strip(program, &packed)?;
        let size = fs::metadata(&packed)?.len();
        println!("{:>8.1} MiB  {name}", size as f64 / f64::from(1 << 20));
        bytes += size;
    }
    ensure!(
        bytes < MOST,
        "the programs have {bytes} bytes, more than {MOST}"
    );
    let manifest = Manifest {
        commit: workspace.commit(),
        rustc: output("rustc", &["-V"]).unwrap_or_default(),
        built: now(),
        tests,
        examples,
        bytes,
    };
    let text = serde_json::to_string_pretty(&manifest)?;
    fs::write(directory.join(MANIFEST), text + "\n")?;
    println!(
        "{:>8.1} MiB  in {}",
        bytes as f64 / f64::from(1 << 20),
        directory.display()
    );
    println!("there: {}/{XTASK} gpu-run --out DIR", directory.display());
    Ok(())
}

/// Copies a program without what only debuggers need.
fn strip(from: &Path, to: &Path) -> Result<()> {
    if find_program("strip").is_none() {
        fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
        return Ok(());
    }
    let mut command = Command::new("strip");
    command.arg("-s").arg("-o").arg(to).arg(from);
    let status = command.status().context("cannot start strip")?;
    if !status.success() {
        bail!("strip {}: {status}", from.display());
    }
    Ok(())
}
