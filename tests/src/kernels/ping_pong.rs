// SPDX-License-Identifier: MIT
//! `ping_pong.cpp`.

use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_device::executor::LaunchDims;
use mscclpp_port::{Buffer, PortChannel};

use super::{DeviceHandle, Kept, Launched, Report, address, array, block, device_of, fits, kernel};

kernel!(KERNEL = conformance_ping_pong(Args) in "ping_pong.cpp");
kernel!(SEVERAL = conformance_ping_pongs(SeveralArgs) in "ping_pong.cpp");

#[derive(Clone, Copy)]
#[repr(C)]
struct SeveralArgs {
    ends: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    channel: PortChannelDeviceHandle,
    buffer: u64,
    report: u64,
    elements: u64,
    iterations: u64,
    polls: u64,
    rank: u32,
    flush: u32,
    check: u32,
    answers_last: u32,
}

/// Two ranks send a buffer back and forth.
#[derive(Clone)]
pub struct PingPong {
    /// To the other rank; its memories are `buffer` on both sides.
    pub channel: PortChannel,
    /// At least `elements` times 4 bytes.
    pub buffer: Buffer,
    /// 32-bit words that travel.
    pub elements: u64,
    /// Round trips.
    pub iterations: u64,
    /// With how many polls at most a signal is looked for; none: a wait.
    pub polls: Option<u64>,
    /// 0 or 1.
    pub rank: usize,
    /// Whether each iteration ends with a flush.
    pub flush: bool,
    /// Whether the values are written and checked.
    pub check: bool,
    /// Whether rank 1 answers the last message too and rank 0 waits for it, so that as many whole
    /// round trips are made.
    pub answers_last: bool,
}

impl PingPong {
    /// Starts the kernel in one block.
    pub fn launch(&self, threads: u32) -> anyhow::Result<Launched> {
        let device = device_of(&self.channel);
        let report = Report::new(device)?;
        let kept = Kept::new([&self.channel], self.clone()).report(&report);
        Launched::start(&KERNEL, device, block(threads), self.args(&report)?, kept)
    }

    fn args(&self, report: &Report) -> anyhow::Result<Args> {
        fits(&self.buffer, self.elements * 4)?;
        Ok(Args {
            channel: self.channel.device_handle(),
            buffer: address(&self.buffer),
            report: report.address(),
            elements: self.elements,
            iterations: self.iterations,
            polls: self.polls.unwrap_or(0),
            rank: self.rank as u32,
            flush: self.flush.into(),
            check: self.check.into(),
            answers_last: self.answers_last.into(),
        })
    }

    /// Starts some of one device as one kernel, a block each: so many kernels might not run at once.
    /// What is reported is the first thing that goes wrong in one of them.
    pub fn launch_all(ends: Vec<Self>, threads: u32) -> anyhow::Result<Option<Launched>> {
        let Some(first) = ends.first() else {
            return Ok(None);
        };
        let device = device_of(&first.channel);
        let report = Report::new(device)?;
        let args: anyhow::Result<Vec<Args>> = ends.iter().map(|end| end.args(&report)).collect();
        let args = array(device, &args?)?;
        let several = SeveralArgs {
            ends: address(&args),
        };
        let dims = LaunchDims {
            grid: ends.len() as u32,
            block: threads,
        };
        let channels: Vec<PortChannel> = ends.iter().map(|end| end.channel.clone()).collect();
        let kept = Kept::new(&channels, (ends, args)).report(&report);
        Launched::start(&SEVERAL, device, dims, several, kept).map(Some)
    }
}

// SAFETY: the fields fill it.
unsafe impl DeviceHandle for Args {}
