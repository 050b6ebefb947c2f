// SPDX-License-Identifier: MIT
//! A guest with Debian's kernel and Soft-RoCE (`rdma_rxe`), for what needs real verbs and a machine
//! without an RDMA device.
//!
//! qemu runs the kernel by software, so that no virtualisation by hardware is needed, nor any
//! rights. The guest's root is the host's own `/`, read-only, under a layer in memory: programs
//! built here run there at the same paths, and what they write is gone at the end. It has no other
//! network than its own.
//!
//! A guest that ends is not a guest that passed: only a status that the job's own shell wrote, with
//! this run's nonce, together with the end that the guest's first process announces to qemu, is a
//! result. A panic, a hang or a lack of memory is none.

pub mod cli;
pub mod guest;
pub mod initramfs;
pub mod kernel;
pub mod preflight;
pub mod test;

use std::process::ExitCode;

/// Why a command did not run in a guest, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RxeError {
    /// Something is not installed.
    #[error("{what}\n  {}", preflight::APT)]
    Missing {
        /// What, in words.
        what: String,
    },
    /// The time was up.
    #[error("the guest was stopped after {seconds} s; the end of its console:\n{console}")]
    Deadline {
        /// The limit.
        seconds: u64,
        /// The last lines that the guest's kernel wrote.
        console: String,
    },
    /// The guest ended, but not by the end of the command.
    #[error("the guest failed ({how}); the end of its console:\n{console}")]
    Guest {
        /// How qemu ended, and whether the command had.
        how: String,
        /// The last lines that the guest's kernel wrote.
        console: String,
    },
}

/// Exit status of a run that was skipped because something is missing.
const SKIPPED: u8 = 77;
/// Exit status of a run whose time was up.
const TIMEOUT: u8 = 124;
/// Exit status of a guest that failed, or of something missing that is required.
const FAILED: u8 = 125;

impl RxeError {
    /// The exit status that says so, beside those of commands that ran.
    pub fn exit_code(&self) -> ExitCode {
        let code = match self {
            Self::Missing { .. } if required() => FAILED,
            Self::Missing { .. } => SKIPPED,
            Self::Deadline { .. } => TIMEOUT,
            Self::Guest { .. } => FAILED,
        };
        code.into()
    }
}

/// Whether what is missing is a failure, not a skip: CI sets `RXE_VM=required`.
pub fn required() -> bool {
    std::env::var_os("RXE_VM").is_some_and(|value| value == "required")
}
