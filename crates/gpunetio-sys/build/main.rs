// SPDX-License-Identifier: MIT
//! Checks a checkout of the library, if the feature `gpunetio` asks for it. Without it, nothing is done.

#[cfg(feature = "gpunetio")]
#[expect(unreachable_pub, reason = "xtask shares it, as a public module")]
mod checkout;
#[cfg(feature = "gpunetio")]
mod steps;

fn main() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rustc-check-cfg=cfg(gpunetio_major, values(\"3\", \"4\"))");
    #[cfg(feature = "gpunetio")]
    if let Err(message) = steps::build() {
        println!("cargo::error={message}");
    }
}
