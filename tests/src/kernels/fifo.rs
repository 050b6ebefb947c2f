// SPDX-License-Identifier: MIT
//! The FIFO part of `bench.cpp`.

use std::sync::Arc;

use mscclpp_device::abi::FifoDeviceHandle;
use mscclpp_port::{Device, Proxy};

use super::{Kept, Launched, block, kernel};

kernel!(KERNEL = conformance_fifo_push(Args) in "bench.cpp");

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    fifo: FifoDeviceHandle,
    count: u64,
}

/// Each thread pushes triggers, and waits until its last one was handled.
#[derive(Clone)]
pub struct FifoPush {
    /// Handles the triggers.
    pub proxy: Arc<Proxy>,
    /// Triggers of a thread.
    pub count: u64,
    /// What pushes them.
    pub device: Device,
}

impl FifoPush {
    /// Starts the kernel in one block.
    pub fn launch(&self, threads: u32) -> anyhow::Result<Launched> {
        let args = Args {
            fifo: self.proxy.fifo(),
            count: self.count,
        };
        let kept = Kept::new([], self.clone());
        Launched::start(&KERNEL, self.device, block(threads), args, kept)
    }
}
