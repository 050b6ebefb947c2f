// SPDX-License-Identifier: MIT
//! Tells dependents' build scripts where the device headers are.

fn main() {
    let include = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    println!("cargo::metadata=include={}", include.display());
    println!("cargo::rerun-if-changed=include");
}
