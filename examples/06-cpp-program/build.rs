// SPDX-License-Identifier: MIT
//! Compiles the C++ program, which is linked with the Rust side of this package.

fn main() {
    // mscclpp-device tells those that depend on it directly where its headers are.
    let include = std::env::var("DEP_MSCCLPP_DEVICE_INCLUDE").expect("mscclpp-device tells it");
    println!("cargo::rerun-if-changed=program");
    println!("cargo::rerun-if-changed={include}");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .include(&include)
        .file("program/main.cpp")
        .compile("program");
}
