// SPDX-License-Identifier: MIT
//! What a queue that kernels post to has counted.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use mscclpp_device::abi::{Backend, QueueState};
use mscclpp_port::BasePortChannel;

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
    /// Of a channel now; none if a proxy carries out its calls.
    pub fn of(channel: &BasePortChannel) -> Option<Self> {
        let handle = channel.device_handle();
        if handle.backend != Backend::Queue as u32 {
            return None;
        }
        let queue = handle.queue.queue;
        let word = |offset: usize| {
            let address = queue.state + offset as u64;
            // SAFETY: the handle names the state of a queue that lives as long as the channel, in
            // memory of the CPU device; its words are aligned, and everybody uses atomics.
            let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
            word.load(Ordering::Acquire)
        };
        Some(Self {
            queue: queue.number,
            posted: word(offset_of!(QueueState, reserved)),
            completed: word(offset_of!(QueueState, completed)),
        })
    }
}
