// SPDX-License-Identifier: MIT
//! The kernels of this test, compiled when first asked for.

use std::time::Duration;

use mscclpp_device::abi::{FifoDeviceHandle, PortChannelDeviceHandle};
use mscclpp_device::executor::{HostKernel, LaunchDims};

use crate::compiled::Kernels;
pub(crate) use crate::compiled::{Calling, Words};

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

static KERNELS: Kernels = Kernels::new("tests/kernels/kernels.cpp", &[], PATIENCE);

/// A kernel by name.
pub(crate) fn kernel(name: &'static str) -> HostKernel {
    KERNELS.get(name)
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PushArgs {
    pub(crate) fifo: FifoDeviceHandle,
    pub(crate) count: u64,
    pub(crate) pushed: u64,
    pub(crate) status: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SyncArgs {
    pub(crate) fifo: FifoDeviceHandle,
    pub(crate) count: u64,
    pub(crate) pause: u64,
    pub(crate) times: u64,
}

#[derive(Clone, Copy)]
#[repr(u64)]
pub(crate) enum Call {
    PutWithSignal,
    Flush,
    Wait,
    PutForever,
    PutWithSignalAndFlush,
    Accumulate,
    PutUnknownMemory,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CallArgs {
    pub(crate) channel: PortChannelDeviceHandle,
    pub(crate) call: Call,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) status: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PingPongArgs {
    pub(crate) channel: PortChannelDeviceHandle,
    pub(crate) bytes: u64,
    pub(crate) iterations: u64,
    pub(crate) rank: u64,
    pub(crate) flush: u64,
    pub(crate) status: u64,
    pub(crate) times: u64,
}

/// Threads in one block.
pub(crate) fn threads(block: u32) -> LaunchDims {
    LaunchDims { grid: 1, block }
}

/// Starts a call on some threads of a channel.
pub(crate) fn call(
    channel: PortChannelDeviceHandle,
    call: Call,
    (offset, size): (u64, u64),
    block: u32,
) -> Calling {
    let status = Words::new(block.into());
    let args = CallArgs {
        channel,
        call,
        offset,
        size,
        status: status.address(),
    };
    KERNELS.start("port_call", block, args, status)
}
