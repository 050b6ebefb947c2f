// SPDX-License-Identifier: MIT
use mlx5_queue::{COMPLETION_BYTES, Completion, Entry, QueueIndex, QueueNumber, RingSize};

use super::access::{Accesses, Place, Then};
use crate::memory::Bytes;

/// A completion queue: a ring that the NIC alone writes. Overrun is ignored,
/// as GPUNetIO asks of its queues (`oi` = 1): the ring's size and the send
/// queue's window keep entries from being overwritten.
#[derive(Debug)]
pub(crate) struct CompletionRing {
    pub(crate) base: Place,
    pub(crate) ring: RingSize,
    pub(crate) produced: QueueIndex,
}

impl CompletionRing {
    pub(crate) fn push(
        &mut self,
        accesses: &mut Accesses,
        queue: QueueNumber,
        wqe_counter: u16,
        entry: Entry,
    ) {
        let owner = self.produced.owner(self.ring);
        let completion = Completion {
            queue,
            wqe_counter,
            owner,
            entry,
        };
        let slot = u64::from(self.produced.slot(self.ring));
        let place = self.base.offset(slot * COMPLETION_BYTES as u64);
        accesses.publish(
            None,
            place,
            Bytes::from_slice(&completion.encode()),
            Then::Nothing,
        );
        self.produced = self.produced.advance(1);
    }
}
