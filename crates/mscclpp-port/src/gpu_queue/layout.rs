// SPDX-License-Identifier: MIT
//! The memory of one queue.

use std::mem::offset_of;

use mlx5_queue::{BLOCK_BYTES, COMPLETION_BYTES, Completion, DoorbellRecord, RingSize};
use mscclpp_device::abi::{AbiHeader, QueueDeviceHandle, QueueForm, QueueState};

use super::config::QueuePlacement;
use super::fault;
use super::provider::{QueueFault, QueuePlan};
use crate::buffer::Buffer;
use crate::counters::QueueCounters;
use crate::error::Result;

/// Bytes of a request at most: its length has 31 bits, and one more says that data is inline.
const MAX_MESSAGE: u64 = 1 << 30;

/// What shares no line with anything else gets so many bytes.
pub(super) const LINE: u64 = 128;

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

/// Places one behind the other, each at a multiple of so many bytes and alone there.
struct Places {
    end: u64,
    granule: u64,
}

impl Places {
    fn new(granule: u64) -> Self {
        Self { end: 0, granule }
    }

    fn take(&mut self, bytes: u64) -> u64 {
        let start = self.end;
        self.end += bytes.next_multiple_of(self.granule);
        start
    }
}

impl QueueLayout {
    /// Zeroed, but for the completion ring, whose entries count as not written. What the NIC is told
    /// of begins at multiples of `granule` bytes: [`LINE`] at least.
    pub(super) fn new(plan: QueuePlan, granule: u64) -> Result<Self> {
        // Errors complete unsignalled requests too, so every request needs an entry.
        let (blocks, entries) = (plan.blocks, plan.blocks);
        let mut places = Places::new(granule);
        let ring = places.take(u64::from(blocks) * BLOCK_BYTES as u64);
        // With room for a doorbell record of the completion ring behind it, if somebody wants one.
        let completions = places.take(u64::from(entries + 1) * COMPLETION_BYTES as u64);
        let record = places.take(8);
        // A GPU's memory may begin at a smaller multiple.
        let bytes = places.end + granule;
        let rings = match plan.placement {
            QueuePlacement::Device => Buffer::new(plan.device, bytes),
            QueuePlacement::Host => Buffer::pinned(plan.device, bytes),
        }?;
        let first = rings.address().next_multiple_of(granule) - rings.address();
        let (ring, completions, record) = (first + ring, first + completions, first + record);
        let mut places = Places::new(LINE);
        let state = places.take(size_of::<QueueState>() as u64);
        let scratch = places.take(8);
        let ready = places.take(u64::from(blocks) * 4);
        let words = Buffer::new(plan.device, places.end)?;

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

    fn state_word(&self, offset: usize) -> u64 {
        // The state lies in the buffer, aligned.
        (self.words)
            .load_u64(self.state + offset as u64)
            .unwrap_or(0)
    }

    /// How far kernels have come with the queue of this number.
    pub(super) fn counters(&self, number: u32) -> QueueCounters {
        // In this order: none is complete before it is posted.
        let completed = self.state_word(offset_of!(QueueState, completed));
        let posted = self.state_word(offset_of!(QueueState, reserved));
        QueueCounters {
            number,
            slots: self.blocks,
            posted,
            completed,
        }
    }

    /// What kernels and completions tell of a queue in error.
    pub(super) fn told(&self) -> Option<QueueFault> {
        // In this order, because kernels may be consuming: entries are counted on from what was
        // complete before the first of them.
        let completed = self.state_word(offset_of!(QueueState, completed));
        let consumed = self.state_word(offset_of!(QueueState, consumed));
        let read = |slot: u32| {
            let mut entry = [0; COMPLETION_BYTES];
            let at = self.completions + u64::from(slot) * COMPLETION_BYTES as u64;
            // A queue in error has written its completions, so none is torn.
            let _ = self.rings.read(at, &mut entry);
            entry
        };
        let entries = RingSize::new(self.entries).ok()?;
        fault::of_completions(entries, consumed, completed, read).or_else(|| {
            let error = self.state_word(offset_of!(QueueState, error));
            fault::of_state(error, self.state_word(offset_of!(QueueState, error_index)))
        })
    }

    /// Whether a kernel found two threads where one had been promised; the NIC knows nothing of it.
    pub(super) fn broken_promise(&self) -> Option<QueueFault> {
        let error = fault::of_state(self.state_word(offset_of!(QueueState, error)), 0);
        error.filter(|fault| *fault == QueueFault::NotExclusive)
    }

    /// What kernels need of a queue with this number, doorbell and key of the scratch word.
    pub(super) fn handle(&self, plan: QueuePlan, queue: Shown) -> QueueDeviceHandle {
        let shared = plan.form == QueueForm::Shared;
        let (rings, words) = (self.rings.address(), self.words.address());
        QueueDeviceHandle {
            abi: AbiHeader::of::<QueueDeviceHandle>(),
            send_ring: rings + self.ring,
            record: rings + self.record + DoorbellRecord::SEND_OFFSET as u64,
            doorbell: queue.doorbell,
            completions: rings + self.completions,
            state: words + self.state,
            ready: if shared { words + self.ready } else { 0 },
            scratch: words + self.scratch,
            scratch_key: queue.scratch_key.to_be(),
            number: queue.number,
            blocks: self.blocks,
            completion_entries: self.entries,
            form: plan.form as u32,
            signal_mode: plan.signal_mode as u32,
            record_in_host_memory: (plan.placement == QueuePlacement::Host).into(),
            // The n-th completion of a shared queue is that of the n-th request.
            signal_every: shared.into(),
            max_message: queue.max_message.min(MAX_MESSAGE),
        }
    }
}

/// What a queue has beside its memory.
pub(super) struct Shown {
    pub(super) number: u32,
    pub(super) doorbell: u64,
    pub(super) scratch_key: u32,
    /// Bytes of its longest request.
    pub(super) max_message: u64,
}
