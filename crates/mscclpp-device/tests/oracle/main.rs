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
use oracle::gpu::{LIBCUDACXX, program};
use oracle::report::Report;
use oracle::{cases, foreign};

#[test]
fn device_code_equals_that_of_gpunetio() {
    for include in headers::includes("device_code_equals_that_of_gpunetio") {
        for variant in VARIANTS {
            let cpu = Cpu::new(&include, variant).unwrap();
            println!("GPUNetIO {}, {}", Cpu::version(&include), variant.name);
            let mut report = Report::default();
            cases::alone(&cpu, &mut report).unwrap();
            cases::streams(&cpu, &mut report).unwrap();
            println!("{report}");
            report.equal().unwrap();
            // Some tens a test are lost by a mistake in the lists, not all.
            assert!(report.cases() > 3000, "{} cases", report.cases());
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
    let includes = headers::includes(name);
    if includes.is_empty() {
        return;
    }
    let Some(libcudacxx) = std::env::var_os(LIBCUDACXX).map(PathBuf::from) else {
        println!("SKIP {name}: no libcu++ for headers of GPUNetIO: {LIBCUDACXX} is not set");
        return;
    };
    let nvrtc = match Nvrtc::load() {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            println!("SKIP {name}: no NVRTC: {error}");
            return;
        }
    };
    for include in includes {
        for arch in [80, 90, 100] {
            let target = Target::Cubin(Arch::from(arch));
            let compiled = nvrtc.compile(&program(&include, &libcudacxx), &target);
            let compiled = compiled.unwrap_or_else(|error| panic!("sm_{arch}: {error}"));
            println!("sm_{arch}: {} bytes", compiled.code.len());
        }
    }
}
