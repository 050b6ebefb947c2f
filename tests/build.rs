// SPDX-License-Identifier: MIT
//! Compiles the kernels for the host executor.

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let include = env::var("DEP_MSCCLPP_DEVICE_INCLUDE")
        .expect("mscclpp-device tells where its device headers are");
    let mut sources: Vec<PathBuf> = fs::read_dir("kernels")?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "cpp"));
    sources.sort();
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        // Kernels are measured, in debug builds of the rest too.
        .opt_level(2)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .include(&include)
        .files(&sources)
        .compile("conformance_kernels");
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-changed={include}");
    Ok(())
}
