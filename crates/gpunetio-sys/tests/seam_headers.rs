// SPDX-License-Identifier: MIT
//! The functions under the library (`seam.c`) have the signatures, and the structures that Rust uses
//! have the layout, that rdma-core's and CUDA's own headers say, where those are installed.

use std::path::{Path, PathBuf};
use std::process::Command;

const SEAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/seam/seam.c");

/// What the compiler says; nothing if it accepts.
fn compile(file: &Path, define: &str, include: &Path) -> Option<String> {
    let output = Command::new("cc")
        .args([
            "-std=c11",
            "-fsyntax-only",
            "-Wall",
            "-Wextra",
            "-Werror",
            define,
        ])
        .arg("-isystem")
        .args([include, file])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(text)
}

/// Where a header is, of these directories.
fn find(header: &str, directories: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    directories.into_iter().find(|at| at.join(header).is_file())
}

/// Holds `seam.c` against headers, and each of the changed ones must be refused.
fn holds(define: &str, include: &Path, changes: &[(&str, &str)]) {
    assert_eq!(compile(SEAM.as_ref(), define, include), None);
    let seam = std::fs::read_to_string(SEAM).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let changed = directory.path().join("seam.c");
    for (right, wrong) in changes {
        assert!(seam.contains(right), "{right}");
        std::fs::write(&changed, seam.replace(right, wrong)).unwrap();
        assert!(compile(&changed, define, include).is_some(), "{wrong}");
    }
}

#[test]
fn those_of_verbs_and_mlx5_are_rdma_cores() {
    let name = "those_of_verbs_and_mlx5_are_rdma_cores";
    let Some(include) = find("infiniband/mlx5dv.h", [PathBuf::from("/usr/include")]) else {
        println!("SKIP {name}: rdma-core's development files are not installed");
        return;
    };
    let changes = [
        (
            "uint32_t b, uint32_t *c), (a, b, c)",
            "uint32_t b, int *c), (a, b, c)",
        ),
        ("struct mlx5dv_devx_uar, 40", "struct mlx5dv_devx_uar, 48"),
        ("phys_port_cnt, 227", "phys_port_cnt, 226"),
    ];
    holds("-DRDMA_HEADERS", &include, &changes);
}

#[test]
fn those_of_cuda_are_cudas() {
    let name = "those_of_cuda_are_cudas";
    let named = ["CUDA_HOME", "CUDA_PATH"].map(std::env::var_os);
    let homes = named.into_iter().flatten().map(PathBuf::from);
    let homes = homes.chain([PathBuf::from("/usr/local/cuda")]);
    let Some(include) = find("cuda_runtime_api.h", homes.map(|home| home.join("include"))) else {
        println!("SKIP {name}: CUDA's development files are not in CUDA_HOME or /usr/local/cuda");
        return;
    };
    let changes = [
        (
            "cudaMalloc, (void **a, size_t b)",
            "cudaMalloc, (void **a, int b)",
        ),
        ("cudaErrorUnknown, 999", "cudaErrorUnknown, 998"),
    ];
    holds("-DCUDA_HEADERS", &include, &changes);
}
