// SPDX-License-Identifier: MIT
//! The kernels that call GPUNetIO's device functions, compiled here: their headers are the user's.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use mscclpp_device::cuda::Gpu;

use super::measure::MEASURE;

const SOURCE: &str = include_str!("../../../kernels/cuda/gpunetio.cu");
/// Names the compiler.
const NVCC: &str = "NVCC";

/// What was compiled.
pub(super) struct Compiled {
    pub(super) cubin: Vec<u8>,
    /// Of the headers.
    pub(super) version: String,
}

/// Compiles for the GPU with the headers of a checkout.
pub(super) fn compile(gpu: &Gpu, checkout: &Path) -> anyhow::Result<Compiled> {
    let include = checkout.join("include");
    let version = version(&include)?;
    let directory = tempfile::tempdir().context("make a temporary directory")?;
    let place = |name| directory.path().join(name);
    fs::write(place("measure.hpp"), MEASURE)?;
    fs::write(place("gpunetio.cu"), SOURCE)?;
    let (compiler, cubin) = (nvcc(), place("gpunetio.cubin"));
    let output = Command::new(&compiler)
        .args(["--cubin", "-std=c++17"])
        .arg(format!("-arch=sm_{}", gpu.arch()?))
        .arg("-I")
        .arg(&include)
        .arg("-o")
        .arg(&cubin)
        .arg(place("gpunetio.cu"))
        .output()
        .with_context(|| {
            format!(
                "cannot start {}: GPUNetIO's headers are compiled by nvcc of CUDA's toolkit; name it \
                 in {NVCC}",
                compiler.display()
            )
        })?;
    if !output.status.success() {
        bail!(
            "{} cannot compile GPUNetIO {version} of {}:\n{}",
            compiler.display(),
            checkout.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let cubin = fs::read(cubin).context("read what nvcc made")?;
    Ok(Compiled { cubin, version })
}

fn nvcc() -> PathBuf {
    let usual = PathBuf::from("/usr/local/cuda/bin/nvcc");
    let found = |path: &PathBuf| path.is_file();
    let on_path = || {
        let path = env::var_os("PATH")?;
        env::split_paths(&path)
            .map(|folder| folder.join("nvcc"))
            .find(found)
    };
    (env::var_os(NVCC).map(PathBuf::from))
        .or_else(on_path)
        .or_else(|| Some(usual).filter(found))
        .unwrap_or_else(|| "nvcc".into())
}

/// The version that the headers say.
fn version(include: &Path) -> anyhow::Result<String> {
    let path = include.join("common/doca_gpunetio_verbs_def.h");
    let text = fs::read_to_string(&path)
        .with_context(|| format!("no checkout of GPUNetIO: cannot read {}", path.display()))?;
    let part = |name: &str| {
        let start = format!("#define DOCA_GPUNETIO_VERSION_{name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&start));
        value.map_or("?", str::trim).to_owned()
    };
    Ok(["MAJOR", "MINOR", "PATCH"].map(part).join("."))
}
