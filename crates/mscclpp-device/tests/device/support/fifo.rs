// SPDX-License-Identifier: MIT
//! The host side of a FIFO, as the proxy has it: one consumer.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_device::abi::{AbiHeader, FifoDeviceHandle, ProxyTrigger};

use super::Cells;

#[derive(Clone, Copy)]
pub(crate) struct TestFifo {
    slots: usize,
    pub(crate) triggers: Cells,
    pub(crate) head: Cells,
    pub(crate) tail: Cells,
    pub(crate) tail_cache: Cells,
    pub(crate) status: Cells,
}

impl TestFifo {
    pub(crate) fn new(slots: usize) -> Self {
        assert!(slots.is_power_of_two());
        Self {
            slots,
            triggers: Cells::new(2 * slots),
            head: Cells::new(1),
            tail: Cells::new(1),
            tail_cache: Cells::new(1),
            status: Cells::new(1),
        }
    }

    pub(crate) fn handle(&self) -> FifoDeviceHandle {
        FifoDeviceHandle {
            abi: AbiHeader::of::<FifoDeviceHandle>(),
            triggers: self.triggers.address(),
            head: self.head.address(),
            tail: self.tail.address(),
            tail_cache: self.tail_cache.address(),
            size: self.slots as i32,
            reserved: 0,
            size_mask: self.slots as u64 - 1,
            size_shift: self.slots.trailing_zeros().into(),
            status: self.status.address(),
        }
    }

    /// The next trigger, commit bit cleared, if it has been committed.
    pub(crate) fn poll(&self) -> Option<ProxyTrigger> {
        let position = self.tail.get(0);
        let slot = position as usize % self.slots;
        let snd = self.triggers.get(2 * slot + 1);
        let commit = ProxyTrigger::commit_bit(position, self.slots.trailing_zeros());
        if snd & ProxyTrigger::COMMIT_BIT != commit {
            return None;
        }
        let fst = self.triggers.get(2 * slot);
        let snd = snd & !ProxyTrigger::COMMIT_BIT;
        Some(ProxyTrigger { fst, snd })
    }

    /// Frees the slot of the trigger that was polled.
    pub(crate) fn pop(&self) {
        self.tail.add(0, 1);
    }

    /// Consumes until `stop` is set and nothing is left, or for `limit`.
    pub(crate) fn consume(
        &self,
        stop: &AtomicBool,
        limit: Duration,
        mut handle: impl FnMut(u64, ProxyTrigger),
    ) {
        let started = Instant::now();
        while started.elapsed() < limit {
            let stopping = stop.load(SeqCst);
            if let Some(trigger) = self.poll() {
                handle(self.tail.get(0), trigger);
                self.pop();
            } else if stopping {
                return;
            } else {
                thread::yield_now();
            }
        }
    }
}
