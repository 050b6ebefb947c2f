// SPDX-License-Identifier: MIT
//! The kernels of `tests/kernels/`, each behind a type that owns what the kernel touches.
//!
//! A launch runs on the device of its channel: on CPU threads or on a GPU. It keeps channels and
//! buffers alive until the kernel has ended; those of a kernel that never ends are never freed.

mod accumulate;
mod all_pairs;
mod compat;
#[cfg(feature = "cuda")]
mod cuda;
mod fifo;
mod flush;
mod kernel;
mod launched;
mod packet;
mod ping_pong;
mod post;
mod queue;
mod replay;
mod report;
mod steps;
mod stress;
mod throughput;

use anyhow::{Context as _, ensure};
use mscclpp_device::abi::{BasePortChannelDeviceHandle, PortChannelDeviceHandle};
use mscclpp_device::executor::LaunchDims;
use mscclpp_port::{Buffer, Device, PortChannel};

pub use accumulate::{Accumulate, FanIn};
pub use all_pairs::AllPairs;
pub use compat::User;
pub use fifo::FifoPush;
pub use flush::{ConcurrentFlush, Queues};
pub use launched::Launched;
pub use packet::PacketPingPong;
pub use ping_pong::PingPong;
pub use post::{Flood, Flooding, OneValue, Puts};
pub use queue::Posts;
pub use replay::Replay;
pub use steps::{Call, Done, Range, Steps};
pub use stress::{Count, Generations, OwnFlush};
pub use throughput::{Bidirectional, OneWay, Post, Split, Stream};

use kernel::kernel;
use launched::Kept;
use report::{Report, status_text};

/// Every kernel.
#[cfg(feature = "cuda")]
static ALL: [&kernel::Kernel; 23] = [
    &accumulate::ACCUMULATE,
    &accumulate::FAN_IN,
    &all_pairs::KERNEL,
    &compat::KERNEL,
    &fifo::KERNEL,
    &flush::CONCURRENT,
    &flush::QUEUES,
    &packet::KERNEL,
    &ping_pong::KERNEL,
    &ping_pong::SEVERAL,
    &post::ONE_VALUE,
    &post::PUTS,
    &post::FLOOD,
    &replay::KERNEL,
    &steps::KERNEL,
    &stress::COUNT,
    &stress::OWN_FLUSH,
    &stress::GENERATIONS,
    &throughput::BIDIRECTIONAL,
    &throughput::STREAM,
    &throughput::SPLIT,
    &throughput::ONE_WAY,
    &throughput::POST,
];

/// Does what the first launch on a device would do, so that nothing is loaded or opened later.
pub fn prepare(device: Device) -> anyhow::Result<()> {
    #[cfg(feature = "cuda")]
    if device.kind() == mscclpp_port::DeviceKind::Gpu {
        cuda::prepare(device)?;
    }
    Buffer::new(device, 8)?.write(0, &[0; 8])?;
    Ok(())
}

/// Where device code finds the buffer.
fn address(buffer: &Buffer) -> u64 {
    buffer.address()
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

/// The device that runs a channel's kernels.
fn device_of(channel: &PortChannel) -> Device {
    channel.base().connection().local_device()
}

/// The first of a kernel's channels.
fn first(channels: &[PortChannel]) -> anyhow::Result<&PortChannel> {
    channels.first().context("a kernel needs a channel")
}

/// Plain data that kernels take as an array, in memory of the device that runs them.
fn array<T: DeviceHandle>(device: Device, items: &[T]) -> anyhow::Result<Buffer> {
    let bytes = size_of_val(items);
    let buffer = Buffer::new(device, bytes as u64)?;
    // SAFETY: the items are `bytes` bytes long, and a type of this trait has no byte without a value.
    let bytes = unsafe { std::slice::from_raw_parts(items.as_ptr().cast::<u8>(), bytes) };
    buffer.write(0, bytes)?;
    Ok(buffer)
}

/// A device handle, or a kernel's arguments.
///
/// # Safety
/// It has no padding.
unsafe trait DeviceHandle: Copy {}

// SAFETY: the layouts have no padding: the C++ twins' sizes are the sums of their fields.
unsafe impl DeviceHandle for PortChannelDeviceHandle {}
// SAFETY: as above.
unsafe impl DeviceHandle for BasePortChannelDeviceHandle {}

/// The handles of channels of one device, as kernels with several channels take them.
fn handles(device: Device, channels: &[PortChannel]) -> anyhow::Result<Buffer> {
    let handles: Vec<_> = channels.iter().map(PortChannel::device_handle).collect();
    array(device, &handles)
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
