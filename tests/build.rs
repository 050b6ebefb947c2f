// SPDX-License-Identifier: MIT
//! Compiles the kernels for the host executor, and tells the benchmark what it was built with.

use std::path::PathBuf;
use std::process::Command;
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
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .define("MSCCLPP_DEVICE_TRACE", None)
        .include(&include)
        .file("kernels/traced/trace.cpp")
        .compile("conformance_traced");
    // Told in the benchmark's report.
    let rustc = Command::new(env::var_os("RUSTC").unwrap_or("rustc".into()))
        .arg("-V")
        .output()?;
    println!(
        "cargo::rustc-env=CONFORMANCE_RUSTC={}",
        String::from_utf8_lossy(&rustc.stdout).trim()
    );
    println!(
        "cargo::rustc-env=CONFORMANCE_PROFILE={}",
        env::var("PROFILE").unwrap_or_default()
    );
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-changed={include}");
    Ok(())
}
