// SPDX-License-Identifier: MIT
//! Where GPUNetIO's headers are. The tests of `gpunetio-sys` use this file, too.

use std::path::PathBuf;

const INCLUDES: &str = "GPUNETIO_HEADERS";

/// The include directories of `GPUNETIO_HEADERS`, or why there are none. The wheel
/// `nvidia-nvshmem-cu13` 3.8.0 has that of 4.0.0 in `nvidia/nvshmem/include/gpunetio`.
pub(crate) fn directories() -> Result<Vec<PathBuf>, String> {
    let list = std::env::var_os(INCLUDES).unwrap_or_default();
    let paths = std::env::split_paths(&list).filter(|path| path != "");
    let paths: Vec<PathBuf> = paths.collect();
    if paths.is_empty() {
        return Err(format!("no headers of GPUNetIO: {INCLUDES} is not set"));
    }
    Ok(paths)
}
