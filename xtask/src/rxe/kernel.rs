// SPDX-License-Identifier: MIT
//! The guest's kernel: Debian's, downloaded once and kept, never installed.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::RxeError;
use crate::launch::write_line;
use crate::supervise::{Ending, Interrupt};
use crate::workspace::{describe, run_merged};

const FETCH: &str = include_str!("fetch-kernel.sh");
/// How long the download may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// The directory of a kernel that is complete.
const COMPLETE: &str = "kernel";
/// Where the compressed kernel in a boot image begins, if it was packed by xz.
const XZ: &[u8] = b"\xfd7zXZ\0";

/// A kernel's files.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// What qemu loads.
    pub image: PathBuf,
    /// Its version, as `uname -r` says.
    pub version: String,
    modules: PathBuf,
}

impl Kernel {
    /// The kernel in `cache`, which is downloaded if there is none.
    ///
    /// # Errors
    ///
    /// [`RxeError::Missing`] when it cannot be downloaded, or what the system says.
    pub fn fetch(cache: &Path, interrupt: &Interrupt) -> Result<Self> {
        let complete = cache.join(COMPLETE);
        if !complete.exists() {
            let draft = tempfile::Builder::new()
                .prefix("draft-")
                .tempdir_in(cache)?;
            download(draft.path(), interrupt)?;
            unpack(draft.path())?;
            // Complete, or not there: a run that is stopped leaves no half of it.
            fs::rename(draft.keep(), &complete)?;
        }
        Self::open(&complete)
    }

    fn open(directory: &Path) -> Result<Self> {
        let (image, version) = boot_image(directory)?;
        let unpacked = directory.join("vmlinux");
        let image = if unpacked.exists() { unpacked } else { image };
        let modules = directory.join("lib/modules").join(&version);
        Ok(Self {
            image,
            version,
            modules,
        })
    }

    /// Each module's file, by the module's name.
    ///
    /// # Errors
    ///
    /// When a directory cannot be read.
    pub fn modules(&self) -> Result<HashMap<String, PathBuf>> {
        let mut found = HashMap::new();
        find_modules(&self.modules.join("kernel"), &mut found)?;
        Ok(found)
    }

    /// The names of modules that are part of the kernel's image.
    ///
    /// # Errors
    ///
    /// When the list cannot be read.
    pub fn builtin(&self) -> Result<Vec<String>> {
        let list = self.modules.join("modules.builtin");
        let text = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
        Ok(text
            .lines()
            .filter_map(|line| module_name(Path::new(line)))
            .collect())
    }
}

/// The name of a module, of whose file `-` and `_` may be spelt either way.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.strip_suffix(".ko")?;
    Some(name.replace('-', "_"))
}

fn find_modules(directory: &Path, found: &mut HashMap<String, PathBuf>) -> Result<()> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            find_modules(&path, found)?;
        } else if let Some(name) = module_name(&path) {
            found.insert(name, path);
        }
    }
    Ok(())
}

fn download(directory: &Path, interrupt: &Interrupt) -> Result<()> {
    println!("== downloading the guest's kernel");
    let mut command = Command::new("sh");
    command.args(["-c", FETCH]).current_dir(directory);
    let mut said = Vec::new();
    let ending = run_merged(command, Some(PATIENCE), interrupt, &mut |line| {
        said.push(String::from_utf8_lossy(&line.bytes).into_owned());
        write_line(line.stream, "", &line.bytes)
    })?;
    match ending {
        Ending::Finished => Ok(()),
        Ending::Failed { .. } | Ending::Deadline { .. } => {
            let how = describe(&ending);
            let last = said.last().map_or("", String::as_str);
            let what = format!("no kernel for the guest: {how}: {last}");
            Err(RxeError::Missing { what }.into())
        }
        ending => bail!("{}", describe(&ending)),
    }
}

/// The boot image and the version in its name.
fn boot_image(directory: &Path) -> Result<(PathBuf, String)> {
    let boot = directory.join("boot");
    for entry in fs::read_dir(&boot).with_context(|| boot.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(version) = name.and_then(|name| name.strip_prefix("vmlinuz-")) {
            let version = version.to_owned();
            return Ok((path, version));
        }
    }
    Err(anyhow!("{} has no vmlinuz", boot.display()))
}

/// Takes the kernel out of its boot image, so that the guest, which is slow, need not. Some images
/// are packed in another way; those are booted as they are.
fn unpack(directory: &Path) -> Result<()> {
    let (path, _) = boot_image(directory)?;
    let image = fs::read(&path)?;
    let starts = image.windows(XZ.len()).enumerate();
    for (start, _) in starts.filter(|(_, bytes)| *bytes == XZ) {
        // The size of the unpacked kernel follows the stream, so xz ends with an error all the same.
        let kernel = decompress(&image[start..])?;
        if kernel.starts_with(b"\x7fELF") {
            fs::write(directory.join("vmlinux"), kernel)?;
            break;
        }
    }
    Ok(())
}

fn decompress(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut child = Command::new("xz")
        .args(["--decompress", "--stdout", "--single-stream"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("xz")?;
    let input = child.stdin.take();
    thread::scope(|scope| {
        scope.spawn(move || {
            // xz reads no further than the end of the stream.
            if let Some(mut input) = input {
                drop(input.write_all(bytes));
            }
        });
        Ok(child.wait_with_output().context("xz")?.stdout)
    })
}
