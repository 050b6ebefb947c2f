// SPDX-License-Identifier: MIT
//! `replay.cpp`.

#[cfg(feature = "cuda")]
use std::time::Duration;

#[cfg(feature = "cuda")]
use mscclpp_bootstrap::Deadline;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_port::{Buffer, PortChannel};

use super::{Kept, Launched, Report, address, block, device_of, fits, kernel};

kernel!(KERNEL = conformance_replay(Args) in "replay.cpp");

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    channel: PortChannelDeviceHandle,
    outgoing: u64,
    incoming: u64,
    count: u64,
    report: u64,
    rank: u32,
    reserved: u32,
}

/// Launches that each send a word, wait for the peer's and look at it.
#[derive(Clone)]
pub struct Replay {
    /// From `outgoing` here to `incoming` there.
    pub channel: PortChannel,
    /// Two words.
    pub outgoing: Buffer,
    /// Two words.
    pub incoming: Buffer,
    /// A word: how many launches there were.
    pub count: Buffer,
    /// 0 or 1.
    pub rank: usize,
}

impl Replay {
    /// The arguments, and what must outlive a launch.
    fn prepare(&self) -> anyhow::Result<(Args, Kept)> {
        fits(&self.outgoing, 16)?;
        fits(&self.incoming, 16)?;
        fits(&self.count, 8)?;
        let report = Report::new(device_of(&self.channel))?;
        let args = Args {
            channel: self.channel.device_handle(),
            outgoing: address(&self.outgoing),
            incoming: address(&self.incoming),
            count: address(&self.count),
            report: report.address(),
            rank: self.rank as u32,
            reserved: 0,
        };
        let kept = Kept::new([&self.channel], self.clone());
        Ok((args, kept.report(&report)))
    }

    /// Starts one launch.
    pub fn launch(&self) -> anyhow::Result<Launched> {
        let (args, kept) = self.prepare()?;
        let device = device_of(&self.channel);
        Launched::start(&KERNEL, device, block(1), args, kept)
    }

    /// Captures one launch in a graph, and replays it so often. The time of the replays.
    ///
    /// # Errors
    /// What the kernel reports. [`Stuck`](crate::harness::Stuck) if one does not end by the deadline.
    #[cfg(feature = "cuda")]
    pub fn replay(&self, replays: u64, deadline: Deadline) -> anyhow::Result<Duration> {
        let (args, kept) = self.prepare()?;
        let device = device_of(&self.channel);
        match super::cuda::replay(&KERNEL, device, block(1), args, replays, deadline) {
            Ok(took) => kept.check().map(|()| took),
            Err(error) => {
                // What still runs goes on using it.
                std::mem::forget(kept);
                Err(error)
            }
        }
    }
}
