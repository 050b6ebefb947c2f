// SPDX-License-Identifier: MIT
//! `accumulate.cpp`.

use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_port::{Buffer, PortChannel};

use super::{Kept, Launched, Report, address, block, device_of, fits, grid, kernel};

kernel!(ACCUMULATE = conformance_accumulate(AccumulateArgs) in "accumulate.cpp");
kernel!(FAN_IN = conformance_fan_in(FanInArgs) in "accumulate.cpp");

#[derive(Clone, Copy)]
#[repr(C)]
struct AccumulateArgs {
    channel: PortChannelDeviceHandle,
    target: u64,
    syncer: u64,
    report: u64,
    rounds: u64,
}

/// Every block adds to the peer's word, on both ranks at once.
#[derive(Clone)]
pub struct Accumulate {
    /// Its remote memory is the peer's `target`.
    pub channel: PortChannel,
    /// The word that the peer adds to, zero at first.
    pub target: Buffer,
    /// Rounds of three additions.
    pub rounds: u64,
}

impl Accumulate {
    /// Starts the kernel: so many blocks of one thread.
    pub fn launch(&self, blocks: u32) -> anyhow::Result<Launched> {
        /// Bytes of `mscclpp::DeviceSyncer`, zeroed.
        const SYNCER: u64 = 16;
        fits(&self.target, 8)?;
        let device = device_of(&self.channel);
        let report = Report::new(device)?;
        let syncer = Buffer::new(device, SYNCER)?;
        let args = AccumulateArgs {
            channel: self.channel.device_handle(),
            target: address(&self.target),
            syncer: address(&syncer),
            report: report.address(),
            rounds: self.rounds,
        };
        let kept = Kept::new([&self.channel], (self.clone(), syncer));
        Launched::start(
            &ACCUMULATE,
            device,
            grid(blocks),
            args,
            kept.report(&report),
        )
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct FanInArgs {
    channel: PortChannelDeviceHandle,
    report: u64,
    offset: u64,
    operand: i64,
    count: u64,
}

/// One thread adds the same number to a word of the peer, again and again.
#[derive(Clone)]
pub struct FanIn {
    /// Its remote memory holds the word.
    pub channel: PortChannel,
    /// Where the word is.
    pub offset: u64,
    /// What is added.
    pub operand: i64,
    /// How often.
    pub count: u64,
}

impl FanIn {
    /// Starts the kernel with one thread.
    pub fn launch(&self) -> anyhow::Result<Launched> {
        let device = device_of(&self.channel);
        let report = Report::new(device)?;
        let args = FanInArgs {
            channel: self.channel.device_handle(),
            report: report.address(),
            offset: self.offset,
            operand: self.operand,
            count: self.count,
        };
        Launched::start(
            &FAN_IN,
            device,
            block(1),
            args,
            Kept::new([&self.channel], self.clone()).report(&report),
        )
    }
}
