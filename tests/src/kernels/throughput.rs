// SPDX-License-Identifier: MIT
//! `bench.cpp` but for the FIFO.

use anyhow::ensure;
use mscclpp_bootstrap::Deadline;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_port::{Buffer, PortChannel};

use super::{Kept, Launched, Report, address, block, device_of, kernel};

kernel!(BIDIRECTIONAL = conformance_bidirectional(Args) in "bench.cpp");
kernel!(STREAM = conformance_stream(Args) in "bench.cpp");
kernel!(SPLIT = conformance_split(SplitArgs) in "bench.cpp");
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

/// Rank 0 sends without waiting, rank 1 counts signals.
#[derive(Clone)]
pub struct Stream {
    /// Its memories hold `bytes`.
    pub channel: PortChannel,
    /// Of one put.
    pub bytes: u64,
    /// Puts.
    pub iterations: u64,
    /// 0 or 1.
    pub rank: usize,
}

impl Stream {
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
            &STREAM,
            device,
            block(1),
            args,
            Kept::new([&self.channel], self.clone()).report(&report),
        )
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
