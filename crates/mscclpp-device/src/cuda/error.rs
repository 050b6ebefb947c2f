// SPDX-License-Identifier: MIT
//! What can go wrong with a GPU.

use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{self, CUresult};
use thiserror::Error;

use super::driver::OLDEST_DRIVER;
use crate::nvrtc::NvrtcError;

/// Why a GPU did not do what it was asked for.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library is not there.
    #[error(
        "no CUDA driver: libcuda.so.1 cannot be loaded; install NVIDIA's driver, or start the \
         container with access to the GPUs"
    )]
    NoDriver,
    /// The driver is older than what this crate calls.
    #[error(
        "the driver is made for CUDA {}.{}, and at least {}.{} is needed; update NVIDIA's driver",
        found.0, found.1, OLDEST_DRIVER.0, OLDEST_DRIVER.1
    )]
    OldDriver {
        /// CUDA's major and minor version that the driver supports.
        found: (i32, i32),
    },
    /// There is no such GPU.
    #[error(
        "there is no GPU {wanted}; the driver shows {count} (CUDA_VISIBLE_DEVICES may hide some)"
    )]
    NoGpu {
        /// Ordinal or UUID that was asked for.
        wanted: String,
        /// How many there are.
        count: u32,
    },
    /// A call of the driver failed.
    #[error("{call} failed on GPU {gpu}: {message} ({name}, {code})")]
    Call {
        /// The function.
        call: &'static str,
        /// Ordinal of the GPU.
        gpu: u32,
        /// Its result.
        code: u32,
        /// The driver's name of it.
        name: String,
        /// The driver's text.
        message: String,
    },
    /// Work of a GPU was not done in time. It goes on.
    #[error("{what} on GPU {gpu} was not done in {waited:?}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// Ordinal of the GPU.
        gpu: u32,
        /// How long was waited.
        waited: Duration,
    },
    /// A size that nothing can have.
    #[error("{bytes} bytes is no size for {what}")]
    Size {
        /// Of what.
        what: &'static str,
        /// Bytes asked for.
        bytes: u64,
    },
    /// A kernel cannot be launched with these dimensions.
    #[error("kernel {kernel}: {grid} blocks of {block} threads cannot be launched")]
    Dimensions {
        /// Name of the kernel.
        kernel: String,
        /// Blocks asked for.
        grid: u32,
        /// Threads a block asked for.
        block: u32,
    },
    /// The arguments are not what the kernel was defined with.
    #[error("kernel {kernel} takes {expected} bytes of arguments and was given {given}")]
    Arguments {
        /// Name of the kernel.
        kernel: String,
        /// Size of the kernel's argument type.
        expected: u64,
        /// Size of the type given.
        given: u64,
    },
    /// Host memory that GPUs would find at another address than the host does.
    #[error(
        "GPU {gpu} does not reach registered host memory at the host's address; channels need \
         unified addressing"
    )]
    NotUnified {
        /// Ordinal of the GPU.
        gpu: u32,
    },
    /// The system gave no memory, or a descriptor could not be used.
    #[error("{operation}: {errno}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// The system's reason.
        errno: rustix::io::Errno,
    },
    /// The kernel could not be compiled.
    #[error(transparent)]
    Nvrtc(Arc<NvrtcError>),
}

impl From<NvrtcError> for CudaError {
    fn from(error: NvrtcError) -> Self {
        Self::Nvrtc(Arc::new(error))
    }
}

/// The result of the driver's function `call` on GPU `gpu`.
pub(super) fn check(gpu: u32, call: &'static str, result: CUresult) -> Result<(), CudaError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    type Tell = unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult;
    let text = |tell: Tell| {
        let mut text = std::ptr::null();
        // SAFETY: a valid pointer to write to; the text is static.
        match unsafe { tell(result, &mut text) } {
            CUresult::CUDA_SUCCESS if !text.is_null() => {
                // SAFETY: as above.
                unsafe { CStr::from_ptr(text) }
                    .to_string_lossy()
                    .into_owned()
            }
            _ => "unknown".to_owned(),
        }
    };
    Err(CudaError::Call {
        call,
        gpu,
        code: result as u32,
        name: text(sys::cuGetErrorName),
        message: text(sys::cuGetErrorString),
    })
}

/// Logs a failure of something that cannot fail upwards.
pub(super) fn warn(result: Result<(), CudaError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "a GPU's resource was not let go");
    }
}
