// SPDX-License-Identifier: MIT
//! `bench.cpp` but for the FIFO.

use anyhow::ensure;
use mscclpp_bootstrap::Deadline;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_port::{Buffer, PortChannel};

use super::{Kept, Launched, Report, address, block, device_of, first, handles, kernel};

kernel!(BIDIRECTIONAL = conformance_bidirectional(Args) in "bench.cpp");
kernel!(STREAM = conformance_stream(Args) in "bench.cpp");
kernel!(SPLIT = conformance_split(SplitArgs) in "bench.cpp");
kernel!(ONE_WAY = conformance_one_way(SplitArgs) in "bench.cpp");
kernel!(POST = conformance_post(PostArgs) in "bench.cpp");

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    channel: PortChannelDeviceHandle,
    report: u64,
    bytes: u64,
    iterations: u64,
    rank: u32,
    reserved: u32,
}

/// Both ranks send at once, each its half of the buffer.
#[derive(Clone)]
pub struct Bidirectional {
    /// Its memories hold two halves of `bytes`.
    pub channel: PortChannel,
    /// Of one direction, in an iteration.
    pub bytes: u64,
    /// Rounds.
    pub iterations: u64,
    /// 0 or 1.
    pub rank: usize,
}

impl Bidirectional {
    /// Starts the kernel with one thread.
    pub fn launch(&self) -> anyhow::Result<Launched> {
        let device = device_of(&self.channel);
        let report = Report::new(device)?;
        let args = Args {
            channel: self.channel.device_handle(),
            report: report.address(),
            bytes: self.bytes,
            iterations: self.iterations,
            rank: self.rank as u32,
            reserved: 0,
        };
        Launched::start(
            &BIDIRECTIONAL,
            device,
            block(1),
            args,
            Kept::new([&self.channel], self.clone()).report(&report),
        )
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct StreamArgs {
    channels: u64,
    report: u64,
    bytes: u64,
    iterations: u64,
    queues: u32,
    rank: u32,
}

/// Rank 0's threads send without waiting, rank 1's count signals. Threads take turns with the
/// channels: the second has the second one, or the first if that is all.
#[derive(Clone)]
pub struct Stream {
    /// Each with memories that hold `bytes`.
    pub channels: Vec<PortChannel>,
    /// Of one put.
    pub bytes: u64,
    /// Puts of a thread.
    pub iterations: u64,
    /// 0 or 1.
    pub rank: usize,
}

impl Stream {
    /// Starts the kernel in one block.
    pub fn launch(&self, threads: u32) -> anyhow::Result<Launched> {
        let device = device_of(first(&self.channels)?);
        let report = Report::new(device)?;
        let handles = handles(device, &self.channels)?;
        let args = StreamArgs {
            channels: address(&handles),
            report: report.address(),
            bytes: self.bytes,
            iterations: self.iterations,
            queues: self.channels.len() as u32,
            rank: self.rank as u32,
        };
        let kept = Kept::new(&self.channels, handles);
        Launched::start(&STREAM, device, block(threads), args, kept.report(&report))
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct SplitArgs {
    channel: PortChannelDeviceHandle,
    report: u64,
    times: u64,
    bytes: u64,
    iterations: u64,
    rank: u32,
    reserved: u32,
}

/// A ping-pong with a flush in each iteration, taken apart by a clock.
#[derive(Clone)]
pub struct Split {
    /// Its memories hold `bytes`.
    pub channel: PortChannel,
    /// Of one put.
    pub bytes: u64,
    /// Round trips.
    pub iterations: u64,
    /// 0 or 1.
    pub rank: usize,
}

impl Split {
    /// Runs the kernel with one thread. For each iteration: nanoseconds until the put returned,
    /// from there until the reply was there, from there until the flush returned.
    pub fn run(&self, deadline: Deadline) -> anyhow::Result<Vec<[u64; 3]>> {
        ensure!(self.iterations > 0, "a split needs an iteration");
        let device = device_of(&self.channel);
        let report = Report::new(device)?;
        let times = Buffer::new(device, self.iterations * 24)?;
        let args = SplitArgs {
            channel: self.channel.device_handle(),
            report: report.address(),
            times: address(&times),
            bytes: self.bytes,
            iterations: self.iterations,
            rank: self.rank as u32,
            reserved: 0,
        };
        let kept = Kept::new([&self.channel], (self.clone(), times.clone()));
        Launched::start(&SPLIT, device, block(1), args, kept.report(&report))?.finish(deadline)?;
        times_of(&times)
    }
}

/// A ping-pong whose ranks both look at the clock.
#[derive(Clone)]
pub struct OneWay {
    /// What the kernel gets: the channel's own handle, or one that was made of it.
    pub handle: PortChannelDeviceHandle,
    /// Its memories hold `bytes`.
    pub channel: PortChannel,
    /// Of one put.
    pub bytes: u64,
    /// Round trips.
    pub iterations: u64,
    /// 0 or 1.
    pub rank: usize,
}

impl OneWay {
    /// Runs the kernel with one thread. For each iteration, in nanoseconds of the device's clock:
    /// before the put, when it returned, and when the peer's signal was seen.
    pub fn run(&self, deadline: Deadline) -> anyhow::Result<Vec<[u64; 3]>> {
        let device = device_of(&self.channel);
        let report = Report::new(device)?;
        let times = Buffer::new(device, self.iterations.max(1) * 24)?;
        let args = SplitArgs {
            channel: self.handle,
            report: report.address(),
            times: address(&times),
            bytes: self.bytes,
            iterations: self.iterations,
            rank: self.rank as u32,
            reserved: 0,
        };
        let kept = Kept::new([&self.channel], (self.clone(), times.clone()));
        Launched::start(&ONE_WAY, device, block(1), args, kept.report(&report))?
            .finish(deadline)?;
        times_of(&times)
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct PostArgs {
    channel: PortChannelDeviceHandle,
    report: u64,
    times: u64,
    bytes: u64,
    iterations: u64,
}

/// Posts of one thread to a send queue, each a put with a signal, taken apart by a clock.
#[derive(Clone)]
pub struct Post {
    /// On a queue; its memories hold `bytes`.
    pub channel: PortChannel,
    /// Of one put.
    pub bytes: u64,
    /// Posts.
    pub iterations: u64,
}

impl Post {
    /// The parts of a post, in their order.
    pub const PHASES: [&str; 6] = ["bounds", "reserve", "write", "publish", "fence", "ring"];

    /// Runs the kernel. For each post: nanoseconds of each phase.
    pub fn run(&self, deadline: Deadline) -> anyhow::Result<Vec<[u64; 6]>> {
        const BYTES: u64 = 8 * Post::PHASES.len() as u64;
        ensure!(self.iterations > 0, "at least one post");
        let device = device_of(&self.channel);
        let report = Report::new(device)?;
        let times = Buffer::new(device, self.iterations * BYTES)?;
        let args = PostArgs {
            channel: self.channel.device_handle(),
            report: report.address(),
            times: address(&times),
            bytes: self.bytes,
            iterations: self.iterations,
        };
        let kept = Kept::new([&self.channel], (self.clone(), times.clone()));
        Launched::start(&POST, device, block(1), args, kept.report(&report))?.finish(deadline)?;
        times_of(&times)
    }
}

/// So many 64-bit numbers an iteration, as a kernel left them.
fn times_of<const N: usize>(times: &Buffer) -> anyhow::Result<Vec<[u64; N]>> {
    let mut bytes = vec![0; times.len() as usize];
    times.read(0, &mut bytes)?;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let rows = bytes.chunks_exact(8 * N);
    Ok(rows
        .map(|row| std::array::from_fn(|i| word(&row[8 * i..8 * i + 8])))
        .collect())
}
