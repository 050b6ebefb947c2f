// SPDX-License-Identifier: MIT
//! What a queue that kernels post to has counted.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::ensure;
use mscclpp_device::abi::{Backend, QueueState};
use mscclpp_port::{BasePortChannel, Device, DeviceKind};

/// Requests of a channel's queue. Channels of one connection share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posts {
    /// The queue's number.
    pub queue: u32,
    /// Requests that kernels posted.
    pub posted: u64,
    /// Requests that kernels know to be complete.
    pub completed: u64,
}

impl Posts {
    /// Of a channel now.
    pub fn of(channel: &BasePortChannel) -> anyhow::Result<Self> {
        let handle = channel.device_handle();
        ensure!(
            handle.backend == Backend::Queue as u32,
            "a proxy carries out the channel's calls"
        );
        let device = channel.connection().local_device();
        let queue = handle.queue.queue;
        let word = |offset: usize| word_at(device, queue.state + offset as u64);
        Ok(Self {
            queue: queue.number,
            posted: word(offset_of!(QueueState, reserved))?,
            completed: word(offset_of!(QueueState, completed))?,
        })
    }
}

/// A word of a queue's state, which lives as long as the queue's channel, in the device's memory.
fn word_at(device: Device, address: u64) -> anyhow::Result<u64> {
    match device.kind() {
        DeviceKind::Cpu => {
            // SAFETY: such a word; it is aligned, and everybody uses atomics.
            let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
            Ok(word.load(Ordering::Acquire))
        }
        #[cfg(feature = "cuda")]
        DeviceKind::Gpu => super::cuda::word_at(device, address),
        other => anyhow::bail!("queues of {other:?} cannot be read here"),
    }
}
