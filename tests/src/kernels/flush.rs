// SPDX-License-Identifier: MIT
//! `flush.cpp`.

use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_port::PortChannel;

use super::{Kept, Launched, Report, address, block, device_of, first, handles, kernel};

kernel!(CONCURRENT = conformance_concurrent_flush(ConcurrentArgs) in "flush.cpp");
kernel!(QUEUES = conformance_queues(QueuesArgs) in "flush.cpp");

#[derive(Clone, Copy)]
#[repr(C)]
struct ConcurrentArgs {
    channel: PortChannelDeviceHandle,
    report: u64,
    iterations: u64,
}

/// Threads of one block send, flush and wait on one channel at once, a 32-bit word each.
#[derive(Clone)]
pub struct ConcurrentFlush {
    /// To the other rank; its memories hold a word a thread.
    pub channel: PortChannel,
    /// Rounds of each thread.
    pub iterations: u64,
}

impl ConcurrentFlush {
    /// Starts the kernel in one block.
    pub fn launch(&self, threads: u32) -> anyhow::Result<Launched> {
        let device = device_of(&self.channel);
        let report = Report::new(device)?;
        let args = ConcurrentArgs {
            channel: self.channel.device_handle(),
            report: report.address(),
            iterations: self.iterations,
        };
        Launched::start(
            &CONCURRENT,
            device,
            block(threads),
            args,
            Kept::new([&self.channel], self.clone()).report(&report),
        )
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct QueuesArgs {
    channels: u64,
    report: u64,
    bytes: u64,
    iterations: u64,
    flush: u32,
    reserved: u32,
}

/// Both ranks send at once over several channels, a thread a channel.
#[derive(Clone)]
pub struct Queues {
    /// To the other rank, each with memories of its own.
    pub channels: Vec<PortChannel>,
    /// Sent over each channel in an iteration.
    pub bytes: u64,
    /// Rounds.
    pub iterations: u64,
    /// Whether each thread flushes in each round.
    pub flush: bool,
}

impl Queues {
    /// Starts the kernel: one block with a thread a channel.
    pub fn launch(&self) -> anyhow::Result<Launched> {
        let device = device_of(first(&self.channels)?);
        let report = Report::new(device)?;
        let handles = handles(device, &self.channels)?;
        let args = QueuesArgs {
            channels: address(&handles),
            report: report.address(),
            bytes: self.bytes,
            iterations: self.iterations,
            flush: self.flush.into(),
            reserved: 0,
        };
        let dims = block(self.channels.len() as u32);
        let kept = Kept::new(&self.channels, handles);
        Launched::start(&QUEUES, device, dims, args, kept.report(&report))
    }
}
