// SPDX-License-Identifier: MIT
//! `all_pairs.cpp`.

use mscclpp_device::executor::LaunchDims;
use mscclpp_port::{Buffer, PortChannel};

use super::{Kept, Launched, Report, address, device_of, first, fits, handles, kernel};

kernel!(KERNEL = conformance_all_pairs(Args) in "all_pairs.cpp");

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    channels: u64,
    buffer: u64,
    syncer: u64,
    report: u64,
    elements: u64,
    rounds: u64,
    rank: u32,
    ranks: u32,
}

/// Every rank sends its slice to every other one, in rounds.
#[derive(Clone)]
pub struct AllPairs {
    /// To each other rank, in rank order; its memories are `buffer` on both sides.
    pub channels: Vec<PortChannel>,
    /// Two halves of a slice a rank: 8 bytes times ranks times `elements`.
    pub buffer: Buffer,
    /// 32-bit words of a slice.
    pub elements: u64,
    /// How often all send.
    pub rounds: u64,
    /// This rank.
    pub rank: usize,
}

impl AllPairs {
    /// Starts the kernel: a block a peer.
    pub fn launch(&self, threads: u32) -> anyhow::Result<Launched> {
        /// Bytes of `mscclpp::DeviceSyncer`, zeroed.
        const SYNCER: u64 = 16;
        let ranks = self.channels.len() as u32 + 1;
        fits(&self.buffer, 8 * u64::from(ranks) * self.elements)?;
        let device = device_of(first(&self.channels)?);
        let report = Report::new(device)?;
        let syncer = Buffer::new(device, SYNCER)?;
        let handles = handles(device, &self.channels)?;
        let args = Args {
            channels: address(&handles),
            buffer: address(&self.buffer),
            syncer: address(&syncer),
            report: report.address(),
            elements: self.elements,
            rounds: self.rounds,
            rank: self.rank as u32,
            ranks,
        };
        let dims = LaunchDims {
            grid: ranks - 1,
            block: threads,
        };
        let kept = Kept::new(&self.channels, (self.clone(), handles, syncer));
        Launched::start(&KERNEL, device, dims, args, kept.report(&report))
    }
}
