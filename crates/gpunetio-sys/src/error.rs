// SPDX-License-Identifier: MIT

use crate::result::DocaError;

/// What can go wrong before a call reaches the library, or in asking what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// NVIDIA's closed library would take over.
    #[error(
        "DOCA_SDK_LIB_PATH is set: GPUNetIO would silently use the closed library it names; unset it"
    )]
    SdkPath,
    /// The library refuses a call.
    #[error("{call}: DOCA error {}", code.0)]
    Call {
        /// The function.
        call: &'static str,
        /// What it returned.
        code: DocaError,
    },
    /// The library says that it does not work with what it was compiled with.
    #[error("GPUNetIO does not work with code of version {compiled:#x}; build from one checkout")]
    Incompatible {
        /// Major, minor and patch, a byte each.
        compiled: u32,
    },
}
