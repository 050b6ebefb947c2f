// SPDX-License-Identifier: MIT
//! Tells dependents' build scripts where the device headers are, and compiles
//! the crate's own kernel for CPU threads.

fn main() {
    // Asked for when it runs: a target directory may move on to another checkout.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let include = std::path::Path::new(&package).join("include");
    println!("cargo::metadata=include={}", include.display());
    println!("cargo::rerun-if-changed=include");
    #[cfg(feature = "host-executor")]
    {
        let kernel = "src/self_test/kernel.cpp";
        println!("cargo::rerun-if-changed={kernel}");
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17").opt_level(2).include(&include);
        // Kernels need nothing of the C++ run-time library.
        build.cpp_link_stdlib(None).flag("-fno-exceptions");
        build.file(kernel).compile("mscclpp_self_test");
    }
}
