// SPDX-License-Identifier: MIT
//! What can go wrong when compiling.

use thiserror::Error;

use super::{ARCHS_VARIABLE, Arch, LIBRARY_VARIABLE};

/// Why a program was not compiled.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NvrtcError {
    /// The library is not there.
    #[error(
        "NVRTC cannot be loaded ({}); install CUDA's libnvrtc where the loader finds it (the \
         Python package nvidia-cuda-nvrtc has one) or set {LIBRARY_VARIABLE} to its path",
        tried.join("; ")
    )]
    NotFound {
        /// Each name tried, with the loader's reason.
        tried: Vec<String>,
    },
    /// The library is too old, or another.
    #[error("{library} is no NVRTC that can be used: {reason}")]
    Symbol {
        /// Its path or name.
        library: String,
        /// The missing function.
        reason: String,
    },
    /// A part of the list is no architecture.
    #[error("{text:?} is no GPU architecture; {ARCHS_VARIABLE} is a list such as 80,90,100a")]
    Arch {
        /// The part.
        text: String,
    },
    /// This NVRTC does not know the architecture.
    #[error("this NVRTC cannot compile for sm_{arch}; it can for {supported:?}")]
    Unsupported {
        /// What was asked for.
        arch: Arch,
        /// What it can.
        supported: Vec<u32>,
    },
    /// A source, header, name or option contains a zero byte.
    #[error("text to compile contains a zero byte; it starts {start:?}")]
    Zero {
        /// Its first characters.
        start: String,
    },
    /// The program has errors.
    #[error("{program} does not compile for sm_{arch} ({message}):\n{log}")]
    Compile {
        /// Name of the program.
        program: String,
        /// Architecture it was compiled for.
        arch: Arch,
        /// NVRTC's name of the failure.
        message: String,
        /// The compiler's messages.
        log: String,
    },
    /// A call of the library failed.
    #[error("{call} failed: {message} ({code})")]
    Call {
        /// The function.
        call: &'static str,
        /// Its result.
        code: i32,
        /// The library's name of it.
        message: String,
    },
}
