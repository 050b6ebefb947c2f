// SPDX-License-Identifier: MIT
//! The machine that a report was made on.

use std::fs;

use serde::Serialize;

/// Facts that tell reports apart.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Host {
    /// Model of the processor.
    pub(super) cpu: String,
    /// Cores that this process may use.
    pub(super) cores: usize,
    /// Operating system and release.
    pub(super) kernel: String,
    /// Compiler.
    pub(super) rustc: &'static str,
    /// Build profile.
    pub(super) profile: &'static str,
}

impl Host {
    /// This machine.
    pub(super) fn here() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = info
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or(std::env::consts::ARCH, |(_, name)| name.trim());
        let uname = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        Self {
            cpu: cpu.to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: format!("{} {}", text(uname.sysname()), text(uname.release())),
            rustc: env!("CONFORMANCE_RUSTC"),
            profile: env!("CONFORMANCE_PROFILE"),
        }
    }
}
