// SPDX-License-Identifier: MIT
//! `cargo xtask fetch`: the pinned GPUNetIO, into a cache outside the tree.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{FlockOperation, flock};

use crate::check::third_party::{self, Source};
use crate::launch::write_line;
use crate::supervise::{Ending, Interrupt};
use crate::workspace::{Workspace, describe, run};

pub mod checkout;

use checkout::{Found, Pin, SOURCE_DIR};

/// The name of the library in `third_party.lock`.
const NAME: &str = "gpunetio";
/// What a directory is called until it is complete.
const PARTIAL: &str = ".partial";

/// Fetches what `third_party.lock` names, or checks the checkout that the user named instead.
///
/// # Errors
///
/// A sentence that says what to do.
pub fn fetch(interrupt: &Interrupt) -> Result<()> {
    ensure(&Workspace::load()?, interrupt).map(drop)
}

/// As [`fetch`], and tells where the checkout is; for tasks that compile it.
///
/// # Errors
///
/// As [`fetch`].
pub fn ensure(workspace: &Workspace, interrupt: &Interrupt) -> Result<Found> {
    obtain(
        &source(workspace)?,
        &|name| std::env::var_os(name),
        interrupt,
    )
}

/// What `third_party.lock` says of the library.
///
/// # Errors
///
/// When the file cannot be read or does not name it.
pub fn source(workspace: &Workspace) -> Result<Source> {
    let lock = workspace.root.join("third_party.lock");
    let text = fs::read_to_string(&lock).with_context(|| format!("{}", lock.display()))?;
    let file = third_party::parse(&text).context("third_party.lock")?;
    let source = file.source.into_iter().find(|source| source.name == NAME);
    source.with_context(|| format!("third_party.lock does not name {NAME}"))
}

/// The state that is wanted.
pub fn pin(source: &Source) -> Pin {
    Pin {
        commit: source.commit.clone(),
        license: source.license.clone(),
    }
}

/// Fetches one source, unless it is there already or the user has a checkout.
///
/// `variable` reads the environment. The git repository at the source's address need not be
/// official: what is taken is the commit, by its hash.
///
/// # Errors
///
/// A sentence that says what to do.
pub fn obtain(
    source: &Source,
    variable: &dyn Fn(&str) -> Option<OsString>,
    interrupt: &Interrupt,
) -> Result<Found> {
    let pin = pin(source);
    let own = variable(SOURCE_DIR).is_some_and(|value| !value.is_empty());
    if !own {
        let target = checkout::cached(&pin, variable).map_err(|message| anyhow!(message))?;
        let cache = target.parent().context("the cache has no parent")?;
        fs::create_dir_all(cache).with_context(|| format!("cannot make {}", cache.display()))?;
        // One at a time: a second finds what the first has fetched.
        let _lock = lock(cache)?;
        if !target.exists() {
            remove_partial(cache)?;
            clone(source, &pin, &target, interrupt)?;
        }
    }
    let found = checkout::locate(&pin, variable).map_err(|message| anyhow!(message))?;
    let what = format!("{} {}", source.name, source.version);
    let place = found.directory.display();
    match &found.unpinned {
        None => println!("{what}: {place}, commit {}, {}", pin.commit, pin.license),
        Some(fault) => {
            eprintln!("warning: {place} is not the pinned {what}: {fault}");
            println!("{what}: not pinned, {place}");
        }
    }
    Ok(found)
}

fn lock(cache: &Path) -> Result<File> {
    let path = cache.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        eprintln!("another fetch is under way; waiting for it");
        flock(&file, FlockOperation::LockExclusive)
            .with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(file)
}

/// Removes what a killed fetch left. Called under the lock: nobody else is at work.
fn remove_partial(cache: &Path) -> Result<()> {
    for entry in fs::read_dir(cache)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().ends_with(PARTIAL) {
            fs::remove_dir_all(entry.path())
                .with_context(|| format!("cannot remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}

/// Clones beside `target`, checks, and only then gives it its name.
fn clone(source: &Source, pin: &Pin, target: &Path, interrupt: &Interrupt) -> Result<()> {
    let place = partial(target);
    fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    println!("fetching {} from {}", pin.commit, source.url);
    let result = fill(source, pin, &place, interrupt).and_then(|()| {
        fs::rename(&place, target).with_context(|| format!("cannot make {}", target.display()))
    });
    if result.is_err()
        && let Err(error) = fs::remove_dir_all(&place)
        && error.kind() != ErrorKind::NotFound
    {
        eprintln!("warning: cannot remove {}: {error}", place.display());
    }
    result
}

fn partial(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(PARTIAL);
    target.with_file_name(name)
}

fn fill(source: &Source, pin: &Pin, place: &Path, interrupt: &Interrupt) -> Result<()> {
    let git = |arguments: &[&str]| {
        let mut command = checkout::command(place);
        // Nobody is there to be asked for a password.
        command.env("GIT_TERMINAL_PROMPT", "0").args(arguments);
        command
    };
    step(git(&["init", "--quiet"]), interrupt).context("git init")?;
    // One commit, by its hash, and no tags.
    let fetch = [
        "fetch",
        "--quiet",
        "--no-tags",
        "--depth=1",
        &source.url,
        &pin.commit,
    ];
    step(git(&fetch), interrupt).with_context(|| {
        format!(
            "cannot fetch {} from {}; with no network, set {SOURCE_DIR} to a checkout",
            pin.commit, source.url
        )
    })?;
    let checkout = ["checkout", "--quiet", "--detach", &pin.commit];
    step(git(&checkout), interrupt).context("git checkout")?;
    checkout::verify(place, pin).with_context(|| format!("what {} gave", source.url))
}

fn step(command: Command, interrupt: &Interrupt) -> Result<()> {
    let ending = run(command, None, interrupt, &mut |line| {
        write_line(line.stream, "git: ", &line.bytes)
    })
    .context("is git installed?")?;
    match ending {
        Ending::Finished => Ok(()),
        ending => bail!("git: {}", describe(&ending)),
    }
}
