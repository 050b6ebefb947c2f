// SPDX-License-Identifier: MIT
//! The driver's library: loaded once, when first asked for.

use std::sync::OnceLock;

use cudarc::driver::sys;

use super::CudaError;
use super::error::check;

/// CUDA version of the oldest driver that has every function called here.
pub(super) const OLDEST_DRIVER: (i32, i32) = (12, 4);

/// Loads and initialises the driver, the first time. Cheap afterwards; any thread.
///
/// # Errors
///
/// [`CudaError::NoDriver`], [`CudaError::OldDriver`], or why it cannot be initialised, the same
/// each time.
pub fn driver() -> Result<(), CudaError> {
    static LOADED: OnceLock<Result<(), CudaError>> = OnceLock::new();
    LOADED.get_or_init(load).clone()
}

fn load() -> Result<(), CudaError> {
    // cudarc panics where the library is missing, so it is looked for first.
    // SAFETY: loading the driver's library has no preconditions.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    let mut version = 0;
    // SAFETY: a valid integer to write to; this call needs no initialisation.
    check(0, "cuDriverGetVersion", unsafe {
        sys::cuDriverGetVersion(&mut version)
    })?;
    let found = (version / 1000, version % 1000 / 10);
    if found < OLDEST_DRIVER {
        return Err(CudaError::OldDriver { found });
    }
    // SAFETY: no preconditions.
    check(0, "cuInit", unsafe { sys::cuInit(0) })
}

/// The CUDA version that the driver supports, as (major, minor).
///
/// # Errors
///
/// As [`driver`].
pub fn driver_version() -> Result<(i32, i32), CudaError> {
    driver()?;
    let mut version = 0;
    // SAFETY: a valid integer to write to.
    check(0, "cuDriverGetVersion", unsafe {
        sys::cuDriverGetVersion(&mut version)
    })?;
    Ok((version / 1000, version % 1000 / 10))
}

/// How many GPUs the driver shows to this process.
///
/// # Errors
///
/// As [`driver`].
pub fn gpu_count() -> Result<u32, CudaError> {
    driver()?;
    let mut count = 0;
    // SAFETY: a valid integer to write to; the driver is initialised.
    check(0, "cuDeviceGetCount", unsafe {
        sys::cuDeviceGetCount(&mut count)
    })?;
    Ok(u32::try_from(count).unwrap_or(0))
}
