// SPDX-License-Identifier: MIT
//! The suite's kernels compile for GPUs too: with NVRTC for each architecture of
//! `MSCCLPP_GPU_ARCHS`, and without a warning with a second host compiler. (The first one builds
//! them into the suite.) So does a file that was written for MSCCL++.

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mscclpp_device::nvrtc::{Arch, Nvrtc, Program, Target};

const KERNELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
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

/// Compiles programs with NVRTC for each of so many architectures.
fn nvrtc(test: &str, programs: &[Program], most: usize) -> Result<(), Box<dyn Error>> {
    let nvrtc = match Nvrtc::load() {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            println!("SKIP {test}: {error}");
            return Ok(());
        }
    };
    let supported = nvrtc.archs()?;
    for arch in Arch::from_env()?.into_iter().take(most) {
        if !supported.contains(&arch.number()) {
            println!("SKIP {test} sm_{arch}: not known to this NVRTC");
            continue;
        }
        for program in programs {
            let compiled = nvrtc.compile(program, &Target::Cubin(arch.clone()))?;
            assert!(compiled.log.is_empty(), "{program:?}: {}", compiled.log);
        }
    }
    Ok(())
}

#[test]
fn kernels_compile_with_nvrtc() -> Result<(), Box<dyn Error>> {
    let programs = files("cpp").into_iter().map(|file| {
        let program = Program::new(name(&file), fs::read_to_string(&file)?);
        files("hpp").iter().try_fold(program, |program, header| {
            Ok(program.header(name(header), fs::read_to_string(header)?))
        })
    });
    let programs: Vec<_> = programs.collect::<io::Result<_>>()?;
    nvrtc("kernels_compile_with_nvrtc", &programs, usize::MAX)
}

#[test]
fn kernels_of_the_examples_compile_with_nvrtc() -> Result<(), Box<dyn Error>> {
    let mut programs = Vec::new();
    for example in fs::read_dir(EXAMPLES)? {
        let example = example?.path();
        for file in ["kernel.cpp", "kernel.cu"].map(|name| example.join(name)) {
            if file.exists() {
                let name = format!("{}-{}", name(&example), name(&file));
                programs.push(Program::new(name, fs::read_to_string(&file)?));
            }
        }
    }
    assert!(programs.len() >= 5, "{programs:?}");
    nvrtc("kernels_of_the_examples_compile_with_nvrtc", &programs, 1)
}

/// A user's file with MSCCL++'s names.
const COMPAT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/compat/port_channel_user.cu");

#[test]
fn a_file_for_mscclpp_compiles_with_nvrtc() -> Result<(), Box<dyn Error>> {
    let program = Program::new("port_channel_user.cu", fs::read_to_string(COMPAT)?);
    // What is looked at, names and types, is the same for all.
    nvrtc("a_file_for_mscclpp_compiles_with_nvrtc", &[program], 1)
}

#[test]
fn a_file_for_mscclpp_compiles_with_nvcc() -> Result<(), Box<dyn Error>> {
    let nvcc = std::env::var_os("NVCC").unwrap_or_else(|| "nvcc".into());
    let version = Command::new(&nvcc)
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if let Err(error) = version {
        println!("SKIP a_file_for_mscclpp_compiles_with_nvcc: nvcc: {error}");
        return Ok(());
    }
    let object = tempfile::tempdir()?;
    for arch in Arch::from_env()? {
        let output = Command::new(&nvcc)
            .args(["-std=c++17", "-c", COMPAT, "-I", INCLUDE, "-o"])
            .arg(object.path().join("user.o"))
            .arg(format!("-arch=sm_{arch}"))
            .output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "sm_{arch}: {text}");
    }
    Ok(())
}

/// The kernels that measure posts need a GPU, so they are compiled for GPUs alone.
#[test]
fn kernels_of_gpus_compile_with_nvrtc() -> Result<(), Box<dyn Error>> {
    let read = |name: &str| fs::read_to_string(Path::new(KERNELS).join("cuda").join(name));
    let program = Program::new("post.cu", read("post.cu")?);
    let program = program.header("measure.hpp", read("measure.hpp")?);
    nvrtc("kernels_of_gpus_compile_with_nvrtc", &[program], usize::MAX)
}
