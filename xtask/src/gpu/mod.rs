// SPDX-License-Identifier: MIT
//! What a machine with GPUs and without Rust needs, and what is run there.
//!
//! [`pack`] builds test programs, the suite and the benchmark, and this program itself, and puts them
//! into a directory with a [`Manifest`]. Brought elsewhere, that directory's `xtask gpu-run`
//! ([`run`]) runs all of them and writes logs and tables. Kernels are compiled there, by NVRTC.

pub mod cli;
pub mod machine;
pub mod pack;
pub mod parts;
pub mod run;
pub mod upstream;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::examples::GpuRun;

/// The file that says what is in a packed directory.
pub const MANIFEST: &str = "manifest.json";
/// Programs of a packed directory.
pub const SUITE: &str = "conformance";
/// As above.
pub const BENCH: &str = "bench";
/// As above.
pub const DOCTOR: &str = "doctor";
/// This program.
pub const XTASK: &str = "xtask";

/// What is in a packed directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The commit that it was built of, and whether something was changed.
    pub commit: String,
    /// The compiler.
    pub rustc: String,
    /// When, in UTC.
    pub built: String,
    /// Test programs that want a GPU.
    pub tests: Vec<String>,
    /// Runs of examples, each by the program of its package.
    pub examples: Vec<GpuRun>,
    /// Bytes of all programs.
    pub bytes: u64,
}

impl Manifest {
    /// Reads that of a directory.
    ///
    /// # Errors
    ///
    /// When there is none, or not one of this version.
    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(MANIFEST);
        let text = fs::read(&path).with_context(|| {
            format!(
                "cannot read {}: run the xtask of a directory that `cargo xtask gpu-pack` made",
                path.display()
            )
        })?;
        serde_json::from_slice(&text).with_context(|| format!("{}", path.display()))
    }
}
