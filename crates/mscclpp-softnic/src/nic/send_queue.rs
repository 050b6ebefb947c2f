// SPDX-License-Identifier: MIT
//! The send queue: announced slots are fetched, checked and taken.

use std::collections::VecDeque;

use mlx5_queue::{
    BLOCK_BYTES, Control, Error as Layout, QueueIndex, QueueNumber, RingSize, SEGMENT_BYTES,
    WorkRequest,
};

use super::access::{Place, QueueLife, Then};
use super::common::Common;
use super::request::Request;
use super::trigger::Audit;
use crate::memory::Bytes;
use crate::observer::Seen;
use crate::violation::ViolationKind;

/// Blocks fetched at a time.
const FETCH_BLOCKS: u64 = 16;
/// Requests taken ahead of their execution.
const READY: usize = 64;

#[derive(Debug)]
pub(crate) struct SendQueue {
    base: Place,
    pub(super) ring: RingSize,
    pub(super) record: Place,
    pub(crate) completions: u32,
    /// One past the last block that a trigger has announced.
    pub(crate) announced: QueueIndex,
    /// One past the last block that a fetch has been started for.
    fetched: QueueIndex,
    /// One past the last block that has been taken.
    taken: QueueIndex,
    /// One past the last block whose request is finished.
    pub(crate) finished: QueueIndex,
    /// One past the last block of which a completion has told the poster.
    pub(crate) reported: QueueIndex,
    pub(crate) ready: VecDeque<Request>,
    fetching: bool,
    /// A bad request has been taken: nothing after it is looked at until the
    /// queue is in error.
    halted: bool,
    /// Blocks that have been fetched and not taken.
    rest: Bytes,
    first_copy: Option<Bytes>,
    pub(super) audit: Audit,
}

