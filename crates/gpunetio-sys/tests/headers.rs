// SPDX-License-Identifier: MIT
//! The declarations of this crate hold for the library's headers, wherever some are: no checkout
//! is needed, nor the feature.
//!
//! `GPUNETIO_HEADERS` is a list of include directories, separated by colons. The wheel
//! `nvidia-nvshmem-cu13` 3.8.0 has those of 4.0.0 in `nvidia/nvshmem/include/gpunetio`.

use std::path::Path;
use std::process::Command;

const VARIABLE: &str = "GPUNETIO_HEADERS";
const LAYOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/layout.cpp");

/// What the compiler says; nothing if it accepts.
fn compile(compiler: &str, include: &Path, file: &Path) -> Option<String> {
    let output = Command::new(compiler)
        .args([
            "-std=c++17",
            "-fsyntax-only",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-isystem",
        ])
        .arg(include)
        .arg(file)
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(text)
}

#[test]
fn the_declarations_compile_with_each_compiler() {
    let name = "the_declarations_compile_with_each_compiler";
    let list = std::env::var_os(VARIABLE).unwrap_or_default();
    let includes: Vec<_> = std::env::split_paths(&list)
        .filter(|path| path != "")
        .collect();
    if includes.is_empty() {
        println!("SKIP {name}: no headers of GPUNetIO: {VARIABLE} is not set");
        return;
    }
    let asserts = std::fs::read_to_string(LAYOUT).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for include in includes {
        let compilers = ["g++", "clang++"].into_iter().filter(|compiler| {
            let there = Command::new(compiler).arg("--version").output().is_ok();
            if !there {
                println!("SKIP {name} with {compiler}: it is not installed");
            }
            there
        });
        for compiler in compilers {
            assert_eq!(
                compile(compiler, &include, LAYOUT.as_ref()),
                None,
                "{compiler}"
            );
            // Each kind of assertion is one that can fail.
            for (right, wrong) in [
                (
                    "SIZE(doca_gpu_dev_verbs_qp, 296)",
                    "SIZE(doca_gpu_dev_verbs_qp, 304)",
                ),
                ("sq_wqe_num, 60, 2", "sq_wqe_num, 58, 2"),
                ("NIC_HANDLER_GPU_SM_DB, 2", "NIC_HANDLER_GPU_SM_DB, 3"),
                ("(doca_verbs_qp_get_qpn, const ", "(doca_verbs_qp_get_qpn, "),
                (
                    "VERSION_MAJOR != 3 && DOCA_GPUNETIO_VERSION_MAJOR != 4",
                    "VERSION_MAJOR != 2",
                ),
            ] {
                assert!(asserts.contains(right), "{right}");
                let changed = directory.path().join("layout.cpp");
                std::fs::write(&changed, asserts.replace(right, wrong)).unwrap();
                assert!(
                    compile(compiler, &include, &changed).is_some(),
                    "{compiler}: {wrong}"
                );
            }
            println!("{}: they hold, says {compiler}", include.display());
        }
    }
}
