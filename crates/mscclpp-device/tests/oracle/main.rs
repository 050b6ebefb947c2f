// SPDX-License-Identifier: MIT
//! The oracle: GPUNetIO's own device functions. What they write to a send queue is what this project's
//! device code writes, byte for byte, where every request asks for a completion; and both find the
//! same at the same completions.
//!
//! `GPUNETIO_HEADERS` is a list of include directories with the library's headers, which are changed
//! for the CPU into a temporary directory; `GPUNETIO_LIBCUDACXX` that of libcu++, for compiling them
//! as they are. The same on a GPU: `tests/cuda/oracle.rs`.

mod cpu;
mod headers;
#[path = "mod.rs"]
mod oracle;
mod planted;
mod ptx;

use std::path::PathBuf;

use cpu::{Cpu, VARIANTS};
use mscclpp_device::nvrtc::{Arch, Nvrtc, Target};
use oracle::report::Report;
use oracle::{cases, foreign, nvrtc, program};

/// Where headers are; if nowhere, says that the test is skipped.
fn includes(test: &str) -> Vec<PathBuf> {
    nvrtc::includes().unwrap_or_else(|reason| {
        println!("SKIP {test}: {reason}");
        Vec::new()
    })
}

#[test]
fn device_code_equals_that_of_gpunetio() {
    for include in includes("device_code_equals_that_of_gpunetio") {
        for variant in VARIANTS {
            let cpu = Cpu::new(&include, variant).unwrap();
            println!("GPUNetIO {}, {}", Cpu::version(&include), variant.name);
            let mut report = Report::default();
            cases::alone(&cpu, &mut report).unwrap();
            cases::streams(&cpu, &mut report).unwrap();
            println!("{report}");
            report.equal().unwrap();
            let [read, unread] = foreign::read(&cpu).unwrap();
            println!(
                "only the library's, and read by mlx5-queue: {}",
                read.join(", ")
            );
            println!("only the library's: {}", unread.join(", "));
            println!("only here: the self-test's write of no bytes");
        }
    }
}

#[test]
fn both_sides_compile_with_nvrtc() {
    let name = "both_sides_compile_with_nvrtc";
    let nvrtc = Nvrtc::load().map_err(|error| format!("no NVRTC: {error}"));
    let (libcudacxx, nvrtc) = match (nvrtc::libcudacxx(), nvrtc) {
        (Ok(libcudacxx), Ok(nvrtc)) => (libcudacxx, nvrtc),
        (Err(reason), _) | (_, Err(reason)) => return println!("SKIP {name}: {reason}"),
    };
    for include in includes(name) {
        for arch in [80, 90] {
            let target = Target::Cubin(Arch::from(arch));
            let compiled = nvrtc.compile(&program(&include, &libcudacxx), &target);
            let compiled = compiled.unwrap_or_else(|error| panic!("sm_{arch}: {error}"));
            println!("sm_{arch}: {} bytes", compiled.code.len());
        }
    }
}
