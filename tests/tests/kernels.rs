// SPDX-License-Identifier: MIT
//! The suite's kernels compile for GPUs too: with NVRTC for each architecture of
//! `MSCCLPP_GPU_ARCHS`, and without a warning with a second host compiler. (The first one builds
//! them into the suite.)

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mscclpp_device::nvrtc::{Arch, Nvrtc, Program, Target};

const KERNELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
const INCLUDE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../crates/mscclpp-device/include"
);

fn files(extension: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(KERNELS)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    assert!(!files.is_empty());
    files.sort();
    files
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn kernels_compile_with_clang() {
    let version = Command::new("clang++")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if let Err(error) = version {
        println!("SKIP kernels_compile_with_clang: clang++: {error}");
        return;
    }
    for file in files("cpp") {
        let output = Command::new("clang++")
            .args([
                "-std=c++17",
                "-O2",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fsyntax-only",
            ])
            .args(["-I", INCLUDE])
            .arg(&file)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {text}", name(&file));
    }
}

#[test]
fn kernels_compile_with_nvrtc() -> Result<(), Box<dyn Error>> {
    let nvrtc = match Nvrtc::load() {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            println!("SKIP kernels_compile_with_nvrtc: {error}");
            return Ok(());
        }
    };
    let supported = nvrtc.archs()?;
    for arch in Arch::from_env()? {
        if !supported.contains(&arch.number()) {
            println!("SKIP kernels_compile_with_nvrtc sm_{arch}: not known to this NVRTC");
            continue;
        }
        for file in files("cpp") {
            let mut program = Program::new(name(&file), fs::read_to_string(&file)?);
            for header in files("hpp") {
                program = program.header(name(&header), fs::read_to_string(&header)?);
            }
            let compiled = nvrtc.compile(&program, &Target::Cubin(arch.clone()))?;
            assert!(compiled.log.is_empty(), "{}: {}", name(&file), compiled.log);
        }
    }
    Ok(())
}

/// The kernels that measure posts need a GPU, so they are compiled for GPUs alone.
#[test]
fn kernels_of_gpus_compile_with_nvrtc() -> Result<(), Box<dyn Error>> {
    let nvrtc = match Nvrtc::load() {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            println!("SKIP kernels_of_gpus_compile_with_nvrtc: {error}");
            return Ok(());
        }
    };
    let read = |name: &str| fs::read_to_string(Path::new(KERNELS).join("cuda").join(name));
    let program = Program::new("post.cu", read("post.cu")?);
    let program = program.header("measure.hpp", read("measure.hpp")?);
    let supported = nvrtc.archs()?;
    for arch in Arch::from_env()? {
        if supported.contains(&arch.number()) {
            let compiled = nvrtc.compile(&program, &Target::Cubin(arch))?;
            assert!(compiled.log.is_empty(), "{}", compiled.log);
        } else {
            println!("SKIP kernels_of_gpus_compile_with_nvrtc sm_{arch}: not known to this NVRTC");
        }
    }
    Ok(())
}
