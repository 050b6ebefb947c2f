// SPDX-License-Identifier: MIT

use std::fmt;

use crate::library::{ALLOW_UNPINNED, LIBRARY, Under, dotted};
use crate::result::DocaError;

/// Why the library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody said where it is.
    #[error(
        "GPUNetIO is asked for, and {LIBRARY} is not set: it is to name a shared object of the \
         library, which is no part of this program"
    )]
    NotNamed,
    /// The loader refuses it.
    #[error("{LIBRARY}={file}: it cannot be loaded: {reason}")]
    NotLoaded {
        /// The file that was named.
        file: String,
        /// The loader's reason.
        reason: String,
    },
    /// It is no GPUNetIO, or one that lacks a function.
    #[error("{LIBRARY}={file}: it is no GPUNetIO that can be used: {reason}")]
    Symbol {
        /// The file that was loaded.
        file: String,
        /// The loader's reason, with the function.
        reason: String,
    },
    /// It is a version that nobody has held against this crate's declarations.
    #[error(
        "{LIBRARY}={file}: it is GPUNetIO {}; 3.0.0 and 4.0 are understood, 4.0.1 is pinned",
        dotted(*version)
    )]
    Version {
        /// The file that was loaded.
        file: String,
        /// Major, minor and patch, as it tells them.
        version: [u8; 3],
    },
    /// It is a version that is understood, but not the one that is pinned.
    #[error(
        "{LIBRARY}={file}: it is GPUNetIO {}, not the pinned 4.0.1; {ALLOW_UNPINNED}=1 makes a \
         warning of this",
        dotted(*version)
    )]
    Unpinned {
        /// The file that was loaded.
        file: String,
        /// Major, minor and patch, as it tells them.
        version: [u8; 3],
    },
    /// It says that it does not work with code of the version that it tells itself.
    #[error("{LIBRARY}={file}: it does not work with code made for {}", dotted(*version))]
    Incompatible {
        /// The file that was loaded.
        file: String,
        /// Major, minor and patch of the code.
        version: [u8; 3],
    },
    /// NVIDIA's closed library would take over.
    #[error(
        "DOCA_SDK_LIB_PATH is set: GPUNetIO would silently use the closed library it names; unset it"
    )]
    SdkPath,
    /// In this process its calls go elsewhere than is asked now.
    #[error(
        "{under} is to be under GPUNetIO, and in this process {loaded} is; use another process"
    )]
    Elsewhere {
        /// What is asked for.
        under: Under,
        /// What is there.
        loaded: Under,
    },
    /// Its calls cannot be led to a table of functions.
    #[error(
        "{LIBRARY}={file}: what stands in for RDMA and CUDA cannot be put under it: {reason}; name \
         one that links them as shared libraries"
    )]
    NotReached {
        /// The file that was loaded.
        file: String,
        /// What does not go to the table.
        reason: &'static str,
    },
    /// The library refuses a call.
    #[error("{call}: DOCA error {}", code.0)]
    Call {
        /// The function.
        call: &'static str,
        /// What it returned.
        code: DocaError,
    },
}

impl fmt::Display for Under {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "the system's RDMA and CUDA",
            Self::Table => "a table of functions",
        })
    }
}
