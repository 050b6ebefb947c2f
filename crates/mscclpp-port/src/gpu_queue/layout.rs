// SPDX-License-Identifier: MIT
//! The memory of one queue.

use mlx5_queue::{BLOCK_BYTES, COMPLETION_BYTES, Completion};
use mscclpp_device::abi::QueueState;

use super::config::QueuePlacement;
use super::provider::QueuePlan;
use crate::buffer::Buffer;
use crate::error::Result;

/// What shares no line with anything else gets so many bytes.
const LINE: u64 = 128;

/// What kernels and the NIC share, each at its offset of `rings`, and what only kernels use, at its
/// offset of `words`.
pub(super) struct QueueLayout {
    /// Where the plan wants it.
    pub(super) rings: Buffer,
    pub(super) blocks: u32,
    pub(super) entries: u32,
    pub(super) ring: u64,
    pub(super) completions: u64,
    pub(super) record: u64,
    /// In the device's memory. (The NIC stores results of atomics there, which nobody reads.)
    pub(super) words: Buffer,
    pub(super) state: u64,
    pub(super) scratch: u64,
    pub(super) ready: u64,
}

/// Places one behind the other, none of which shares a line.
#[derive(Default)]
struct Places(u64);

impl Places {
    fn take(&mut self, bytes: u64) -> u64 {
        let start = self.0;
        self.0 += bytes.next_multiple_of(LINE);
        start
    }
}

impl QueueLayout {
    /// Zeroed, but for the completion ring, whose entries count as not written.
    pub(super) fn new(plan: QueuePlan) -> Result<Self> {
        // Errors complete unsignalled requests too, so every request needs an entry.
        let (blocks, entries) = (plan.blocks, plan.blocks);
        let mut places = Places::default();
        let ring = places.take(u64::from(blocks) * BLOCK_BYTES as u64);
        let completions = places.take(u64::from(entries) * COMPLETION_BYTES as u64);
        let record = places.take(8);
        let rings = match plan.placement {
            QueuePlacement::Device => Buffer::new(plan.device, places.0),
            QueuePlacement::Host => Buffer::pinned(plan.device, places.0),
        }?;
        let mut places = Places::default();
        let state = places.take(size_of::<QueueState>() as u64);
        let scratch = places.take(8);
        let ready = places.take(u64::from(blocks) * 4);
        let words = Buffer::new(plan.device, places.0)?;

        let mut unwritten = [0; COMPLETION_BYTES];
        unwritten[COMPLETION_BYTES - 1] = Completion::UNWRITTEN;
        rings.write(completions, &unwritten.repeat(entries as usize))?;
        Ok(Self {
            rings,
            blocks,
            entries,
            ring,
            completions,
            record,
            words,
            state,
            scratch,
            ready,
        })
    }
}
