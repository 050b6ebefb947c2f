// SPDX-License-Identifier: MIT
//! The kernels of `tests/kernels/`, each behind a type that owns what the kernel touches.
//!
//! A launch keeps channels and buffers alive until the kernel has ended; those of a kernel that
//! never ends are never freed.

mod accumulate;
mod all_pairs;
mod fifo;
mod flush;
mod packet;
mod ping_pong;
mod post;
mod queue;
mod steps;
mod stress;
mod throughput;

use std::any::Any;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use mscclpp_bootstrap::Deadline;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_device::executor::{HostKernel, LaunchDims, Running};
use mscclpp_port::{BasePortChannel, Buffer, Device, PortChannel, Status};

use crate::harness::Stuck;

pub use accumulate::{Accumulate, FanIn};
pub use all_pairs::AllPairs;
pub use fifo::FifoPush;
pub use flush::{ConcurrentFlush, Queues};
pub use packet::PacketPingPong;
pub use ping_pong::PingPong;
pub use post::{Flood, Flooding, OneValue, Puts};
pub use queue::Posts;
pub use steps::{Call, Done, Range, Steps};
pub use stress::{Count, Generations, OwnFlush};
pub use throughput::{Bidirectional, Post, Split, Stream};

/// Declares the host entry of a kernel as a [`HostKernel`].
macro_rules! kernel {
    ($(#[$doc:meta])* $name:ident = $entry:ident($args:ty)) => {
        $(#[$doc])*
        const $name: mscclpp_device::executor::HostKernel = {
            unsafe extern "C" {
                fn $entry(context: *const std::ffi::c_void);
            }
            // SAFETY: MSCCLPP_KERNEL made the entry, and it is linked into this program. It is
            // launched by this module alone, with arguments of the size that the executor checks
            // and the layout of the C++ struct beside it; what they name by address is in the
            // launch's `kept` until the kernel has ended, and is written atomically or by one
            // thread at a time.
            unsafe { mscclpp_device::executor::HostKernel::new(stringify!($entry), $entry) }
        };
    };
}
use kernel;

/// What a kernel uses, and must outlive it.
struct Kept {
    report: Option<Report>,
    /// Their connections' errors tell why calls of the kernel failed.
    channels: Vec<BasePortChannel>,
    _rest: Box<dyn Any + Send>,
}

impl Kept {
    /// The channels and whatever else.
    fn new<'a>(channels: impl IntoIterator<Item = &'a PortChannel>, rest: impl Any + Send) -> Self {
        Self {
            report: None,
            channels: channels
                .into_iter()
                .map(|channel| channel.base().clone())
                .collect(),
            _rest: Box::new(rest),
        }
    }

    /// With a report that is checked at the end.
    fn report(self, report: &Report) -> Self {
        Self {
            report: Some(report.clone()),
            ..self
        }
    }
}

/// A launched kernel, with all that it uses.
pub struct Launched {
    running: Running,
    started: Instant,
    kept: ManuallyDrop<Kept>,
}

impl Launched {
    fn start<T: Copy + Send + 'static>(
        kernel: HostKernel,
        dims: LaunchDims,
        args: T,
        kept: Kept,
    ) -> anyhow::Result<Self> {
        let started = Instant::now();
        let running = kernel.launch(dims, args)?;
        Ok(Self {
            running,
            started,
            kept: ManuallyDrop::new(kept),
        })
    }

    /// Waits until the kernel has ended, and returns the time since its launch.
    ///
    /// # Errors
    /// What the kernel reports. [`Stuck`] if it still runs at the deadline, which ends the run.
    pub fn finish(self, deadline: Deadline) -> anyhow::Result<Duration> {
        if let Err(error) = self.running.join(deadline.remaining()) {
            let stuck = Stuck(format!("{error}{}", self.causes()));
            // It has been waited for, and goes on using what would be dropped.
            std::mem::forget(self);
            return Err(stuck.into());
        }
        let took = self.started.elapsed();
        match self.kept.report.as_ref().map_or(Ok(()), Report::check) {
            Ok(()) => Ok(took),
            Err(error) => bail!("{error}{}", self.causes()),
        }
    }

    /// What the host knows of the channels' connections.
    fn causes(&self) -> String {
        let errors = self
            .kept
            .channels
            .iter()
            .filter_map(|channel| channel.connection().status());
        errors
            .map(|error| format!("; on the host: {error}"))
            .collect()
    }

    /// Whether all threads of the kernel have returned.
    pub fn is_finished(&self) -> bool {
        self.running.is_finished()
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // One that still runs goes on using all of it, so that is never freed then. Most end soon,
        // and peers are told sooner of what is dropped here.
        if self.running.join(LAST_WAIT).is_ok() {
            // SAFETY: this is the only place that drops it, and a drop happens once.
            unsafe { ManuallyDrop::drop(&mut self.kept) };
        }
    }
}

/// How long a kernel that nobody waited for may take to end.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// The first thing that went wrong in a kernel: `report.hpp`.
#[derive(Clone)]
struct Report(Buffer);

impl Report {
    /// Bytes of `conformance::Report`.
    const SIZE: u64 = 48;

    fn new() -> anyhow::Result<Self> {
        Ok(Self(Buffer::new(Device::cpu(), Self::SIZE)?))
    }

    fn address(&self) -> u64 {
        address(&self.0)
    }

    fn check(&self) -> anyhow::Result<()> {
        let mut bytes = [0; Self::SIZE as usize];
        self.0.read(0, &mut bytes)?;
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let (thread, iteration) = (half(12), word(16));
        let place = format!("in iteration {iteration}, thread {thread}");
        match half(4) {
            0 => Ok(()),
            1 => Err(anyhow::anyhow!(
                "wrong value {place}: element {} is {} instead of {}",
                word(24),
                word(40) as i64,
                word(32) as i64
            )),
            2 => Err(anyhow::anyhow!(
                "a call returned {} {place}",
                status_text(half(8))
            )),
            3 => Err(anyhow::anyhow!("no signal in {} polls {place}", word(32))),
            other => Err(anyhow::anyhow!(
                "the kernel reports a failure of unknown kind {other}"
            )),
        }
    }
}

/// The name of a status that a kernel wrote down.
fn status_text(code: u32) -> String {
    Status::try_from(code).map_or_else(|_| format!("status {code}"), |status| format!("{status:?}"))
}

/// Where device code finds the buffer.
fn address(buffer: &Buffer) -> u64 {
    buffer.as_ptr() as u64
}

/// One block of so many threads.
fn block(threads: u32) -> LaunchDims {
    LaunchDims {
        grid: 1,
        block: threads,
    }
}

/// So many blocks of one thread.
fn grid(blocks: u32) -> LaunchDims {
    LaunchDims {
        grid: blocks,
        block: 1,
    }
}

/// Handles in an array, as kernels with several channels take them.
fn handles(channels: &[PortChannel]) -> Arc<[PortChannelDeviceHandle]> {
    channels.iter().map(PortChannel::device_handle).collect()
}

/// Whether a buffer holds so many bytes.
fn fits(buffer: &Buffer, bytes: u64) -> anyhow::Result<()> {
    ensure!(
        bytes <= buffer.len(),
        "the kernel needs {bytes} bytes, the buffer has {}",
        buffer.len()
    );
    Ok(())
}
