// SPDX-License-Identifier: MIT
//! Which GPU is a rank's, and whether GPUs can be used here.

use mscclpp_port::Device;

use crate::harness::Context;

/// The GPU of a rank: its number modulo that of GPUs.
pub(super) fn device(rank: usize) -> Device {
    let count = count().unwrap_or(0).max(1);
    Device::gpu((rank % count) as i32)
}

/// Kernels of two processes take turns on a GPU, for milliseconds each, and those of a test wait for
/// each other. So each process needs a GPU of its own; ranks that are threads do not.
pub(super) fn obstacle(context: &Context) -> Option<String> {
    let count = match count() {
        Ok(count) => count,
        Err(reason) => return Some(reason),
    };
    let ranks = context.ranks();
    match count {
        0 => Some("no GPU".to_owned()),
        _ if context.ranks_are_threads() || ranks <= count => None,
        _ => Some(format!(
            "{ranks} ranks that are processes need as many GPUs, here: {count}; two ranks can be \
             threads (--threads 2)"
        )),
    }
}

/// How many GPUs there are, or why none can be used.
#[cfg(feature = "cuda")]
pub(crate) fn count() -> Result<usize, String> {
    let count = mscclpp_device::cuda::gpu_count().map_err(|error| error.to_string())?;
    Ok(count as usize)
}

/// As above.
#[cfg(not(feature = "cuda"))]
pub(crate) fn count() -> Result<usize, String> {
    Err("built without the feature cuda".to_owned())
}
