// SPDX-License-Identifier: MIT
//! Compiles `kernels.cpp` twice: for CPU threads, and for memory models.

use std::path::Path;

fn main() {
    let include = std::env::var_os("DEP_MSCCLPP_DEVICE_INCLUDE")
        .expect("mscclpp-device is a direct dependency and tells where its headers are");
    println!("cargo::rerun-if-changed=kernels.cpp");
    println!("cargo::rerun-if-changed={}", include.display());
    compile(include.as_ref(), "kernels_direct", false);
    compile(include.as_ref(), "kernels_modelled", true);
}

fn compile(include: &Path, library: &str, modelled: bool) {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .include(include)
        .file("kernels.cpp");
    // Kernels need nothing of the C++ runtime.
    build.cpp_link_stdlib(None).flag("-fno-exceptions");
    if modelled {
        build.define("MSCCLPP_MODELLED_MEMORY", None);
    }
    build.compile(library);
}
