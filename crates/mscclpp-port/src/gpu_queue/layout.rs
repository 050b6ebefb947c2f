// SPDX-License-Identifier: MIT
//! The memory of one queue, in one allocation.

use mlx5_queue::{BLOCK_BYTES, COMPLETION_BYTES, Completion};
use mscclpp_device::abi::QueueState;

use super::provider::QueuePlan;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::Result;

/// What shares no line with anything else gets so many bytes.
const LINE: u64 = 128;

/// Rings, record and words of a queue, each at its offset.
pub(super) struct QueueLayout {
    pub(super) buffer: Buffer,
    pub(super) blocks: u32,
    pub(super) entries: u32,
    pub(super) ring: u64,
    pub(super) completions: u64,
    pub(super) record: u64,
    pub(super) state: u64,
    pub(super) scratch: u64,
    pub(super) ready: u64,
}

impl QueueLayout {
    /// Zeroed, but for the completion ring, whose entries count as not written.
    pub(super) fn new(plan: QueuePlan) -> Result<Self> {
        // Errors complete unsignalled requests too, so every request needs an entry.
        let (blocks, entries) = (plan.blocks, plan.blocks);
        let mut end = 0;
        let mut take = |bytes: u64| {
            let start = end;
            end += bytes.next_multiple_of(LINE);
            start
        };
        let ring = take(u64::from(blocks) * BLOCK_BYTES as u64);
        let completions = take(u64::from(entries) * COMPLETION_BYTES as u64);
        let record = take(8);
        let state = take(size_of::<QueueState>() as u64);
        let scratch = take(8);
        let ready = take(u64::from(blocks) * 4);
        let buffer = Buffer::new(Device::cpu(), end)?;
        for entry in 0..u64::from(entries) {
            let last = completions + (entry + 1) * COMPLETION_BYTES as u64 - 1;
            buffer.write(last, &[Completion::UNWRITTEN])?;
        }
        Ok(Self {
            buffer,
            blocks,
            entries,
            ring,
            completions,
            record,
            state,
            scratch,
            ready,
        })
    }

    /// The address of an offset.
    pub(super) fn at(&self, offset: u64) -> u64 {
        self.buffer.as_ptr().expose_provenance() as u64 + offset
    }
}
