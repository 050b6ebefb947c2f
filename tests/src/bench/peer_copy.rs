// SPDX-License-Identifier: MIT
//! The same bytes by plain copies of the CUDA driver between the two ranks' GPUs, one stream a GPU. No
//! kernel runs and no other process takes part: rank 0 has both GPUs and does all of it.

use std::time::{Duration, Instant};

use mscclpp_device::cuda::{DeviceMemory, Gpu, Stream};
use mscclpp_port::Device;

use crate::harness::Context;

/// No reference takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two GPUs, on rank 0; nothing on rank 1.
pub(super) struct PeerCopy {
    ends: Option<[End; 2]>,
}

/// One GPU: a stream, and memory for each way.
struct End {
    stream: Stream,
    out: DeviceMemory,
    into: DeviceMemory,
}

impl PeerCopy {
    /// As the report names it.
    pub(super) const NAME: &str = "CUDA copy";

    /// Room for messages of `bytes` on both GPUs, which may be the same.
    pub(super) fn new(context: &Context, gpus: [Device; 2], bytes: u64) -> anyhow::Result<Self> {
        if context.rank() != 0 {
            return Ok(Self { ends: None });
        }
        let end = |device: Device| {
            let gpu = Gpu::open(u32::try_from(device.id())?)?;
            anyhow::Ok(End {
                stream: Stream::new(&gpu)?,
                out: DeviceMemory::new(&gpu, bytes)?,
                into: DeviceMemory::new(&gpu, bytes)?,
            })
        };
        let ends = Some([end(gpus[0])?, end(gpus[1])?]);
        Ok(Self { ends })
    }

    /// There and back, each way when the other is done.
    pub(super) fn echo(&mut self, bytes: u64, iterations: u64) -> anyhow::Result<Duration> {
        let start = Instant::now();
        if let Some([first, second]) = &self.ends {
            for _ in 0..iterations {
                first.copy_to(second, bytes)?;
                first.stream.wait(PATIENCE)?;
                second.copy_to(first, bytes)?;
                second.stream.wait(PATIENCE)?;
            }
        }
        Ok(start.elapsed())
    }

    /// One way, one copy behind the other.
    pub(super) fn stream(&mut self, bytes: u64, iterations: u64) -> anyhow::Result<Duration> {
        let start = Instant::now();
        if let Some([first, second]) = &self.ends {
            for _ in 0..iterations {
                first.copy_to(second, bytes)?;
            }
            first.stream.wait(PATIENCE)?;
        }
        Ok(start.elapsed())
    }

    /// Both ways at once, one copy behind the other.
    pub(super) fn duplex(&mut self, bytes: u64, iterations: u64) -> anyhow::Result<Duration> {
        let start = Instant::now();
        if let Some([first, second]) = &self.ends {
            for _ in 0..iterations {
                first.copy_to(second, bytes)?;
                second.copy_to(first, bytes)?;
            }
            first.stream.wait(PATIENCE)?;
            second.stream.wait(PATIENCE)?;
        }
        Ok(start.elapsed())
    }
}

impl End {
    /// Puts a copy on this GPU's stream.
    fn copy_to(&self, other: &Self, bytes: u64) -> anyhow::Result<()> {
        // SAFETY: memory of both ends lives as long as they, holds `bytes`, and is touched by
        // copies alone.
        Ok(unsafe { (self.stream).copy(other.into.address(), self.out.address(), bytes) }?)
    }
}

impl Drop for PeerCopy {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else { return };
        if let Err(error) = ends.iter().try_for_each(|end| end.stream.wait(PATIENCE)) {
            tracing::warn!(%error, "copies still run: their memory is kept");
            std::mem::forget(ends);
        }
    }
}
