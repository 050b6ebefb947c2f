// SPDX-License-Identifier: MIT
//! What calls of the library, and the library's own calls, return.

/// `doca_error_t`. Returned by the library, and by what it calls verbs and mlx5 through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct DocaError(pub i32);

impl DocaError {
    /// `DOCA_SUCCESS`.
    pub const SUCCESS: Self = Self(0);
    /// `DOCA_ERROR_NOT_SUPPORTED`.
    pub const NOT_SUPPORTED: Self = Self(4);
    /// `DOCA_ERROR_INVALID_VALUE`.
    pub const INVALID_VALUE: Self = Self(6);
    /// `DOCA_ERROR_NO_MEMORY`.
    pub const NO_MEMORY: Self = Self(7);
    /// `DOCA_ERROR_BAD_STATE`.
    pub const BAD_STATE: Self = Self(18);
    /// `DOCA_ERROR_OPERATING_SYSTEM`.
    pub const OPERATING_SYSTEM: Self = Self(20);
    /// `DOCA_ERROR_DRIVER`: what the library expects of a verbs or mlx5 call that failed.
    pub const DRIVER: Self = Self(21);
    /// `DOCA_ERROR_UNEXPECTED`.
    pub const UNEXPECTED: Self = Self(22);

    /// `Ok` for [`SUCCESS`](Self::SUCCESS).
    ///
    /// # Errors
    ///
    /// Any other value.
    pub fn ok(self) -> Result<(), Self> {
        if self == Self::SUCCESS {
            Ok(())
        } else {
            Err(self)
        }
    }
}

/// `CUresult`, of CUDA's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct CuResult(pub i32);

impl CuResult {
    /// `CUDA_SUCCESS`.
    pub const SUCCESS: Self = Self(0);
    /// `CUDA_ERROR_NOT_INITIALIZED`.
    pub const NOT_INITIALIZED: Self = Self(3);
    /// `CUDA_ERROR_UNKNOWN`.
    pub const UNKNOWN: Self = Self(999);
}

/// `cudaError_t`, of CUDA's run-time library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct CudaError(pub i32);

impl CudaError {
    /// `cudaSuccess`.
    pub const SUCCESS: Self = Self(0);
    /// `cudaErrorInitializationError`.
    pub const NOT_INITIALIZED: Self = Self(3);
    /// `cudaErrorUnknown`.
    pub const UNKNOWN: Self = Self(999);
}
