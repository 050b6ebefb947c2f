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
use oracle::report::Report;
use oracle::{cases, foreign, include};

/// Where headers are; if nowhere, says that the test is skipped.
fn includes(test: &str) -> Vec<PathBuf> {
    include::directories().unwrap_or_else(|reason| {
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
