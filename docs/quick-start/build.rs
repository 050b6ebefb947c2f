// SPDX-License-Identifier: MIT
//! Compiles the kernels for CPU threads.

fn main() {
    // Set by mscclpp-device for crates that depend on it directly.
    let include = std::env::var("DEP_MSCCLPP_DEVICE_INCLUDE").expect("mscclpp-device tells it");
    println!("cargo::rerun-if-changed=kernels.cpp");
    println!("cargo::rerun-if-changed={include}");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .flag("-fno-exceptions")
        .cpp_link_stdlib(None)
        .include(&include)
        .file("kernels.cpp")
        .compile("kernels");
}
