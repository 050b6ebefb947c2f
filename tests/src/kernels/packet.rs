// SPDX-License-Identifier: MIT
//! `packet_ping_pong.cpp`.

use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_port::{Buffer, PortChannel};

use super::{Kept, Launched, Report, address, block, device_of, fits, kernel};

kernel!(KERNEL = conformance_packet_ping_pong(Args) in "packet_ping_pong.cpp");

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    channel: PortChannelDeviceHandle,
    buffer: u64,
    outgoing: u64,
    incoming: u64,
    report: u64,
    elements: u64,
    iterations: u64,
    first_flag: u32,
    rank: u32,
    check: u32,
    reserved: u32,
}

/// Two ranks take turns in sending LL packets: an iteration is half a round trip.
#[derive(Clone)]
pub struct PacketPingPong {
    /// From `outgoing` here to `incoming` there.
    pub channel: PortChannel,
    /// The values: `elements` times 4 bytes.
    pub buffer: Buffer,
    /// Packets to send: `elements` times 8 bytes.
    pub outgoing: Buffer,
    /// Packets that arrive: `elements` times 8 bytes.
    pub incoming: Buffer,
    /// 32-bit words that travel, an even number.
    pub elements: u64,
    /// Half round trips.
    pub iterations: u64,
    /// The flag of the first iteration: above all flags that the buffers have seen.
    pub first_flag: u32,
    /// 0 or 1.
    pub rank: usize,
    /// Whether the values are written and checked.
    pub check: bool,
}

impl PacketPingPong {
    /// Starts the kernel in one block.
    pub fn launch(&self, threads: u32) -> anyhow::Result<Launched> {
        fits(&self.buffer, self.elements * 4)?;
        fits(&self.outgoing, self.elements * 8)?;
        fits(&self.incoming, self.elements * 8)?;
        let device = device_of(&self.channel);
        let report = Report::new(device)?;
        let args = Args {
            channel: self.channel.device_handle(),
            buffer: address(&self.buffer),
            outgoing: address(&self.outgoing),
            incoming: address(&self.incoming),
            report: report.address(),
            elements: self.elements,
            iterations: self.iterations,
            first_flag: self.first_flag,
            rank: self.rank as u32,
            check: self.check.into(),
            reserved: 0,
        };
        Launched::start(
            &KERNEL,
            device,
            block(threads),
            args,
            Kept::new([&self.channel], self.clone()).report(&report),
        )
    }
}
