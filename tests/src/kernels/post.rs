// SPDX-License-Identifier: MIT
//! `post.cpp`.

use std::thread;
use std::time::Duration;

use anyhow::ensure;
use mscclpp_bootstrap::Deadline;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_port::{Buffer, PortChannel, Status};

use super::{Kept, Launched, Report, address, block, device_of, first, fits, handles, kernel};

kernel!(ONE_VALUE = conformance_one_value(OneValueArgs) in "post.cpp");
kernel!(PUTS = conformance_puts(PutsArgs) in "post.cpp");
kernel!(FLOOD = conformance_flood(FloodArgs) in "post.cpp");

#[derive(Clone, Copy)]
#[repr(C)]
struct OneValueArgs {
    channel: PortChannelDeviceHandle,
    value: u64,
    report: u64,
    rank: u32,
    reserved: u32,
}

/// Rank 0 stores 42 and sends it, rank 1 sees it.
#[derive(Clone)]
pub struct OneValue {
    /// Its memories are `buffer` on both sides.
    pub channel: PortChannel,
    /// The value is its first word.
    pub buffer: Buffer,
    /// 0 or 1.
    pub rank: usize,
}

impl OneValue {
    /// Starts the kernel with one thread.
    pub fn launch(&self) -> anyhow::Result<Launched> {
        fits(&self.buffer, 4)?;
        let device = device_of(&self.channel);
        let report = Report::new(device)?;
        let args = OneValueArgs {
            channel: self.channel.device_handle(),
            value: address(&self.buffer),
            report: report.address(),
            rank: self.rank as u32,
            reserved: 0,
        };
        let kept = Kept::new([&self.channel], self.clone());
        Launched::start(&ONE_VALUE, device, block(1), args, kept.report(&report))
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct PutsArgs {
    channels: u64,
    report: u64,
    bytes: u64,
    count: u64,
}

/// Puts without waiting, a thread a channel, and a flush at the end.
#[derive(Clone)]
pub struct Puts {
    /// Each with memories of its own.
    pub channels: Vec<PortChannel>,
    /// Of one put.
    pub bytes: u64,
    /// Puts of a thread.
    pub count: u64,
}

impl Puts {
    /// Starts the kernel: one block with a thread a channel.
    pub fn launch(&self) -> anyhow::Result<Launched> {
        let device = device_of(first(&self.channels)?);
        let report = Report::new(device)?;
        let handles = handles(device, &self.channels)?;
        let args = PutsArgs {
            channels: address(&handles),
            report: report.address(),
            bytes: self.bytes,
            count: self.count,
        };
        let dims = block(self.channels.len() as u32);
        let kept = Kept::new(&self.channels, handles);
        Launched::start(&PUTS, device, dims, args, kept.report(&report))
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct FloodArgs {
    channel: PortChannelDeviceHandle,
    progress: u64,
    stop: u64,
    bytes: u64,
}

/// Bytes of the kernel's `FloodProgress`, and where its status is.
const PROGRESS: u64 = 16;
const STATUS: u64 = 8;

/// Threads that put and signal until a call fails or they are told to stop.
pub struct Flood {
    handle: PortChannelDeviceHandle,
    channel: PortChannel,
    bytes: u64,
    stop: Buffer,
}

impl Flood {
    /// Puts of so many bytes on a channel, by its own handle or by one that a test made of it.
    pub fn new(
        handle: PortChannelDeviceHandle,
        channel: &PortChannel,
        bytes: u64,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            handle,
            channel: channel.clone(),
            bytes,
            stop: Buffer::new(device_of(channel), 8)?,
        })
    }

    /// Starts the kernel in one block.
    pub fn launch(self, threads: u32) -> anyhow::Result<Flooding> {
        let device = device_of(&self.channel);
        let progress = Buffer::new(device, u64::from(threads) * PROGRESS)?;
        let args = FloodArgs {
            channel: self.handle,
            progress: address(&progress),
            stop: address(&self.stop),
            bytes: self.bytes,
        };
        let kept = Kept::new([&self.channel], (progress.clone(), self.stop.clone()));
        Ok(Flooding {
            launched: Launched::start(&FLOOD, device, block(threads), args, kept)?,
            progress,
            stop: self.stop,
        })
    }
}

/// A running [`Flood`].
pub struct Flooding {
    launched: Launched,
    progress: Buffer,
    stop: Buffer,
}

impl Flooding {
    /// Waits until thread 0 has made so many calls, or all threads have ended.
    pub fn wait(&self, posts: u64, deadline: Deadline) -> anyhow::Result<()> {
        while self.progress.load_u64(0)? < posts && !self.launched.is_finished() {
            ensure!(!deadline.expired(), "no {posts} posts by the deadline");
            thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Tells all threads to end.
    pub fn stop(&self) -> anyhow::Result<()> {
        Ok(self.stop.store_u64(0, 1)?)
    }

    /// Waits for the end of all threads; how the last call of each ended.
    pub fn finish(self, deadline: Deadline) -> anyhow::Result<Vec<Status>> {
        self.launched.finish(deadline)?;
        (0..self.progress.len() / PROGRESS)
            .map(|thread| {
                let word = self.progress.load_u64(thread * PROGRESS + STATUS)? as u32;
                Status::try_from(word).map_err(|_| anyhow::anyhow!("no status: {word}"))
            })
            .collect()
    }
}
