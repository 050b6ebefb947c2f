// SPDX-License-Identifier: MIT
//! `cargo xtask dist --check`: what is laid out is complete, may be moved, and is enough to compile
//! with, as docs/kernels.md says; and so are the crates when they are packed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{DEVICE, FILES, GPUNETIO_PC, OWN, lay_out, names};
use crate::examples::consumers;
use crate::launch::find_program;
use crate::supervise::Interrupt;
use crate::tally::Tally;
use crate::verdict::{Verdict, Verdicts};
use crate::workspace::{Package, Workspace, run_quietly};

/// Where the page says that it lies.
const PREFIX: &str = "/opt/mscclpp";

/// Checks all of it; the last line printed is the returned tally.
///
/// # Errors
///
/// When nothing can be checked, or the user interrupts.
pub fn check(interrupt: &Interrupt) -> Result<Tally> {
    let workspace = Workspace::load()?;
    let directory = tempfile::tempdir().context("a temporary directory")?;
    let first = directory.path().join("first");
    let moved = directory.path().join("moved");
    let page = fs::read_to_string(workspace.root.join("docs/kernels.md"))?;

    let mut verdicts = Verdicts::new(None);
    verdicts.tell("what is laid out", complete(&workspace, &first).into());
    fs::rename(&first, &moved).context("cannot move what was laid out")?;
    let paths = no_paths(&workspace, &moved, directory.path());
    verdicts.tell("no path of this machine in it", paths.into());
    let gpunetio = with_gpunetio(&workspace, &directory.path().join("gpunetio"));
    verdicts.tell("with GPUNetIO, and without again", gpunetio.into());
    for tools in [
        &["g++", "pkg-config"][..],
        &["nvcc", "pkg-config"],
        &["cmake"],
    ] {
        let tool = tools[0];
        let missing = tools.iter().find(|name| find_program(name).is_none());
        let verdict = match missing {
            Some(name) => Verdict::Skipped(format!("there is no {name}")),
            None => as_told(&page, tool, &moved, &directory.path().join(tool), interrupt).into(),
        };
        verdicts.tell(&format!("docs/kernels.md, {tool}"), verdict);
        stop(interrupt)?;
    }
    // Where it was before, so that builds of it are found again.
    let packed = packed(&workspace, &workspace.target.join("packed"), interrupt);
    stop(interrupt)?;
    verdicts.tell("packed crates are complete, and build", packed.into());
    verdicts.conclude()
}

fn stop(interrupt: &Interrupt) -> Result<()> {
    match interrupt.signal() {
        Some(signal) => bail!("stopped by signal {signal}"),
        None => Ok(()),
    }
}

/// The files are those that the page lists, and all headers.
fn complete(workspace: &Workspace, prefix: &Path) -> Result<()> {
    let files = lay_out(workspace, prefix, None)?;
    let mut expected: Vec<PathBuf> = FILES.iter().map(|(name, _)| name.into()).collect();
    expected.push(Path::new(OWN[3]).join("LICENSE"));
    let headers = workspace
        .root
        .join("crates")
        .join(DEVICE)
        .join("include/mscclpp");
    let names = names(&headers)?;
    ensure!(
        names.iter().any(|name| name == "port_channel.hpp"),
        "headers: {names:?}"
    );
    expected.extend(
        names
            .iter()
            .map(|name| Path::new(OWN[0]).join("mscclpp").join(name)),
    );
    expected.sort();
    ensure!(files == expected, "found {files:?}, not {expected:?}");
    Ok(())
}

/// No file names a directory of the build, the user's or one that it was in.
fn no_paths(workspace: &Workspace, prefix: &Path, directory: &Path) -> Result<()> {
    let home = std::env::var_os("HOME")
        .map(PathBuf::from)
        .unwrap_or_default();
    let places = [&workspace.root, &workspace.target, directory, &home];
    let places: Vec<String> = (places.iter())
        .map(|place| place.display().to_string())
        // "/" is in many a text.
        .filter(|place| place.len() > 1)
        .collect();
    let mut looked_at = 0;
    for file in files_below(prefix)? {
        let bytes = fs::read(&file)?;
        let text = String::from_utf8_lossy(&bytes);
        for place in &places {
            ensure!(
                !text.contains(place),
                "{}: has {place} in it",
                file.display()
            );
        }
        looked_at += 1;
    }
    ensure!(looked_at > FILES.len(), "only {looked_at} files");
    Ok(())
}

fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for name in names(directory)? {
        let path = directory.join(name);
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

/// With a checkout there are its headers and its licence, without one nothing of it. What is in the
/// checkout does not matter, so this is none of NVIDIA's.
fn with_gpunetio(workspace: &Workspace, directory: &Path) -> Result<()> {
    let (checkout, prefix) = (directory.join("checkout"), directory.join("prefix"));
    fs::create_dir_all(checkout.join("include/host"))?;
    fs::create_dir_all(checkout.join("src"))?;
    for (name, text) in [
        ("include/host/a.h", "int a;\n"),
        ("src/a.cpp", "int b;\n"),
        ("LICENSE.txt", "a licence\n"),
    ] {
        fs::write(checkout.join(name), text)?;
    }
    let of_it = |files: &[PathBuf]| -> Vec<String> {
        let names = files.iter().map(|file| file.display().to_string());
        names.filter(|name| name.contains("gpunetio")).collect()
    };
    let with = of_it(&lay_out(workspace, &prefix, Some(&checkout))?);
    let header = format!("{}/host/a.h", OWN[1]);
    let licence = format!("{}/gpunetio/LICENSE.txt", OWN[3]);
    let expected = [&header, GPUNETIO_PC, &licence];
    ensure!(with == expected, "found {with:?}, not {expected:?}");
    let without = lay_out(workspace, &prefix, None)?;
    ensure!(of_it(&without).is_empty(), "without, there is {without:?}");
    let left = of_it(
        &files_below(&prefix)?
            .iter()
            .map(|file| file.strip_prefix(&prefix).unwrap_or(file).into())
            .collect::<Vec<_>>(),
    );
    ensure!(left.is_empty(), "left behind: {left:?}");
    fs::remove_file(checkout.join("LICENSE.txt"))?;
    let refused = lay_out(workspace, &prefix, Some(&checkout)).is_err();
    ensure!(refused, "a checkout without a licence was taken");
    Ok(())
}

/// Does in an empty directory what the page says, those of its commands that name `tool`.
fn as_told(
    page: &str,
    tool: &str,
    prefix: &Path,
    directory: &Path,
    interrupt: &Interrupt,
) -> Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join("kernel.cpp"), block(page, "cpp")?)?;
    fs::write(directory.join("CMakeLists.txt"), block(page, "cmake")?)?;
    let commands: Vec<&str> = (page.lines())
        .filter_map(|line| line.strip_prefix("$ "))
        .filter(|command| command.split(' ').next() == Some(tool))
        .collect();
    ensure!(!commands.is_empty(), "the page has no command {tool}");
    let place = prefix.display().to_string();
    for command in commands {
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-ec", &command.replace(PREFIX, &place)])
            .current_dir(directory);
        shell.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        run_quietly(shell, interrupt).with_context(|| command.to_owned())?;
    }
    let objects = files_below(directory)?;
    let made = |suffix| {
        objects
            .iter()
            .any(|file| file.to_string_lossy().ends_with(suffix))
    };
    ensure!(made(".o") || made(".a"), "nothing was compiled");
    if tool == "cmake" {
        let list = block(page, "cmake")?.replace("mscclpp-device 0.1", "mscclpp-device 9.0");
        fs::write(directory.join("CMakeLists.txt"), list)?;
        let mut cmake = Command::new("cmake");
        cmake
            .args(["-S", ".", "-B", "other"])
            .current_dir(directory);
        cmake.arg(format!("-DCMAKE_PREFIX_PATH={place}"));
        let refused = run_quietly(cmake, interrupt).is_err();
        ensure!(refused, "version 9.0 was found");
    }
    Ok(())
}

/// The first block of a language.
fn block<'a>(page: &'a str, language: &str) -> Result<&'a str> {
    let start = format!("```{language}\n");
    let (_, rest) = page
        .split_once(&start)
        .with_context(|| format!("no block of {language}"))?;
    Ok(rest.split("```").next().unwrap_or_default())
}

/// Packs the crates, looks at what is inside, and builds packages that use it.
fn packed(workspace: &Workspace, directory: &Path, interrupt: &Interrupt) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    }
    fs::create_dir_all(directory)?;
    let mut cargo = workspace.cargo();
    cargo.args([
        "package",
        "--workspace",
        "--no-verify",
        "--allow-dirty",
        "--offline",
    ]);
    let (published, others): (Vec<&Package>, Vec<&Package>) =
        (workspace.packages.iter()).partition(|package| package.published);
    for package in others {
        cargo.args(["--exclude", &package.name]);
    }
    cargo.arg("--target-dir").arg(directory.join("target"));
    run_quietly(cargo, interrupt)?;

    let archives = directory.join("target/package");
    let mut packages = Vec::new();
    for name in names(&archives)?
        .iter()
        .filter(|name| name.ends_with(".crate"))
    {
        let mut tar = Command::new("tar");
        tar.arg("-xzf")
            .arg(archives.join(name))
            .arg("-C")
            .arg(directory);
        run_quietly(tar, interrupt)?;
        let name = name.trim_end_matches(".crate");
        let suffix = concat!("-", env!("CARGO_PKG_VERSION"));
        let package = name
            .strip_suffix(suffix)
            .with_context(|| format!("{name}: its version"))?;
        packages.push((package.to_owned(), directory.join(name)));
    }
    for Package { name, .. } in &published {
        let found = packages.iter().find(|(package, _)| package == name);
        let (_, place) = found.with_context(|| format!("{name} was not packed"))?;
        for file in ["LICENSE", "README.md"] {
            let text = fs::read_to_string(place.join(file));
            ensure!(
                text.is_ok_and(|text| !text.is_empty()),
                "{name} has no {file}"
            );
        }
    }
    ensure!(packages.len() == published.len(), "packed: {packages:?}");
    consumers::build_unpacked(workspace, &packages, interrupt)
}
