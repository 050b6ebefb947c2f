// SPDX-License-Identifier: MIT
//! `cargo xtask dist`: the device headers, for kernels that are built outside of Cargo.

pub mod check;
pub(crate) mod cli;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::fetch;
use crate::supervise::Interrupt;
use crate::workspace::Workspace;

/// The crate whose headers these are.
const DEVICE: &str = "mscclpp-device";
/// The directories that belong to it alone.
const OWN: [&str; 4] = [
    "include/mscclpp-device",
    "include/mscclpp-device-gpunetio",
    "lib/cmake/mscclpp-device",
    "share/licenses/mscclpp-device",
];
const GPUNETIO_PC: &str = "lib/pkgconfig/mscclpp-device-gpunetio.pc";

/// Files that are written as they are, but for the version. None knows where it is.
const FILES: [(&str, &str); 3] = [
    (
        "lib/pkgconfig/mscclpp-device.pc",
        include_str!("mscclpp-device.pc"),
    ),
    (
        "lib/cmake/mscclpp-device/mscclpp-deviceConfig.cmake",
        include_str!("mscclpp-deviceConfig.cmake"),
    ),
    (
        "lib/cmake/mscclpp-device/mscclpp-deviceConfigVersion.cmake",
        include_str!("mscclpp-deviceConfigVersion.cmake"),
    ),
];

/// Lays it out below `prefix`, and says what is there.
///
/// # Errors
///
/// When a file cannot be written, or there is no checkout of GPUNetIO that can be used.
pub fn dist(prefix: &Path, gpunetio: bool, interrupt: &Interrupt) -> Result<()> {
    let workspace = Workspace::load()?;
    let checkout = match gpunetio {
        true => Some(fetch::ensure(&workspace, interrupt)?.directory),
        false => None,
    };
    let files = lay_out(&workspace, prefix, checkout.as_deref())?;
    for file in files {
        println!("{}", prefix.join(file).display());
    }
    Ok(())
}

/// Writes all files, in place of those of an earlier layout, and returns their names.
///
/// # Errors
///
/// When a file cannot be read or written, or the checkout has no headers or no licence.
pub fn lay_out(
    workspace: &Workspace,
    prefix: &Path,
    gpunetio: Option<&Path>,
) -> Result<Vec<PathBuf>> {
    for directory in OWN.map(|name| prefix.join(name)) {
        if directory.exists() {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("cannot remove {}", directory.display()))?;
        }
    }
    let old = prefix.join(GPUNETIO_PC);
    if old.exists() {
        fs::remove_file(&old).with_context(|| format!("cannot remove {}", old.display()))?;
    }

    let mut out = Layout {
        prefix,
        files: Vec::new(),
    };
    let device = workspace.root.join("crates").join(DEVICE);
    out.tree(&device.join("include"), Path::new(OWN[0]))?;
    let licenses = Path::new(OWN[3]);
    out.copy(&workspace.root.join("LICENSE"), &licenses.join("LICENSE"))?;
    for (name, text) in FILES {
        out.write(Path::new(name), of_this_version(text).as_bytes())?;
    }
    if let Some(checkout) = gpunetio {
        let headers = checkout.join("include");
        ensure!(headers.is_dir(), "{} is not there", headers.display());
        out.tree(&headers, Path::new(OWN[1]))?;
        let before = out.files.len();
        for name in names(checkout)?
            .iter()
            .filter(|name| name.starts_with("LICENSE"))
        {
            out.copy(&checkout.join(name), &licenses.join("gpunetio").join(name))?;
        }
        let place = checkout.display();
        ensure!(out.files.len() > before, "{place} has no file LICENSE");
        let text = of_this_version(include_str!("mscclpp-device-gpunetio.pc"));
        out.write(Path::new(GPUNETIO_PC), text.as_bytes())?;
    }
    out.files.sort();
    Ok(out.files)
}

fn of_this_version(text: &str) -> String {
    // All packages of the workspace have one version.
    text.replace("@VERSION@", env!("CARGO_PKG_VERSION"))
}

/// The names in a directory, sorted.
fn names(directory: &Path) -> Result<Vec<String>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

struct Layout<'a> {
    prefix: &'a Path,
    files: Vec<PathBuf>,
}

impl Layout<'_> {
    fn write(&mut self, name: &Path, bytes: &[u8]) -> Result<()> {
        let path = self.prefix.join(name);
        let directory = path.parent().unwrap_or(self.prefix);
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        self.files.push(name.into());
        Ok(())
    }

    fn copy(&mut self, from: &Path, name: &Path) -> Result<()> {
        let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        self.write(name, &bytes)
    }

    /// All files of a directory.
    fn tree(&mut self, from: &Path, name: &Path) -> Result<()> {
        for entry in names(from)? {
            let (from, name) = (from.join(&entry), name.join(&entry));
            if from.is_dir() {
                self.tree(&from, &name)?;
            } else {
                self.copy(&from, &name)?;
            }
        }
        Ok(())
    }
}