impl SendQueue {
    pub(crate) fn new(base: Place, ring: RingSize, record: Place, completions: u32) -> Self {
        Self {
            base,
            ring,
            record,
            completions,
            announced: QueueIndex::ZERO,
            fetched: QueueIndex::ZERO,
            taken: QueueIndex::ZERO,
            finished: QueueIndex::ZERO,
            reported: QueueIndex::ZERO,
            ready: VecDeque::new(),
            fetching: false,
            halted: false,
            rest: Bytes::new(),
            first_copy: None,
            audit: Audit::default(),
        }
    }

    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.base, self.ring, self.record, self.completions);
    }

    fn place(&self, index: QueueIndex) -> Place {
        self.base
            .offset(u64::from(index.slot(self.ring)) * BLOCK_BYTES as u64)
    }

    /// Starts to fetch announced blocks, if there is something to do with them.
    pub(crate) fn fetch(&mut self, c: &mut Common, queue: QueueLife) {
        let waiting = self.announced.distance_from(self.fetched);
        if self.fetching || self.halted || waiting == 0 || self.ready.len() >= READY {
            return;
        }
        let to_end = u64::from(self.ring.entries() - self.fetched.slot(self.ring));
        let blocks = waiting.min(FETCH_BLOCKS).min(to_end);
        self.fetching = true;
        let then = Then::Fetched {
            queue,
            first: self.fetched,
        };
        c.accesses.read(
            self.place(self.fetched),
            blocks as usize * BLOCK_BYTES,
            then,
        );
        self.fetched = self.fetched.advance(blocks);
    }

    /// Blocks of the fetch that began at `first`.
    pub(super) fn under_way(&self, first: QueueIndex) -> u64 {
        self.fetched.distance_from(first)
    }

    /// Blocks from `first` have been read: takes the requests in them.
    /// `flushing` if the queue is in error: then what is wrong with them is of
    /// no interest.
    pub(crate) fn on_fetched(
        &mut self,
        c: &mut Common,
        queue: QueueLife,
        first: QueueIndex,
        bytes: Bytes,
        flushing: bool,
    ) {
        let mut torn = None;
        if c.config.checks.fetch_twice && !flushing {
            let Some(copy) = self.first_copy.take() else {
                let then = Then::Fetched { queue, first };
                c.accesses.read(self.place(first), bytes.len(), then);
                self.first_copy = Some(bytes);
                return;
            };
            torn = copy
                .chunks(BLOCK_BYTES)
                .zip(bytes.chunks(BLOCK_BYTES))
                .position(|(a, b)| a != b)
                .map(|block| first.advance(block as u64));
        }
        self.fetching = false;
        if self.rest.is_empty() {
            self.rest = bytes;
        } else {
            self.rest.extend_from_slice(&bytes);
        }
        self.take_all(c, queue.queue, torn, flushing);
    }

    /// Takes the requests in the blocks that are here.
    pub(super) fn take_all(
        &mut self,
        c: &mut Common,
        queue: QueueNumber,
        torn: Option<QueueIndex>,
        flushing: bool,
    ) {
        let blocks = std::mem::take(&mut self.rest);
        let before = self.taken;
        let mut at = 0;
        while !self.halted && at < blocks.len() {
            let Some(request) = self.take(c, queue, &blocks[at..], torn, flushing) else {
                break;
            };
            at += request.blocks as usize * BLOCK_BYTES;
            c.watched.tell(|| Seen::Fetched {
                queue,
                index: request.index.low16(),
                opcode: request.opcode,
            });
            *c.counters.requests.entry(request.opcode).or_insert(0) += 1;
            self.taken = request.end();
            self.ready.push_back(request);
        }
        if c.config.checks.clear_slots && !flushing {
            self.clear(c, before);
        }
        if at < blocks.len() {
            self.rest = Bytes::from_slice(&blocks[at..]);
        }
    }

    /// The request at the start of `blocks`, or `None` if its end has not been
    /// fetched yet.
    fn take(
        &mut self,
        c: &mut Common,
        queue: QueueNumber,
        blocks: &[u8],
        torn: Option<QueueIndex>,
        flushing: bool,
    ) -> Option<Request> {
        let index = self.taken;
        let opcode = blocks.get(3).copied().unwrap_or(0);
        let wrong = |this: &mut Self, c: &mut Common, kind| {
            if !flushing {
                c.violation(queue, index, kind);
                this.halted = true;
            }
            Some(Request::bad(index, 1, opcode))
        };
        let Some(first) = blocks.first_chunk::<SEGMENT_BYTES>() else {
            // Fetches are of whole blocks.
            let reason = Layout::Truncated {
                what: "block",
                need: BLOCK_BYTES,
                have: blocks.len(),
            };
            return wrong(self, c, ViolationKind::Malformed { reason });
        };
        let control = match Control::decode(first) {
            Ok(control) => control,
            Err(reason) => return wrong(self, c, ViolationKind::Malformed { reason }),
        };
        if control.index != index.low16() {
            return wrong(
                self,
                c,
                ViolationKind::StaleSlot {
                    found: control.index,
                },
            );
        }
        if control.queue != queue {
            return wrong(
                self,
                c,
                ViolationKind::ForeignSlot {
                    found: control.queue,
                },
            );
        }
        let count = control.blocks();
        let announced = self.announced.distance_from(index);
        if count > announced {
            let need = count as usize * BLOCK_BYTES;
            let have = announced as usize * BLOCK_BYTES;
            let reason = Layout::Truncated {
                what: "announced request",
                need,
                have,
            };
            return wrong(self, c, ViolationKind::Malformed { reason });
        }
        let bytes = blocks.get(..count as usize * BLOCK_BYTES)?;
        if torn.is_some_and(|torn| torn.distance_from(index) < count) {
            return wrong(self, c, ViolationKind::TornSlot);
        }
        let request = match WorkRequest::decode(bytes) {
            Ok(request) => request,
            Err(reason) => return wrong(self, c, ViolationKind::Malformed { reason }),
        };
        match Request::take(&request, index, count) {
            Some(request) => Some(request),
            None => {
                let opcode = control.opcode;
                wrong(self, c, ViolationKind::Unsupported { opcode })
            }
        }
    }

    /// Clears the slots taken since `from`.
    fn clear(&self, c: &mut Common, from: QueueIndex) {
        for step in 0..self.taken.distance_from(from) {
            let zeroes = Bytes::from_elem(0, BLOCK_BYTES);
            c.accesses
                .write(None, self.place(from.advance(step)), zeroes, Then::Nothing);
        }
    }

    /// The queue is in error: takes what is here, to be flushed.
    pub(super) fn take_for_flush(&mut self, c: &mut Common, queue: QueueNumber) {
        self.halted = false;
        self.take_all(c, queue, None, true);
    }
}
