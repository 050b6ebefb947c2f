// SPDX-License-Identifier: MIT
//! `compat/port_channel_user.cu`, which is written as users of MSCCL++ write, for GPUs alone.

use mscclpp_device::abi::{BasePortChannelDeviceHandle, PortChannelDeviceHandle};
use mscclpp_device::executor::LaunchDims;
use mscclpp_port::{Buffer, MemoryId, PortChannel};

use super::kernel::{Kernel, Source};
use super::{Kept, Launched, address, device_of, fits};

pub(super) static KERNEL: Kernel = Kernel {
    name: "port_channel_user",
    host: None,
    source: Source {
        name: "port_channel_user.cu",
        text: include_str!("../../compat/port_channel_user.cu"),
    },
};

/// Twin of the C++ struct.
#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    channel: PortChannelDeviceHandle,
    base: BasePortChannelDeviceHandle,
    outgoing: u64,
    incoming: u64,
    failed: u64,
    dst: u32,
    src: u32,
    rank: u32,
    has_fifo: u32,
    accumulates: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<Args>() == 648);

/// Every name of MSCCL++'s device side, between two ranks.
#[derive(Clone)]
pub struct User {
    /// From `outgoing` here to `incoming` there.
    pub channel: PortChannel,
    /// Ids of the two memories.
    pub memories: [MemoryId; 2],
    /// At least [`User::BYTES`].
    pub outgoing: Buffer,
    /// The same.
    pub incoming: Buffer,
    /// 0 or 1.
    pub rank: usize,
    /// Whether a proxy's FIFO is behind the channel.
    pub has_fifo: bool,
    /// Whether peers can add to memory.
    pub accumulates: bool,
}

impl User {
    /// What the kernel uses of a buffer.
    pub const BYTES: u64 = 2048;

    /// Starts the kernel. The word is 0 after it, or tells the first step that went wrong.
    pub fn launch(&self) -> anyhow::Result<(Launched, Buffer)> {
        const DIMS: LaunchDims = LaunchDims { grid: 2, block: 32 };
        fits(&self.outgoing, Self::BYTES)?;
        fits(&self.incoming, Self::BYTES)?;
        let device = device_of(&self.channel);
        let failed = Buffer::new(device, 8)?;
        let args = Args {
            channel: self.channel.device_handle(),
            base: self.channel.base().device_handle(),
            outgoing: address(&self.outgoing),
            incoming: address(&self.incoming),
            failed: address(&failed),
            dst: self.memories[0].into(),
            src: self.memories[1].into(),
            rank: self.rank as u32,
            has_fifo: self.has_fifo.into(),
            accumulates: self.accumulates.into(),
            reserved: 0,
        };
        let kept = Kept::new([&self.channel], (self.clone(), failed.clone()));
        let launched = Launched::start(&KERNEL, device, DIMS, args, kept)?;
        Ok((launched, failed))
    }
}
