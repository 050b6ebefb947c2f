// SPDX-License-Identifier: MIT
//! Compiles the kernel for CPU threads.

fn main() {
    // mscclpp-device tells those that depend on it directly where its headers are.
    let include = std::env::var("DEP_MSCCLPP_DEVICE_INCLUDE").expect("mscclpp-device tells it");
    println!("cargo::rerun-if-changed=kernel.cpp");
    println!("cargo::rerun-if-changed={include}");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        // Kernels need nothing of the C++ run-time library.
        .cpp_link_stdlib(None)
        .flag("-fno-exceptions")
        .include(&include)
        .file("kernel.cpp")
        .compile("kernel");
}
