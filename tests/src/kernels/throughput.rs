// SPDX-License-Identifier: MIT
//! `bench.cpp` but for the FIFO.

use anyhow::ensure;
use mscclpp_bootstrap::Deadline;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_port::{Buffer, Device, PortChannel};

use super::{Kept, Launched, Report, address, block, kernel};

kernel!(BIDIRECTIONAL = conformance_bidirectional(Args));
kernel!(STREAM = conformance_stream(Args));
kernel!(SPLIT = conformance_split(SplitArgs));
kernel!(POST = conformance_post(PostArgs));

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
        let report = Report::new()?;
        let args = Args {
            channel: self.channel.device_handle(),
            report: report.address(),
            bytes: self.bytes,
            iterations: self.iterations,
            rank: self.rank as u32,
            reserved: 0,
        };
        Launched::start(
            BIDIRECTIONAL,
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
        let report = Report::new()?;
        let args = Args {
            channel: self.channel.device_handle(),
            report: report.address(),
            bytes: self.bytes,
            iterations: self.iterations,
            rank: self.rank as u32,
            reserved: 0,
        };
        Launched::start(
            STREAM,
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
        let report = Report::new()?;
        let times = Buffer::new(Device::cpu(), self.iterations * 24)?;
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
        Launched::start(SPLIT, block(1), args, kept.report(&report))?.finish(deadline)?;
        (0..self.iterations)
            .map(|i| {
                let word = |part: u64| times.load_u64(24 * i + 8 * part);
                Ok([word(0)?, word(1)?, word(2)?])
            })
            .collect()
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
        let report = Report::new()?;
        let times = Buffer::new(Device::cpu(), self.iterations * BYTES)?;
        let args = PostArgs {
            channel: self.channel.device_handle(),
            report: report.address(),
            times: address(&times),
            bytes: self.bytes,
            iterations: self.iterations,
        };
        let kept = Kept::new([&self.channel], (self.clone(), times.clone()));
        Launched::start(POST, block(1), args, kept.report(&report))?.finish(deadline)?;
        (0..self.iterations)
            .map(|i| {
                let mut phases = [0; Post::PHASES.len()];
                for (part, time) in (0_u64..).zip(&mut phases) {
                    *time = times.load_u64(BYTES * i + 8 * part)?;
                }
                Ok(phases)
            })
            .collect()
    }
}
