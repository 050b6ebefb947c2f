// SPDX-License-Identifier: MIT
//! Builds with AddressSanitizer and LeakSanitizer, Rust and kernels alike.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;

/// Set for tests of a sanitized build. Those that compile kernels themselves
/// compile them with the sanitizer then.
const MARK: &str = "MSCCLPP_SANITIZED";

/// Makes `cargo` build and test with the sanitizers, in a target directory of
/// its own.
///
/// # Errors
///
/// When rustc does not tell its host, or was installed without the sanitizer's
/// runtime.
pub fn address(workspace: &Workspace, cargo: &mut Command) -> Result<()> {
    let host = host()?;
    let variable = format!("CXXFLAGS_{}", host.replace('-', "_"));
    cargo
        // The runtime is part of the stable toolchain, its flag is not.
        .env("RUSTC_BOOTSTRAP", "1")
        // Exported, for kernels that tests load as shared objects.
        .env("RUSTFLAGS", "-Zsanitizer=address -Clink-arg=-rdynamic")
        .env(variable, "-fsanitize=address -fno-omit-frame-pointer")
        // Named, so that build scripts and procedural macros are built without.
        .env("CARGO_BUILD_TARGET", host)
        .env("CARGO_TARGET_DIR", workspace.target.join("sanitized"))
        .env(MARK, "address");
    Ok(())
}

/// The machine that rustc builds for by itself.
///
/// # Errors
///
/// When rustc does not tell.
pub fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--version", "--verbose"])
        .output()
        .context("cannot start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().find_map(|line| line.strip_prefix("host: ")) {
        Some(host) => Ok(host.to_owned()),
        None => bail!("rustc --version --verbose names no host"),
    }
}
