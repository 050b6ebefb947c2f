// SPDX-License-Identifier: MIT
//! Accesses to memory: what has been asked for, and what goes on when it is
//! done.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use mlx5_queue::{QueueIndex, QueueNumber};

use super::packet::AtomicOperation;
use crate::memory::{Access, AccessId, Bytes};
use crate::time::Time;

/// One of the memories that a device reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceId(pub(crate) u16);

impl SpaceId {
    /// The memory of this process, always the first.
    pub(crate) const HOST: Self = Self(0);
}

/// A place in one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) space: SpaceId,
    pub(crate) address: u64,
}

impl Place {
    pub(crate) fn offset(self, by: u64) -> Self {
        Self {
            address: self.address.wrapping_add(by),
            ..self
        }
    }
}

/// A queue pair in one of its lives: what it had asked for before a reset is
/// nothing to it afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueLife {
    pub(crate) queue: QueueNumber,
    pub(crate) life: u32,
}

/// Why a record is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordReason {
    /// A doorbell, when requests up to an index were announced.
    Doorbell {
        value: u16,
        /// The queue started from the doorbell itself.
        at_once: bool,
        announced: QueueIndex,
    },
    Poll,
    Audit,
}

/// What goes on when an access is done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    /// A completion has been written.
    Nothing,
    /// Blocks of a send queue have been read.
    Fetched { queue: QueueLife, first: QueueIndex },
    /// A doorbell record has been read.
    Record {
        queue: QueueLife,
        reason: RecordReason,
    },
    /// A record has been read for its receive word.
    ReceiveRecord { queue: QueueLife },
    /// A receive request has been read for responder operation `operation`.
    ReceiveEntry { queue: QueueLife, operation: u64 },
    /// A piece of a write has landed, for the responder.
    Landed { queue: QueueLife, operation: u64 },
    /// The word of an atomic has been read.
    Loaded { queue: QueueLife, operation: u64 },
    /// The word of an atomic has been stored; its old value.
    Stored {
        queue: QueueLife,
        operation: u64,
        old: u64,
    },
    /// Bytes of an answer to a read have been read, from `offset`.
    AnswerRead {
        queue: QueueLife,
        operation: u64,
        offset: u64,
    },
    /// Bytes for the peer have been read: staged packet `stage`, from
    /// `offset`.
    Staged {
        queue: QueueLife,
        stage: u64,
        offset: u32,
    },
    /// A piece of a result has landed, for the requester's request at this
    /// packet number.
    Result { queue: QueueLife, packet: u64 },
}

#[derive(Debug)]
enum Pending {
    Free,
    Plain(Then),
    /// A copy between memories, whose first half is under way.
    Relay {
        to: Place,
        then: Then,
    },
}

/// What the shell has to do.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) id: AccessId,
    pub(crate) space: SpaceId,
    pub(crate) access: Access,
}

/// An access that is held back.
#[derive(Debug)]
struct Held {
    due: Time,
    order: u64,
    start: Start,
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.due, self.order).cmp(&(other.due, other.order))
    }
}

/// The accesses of a device.
#[derive(Debug, Default)]
pub(crate) struct Accesses {
    ready: VecDeque<Start>,
    held: BinaryHeap<Reverse<Held>>,
    order: u64,
    pending: Vec<Pending>,
    free: Vec<u32>,
    /// The half of time that is now; bit 0 of an id says in which it began.
    half: u64,
    under_way: [u64; 2],
    /// Of each memory, whether it keeps the order of accesses.
    in_order: Vec<bool>,
}

impl Accesses {
    /// Takes note of the next memory, and whether it keeps the order of
    /// accesses.
    pub(crate) fn add_space(&mut self, in_order: bool) {
        self.in_order.push(in_order);
    }

    pub(super) fn keeps_order(&self, space: SpaceId) -> bool {
        self.in_order.get(space.0 as usize) == Some(&true)
    }

    fn id(&mut self, pending: Pending, half: u64) -> AccessId {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.pending[slot as usize] = pending;
                slot
            }
            None => {
                self.pending.push(pending);
                self.pending.len() as u32 - 1
            }
        };
        self.under_way[half as usize] += 1;
        AccessId(u64::from(slot) << 1 | half)
    }

    fn start(&mut self, due: Option<Time>, space: SpaceId, access: Access, pending: Pending) {
        let id = self.id(pending, self.half);
        let start = Start { id, space, access };
        match due {
            None => self.ready.push_back(start),
            Some(due) => {
                self.order += 1;
                self.held.push(Reverse(Held {
                    due,
                    order: self.order,
                    start,
                }));
            }
        }
    }

    pub(crate) fn read(&mut self, from: Place, length: usize, then: Then) {
        let bytes = Bytes::from_elem(0, length);
        let access = Access::Read {
            address: from.address,
            bytes,
        };
        self.start(None, from.space, access, Pending::Plain(then));
    }

    /// Stores `bytes`, at `due` or at once.
    pub(crate) fn write(&mut self, due: Option<Time>, to: Place, bytes: Bytes, then: Then) {
        let access = Access::Write {
            address: to.address,
            bytes,
        };
        self.start(due, to.space, access, Pending::Plain(then));
    }

    /// Stores `bytes`, their last word last, at `due` or at once.
    pub(crate) fn publish(&mut self, due: Option<Time>, to: Place, bytes: Bytes, then: Then) {
        let access = Access::Publish {
            address: to.address,
            bytes,
        };
        self.start(due, to.space, access, Pending::Plain(then));
    }

    /// Copies, at `due` or at once.
    pub(crate) fn copy(
        &mut self,
        due: Option<Time>,
        from: Place,
        to: Place,
        length: u64,
        then: Then,
    ) {
        if from.space == to.space {
            let access = Access::Copy {
                from: from.address,
                to: to.address,
                length,
            };
            self.start(due, to.space, access, Pending::Plain(then));
        } else {
            let bytes = Bytes::from_elem(0, length as usize);
            let access = Access::Read {
                address: from.address,
                bytes,
            };
            self.start(due, from.space, access, Pending::Relay { to, then });
        }
    }

    /// Starts what is due, and says when the next is.
    pub(crate) fn release(&mut self, now: Time) -> Option<Time> {
        while let Some(Reverse(held)) = self.held.peek() {
            if held.due > now {
                return Some(held.due);
            }
            if let Some(Reverse(held)) = self.held.pop() {
                self.ready.push_back(held.start);
            }
        }
        None
    }

    pub(crate) fn next(&mut self) -> Option<Start> {
        self.ready.pop_front()
    }

    /// Takes note that access `id` is done. Says what goes on, unless it was
    /// the first half of a copy.
    pub(crate) fn done(&mut self, id: AccessId, bytes: Option<&mut Bytes>) -> Option<Then> {
        let slot = (id.0 >> 1) as usize;
        let pending = std::mem::replace(self.pending.get_mut(slot)?, Pending::Free);
        if matches!(pending, Pending::Free) {
            return None;
        }
        self.free.push(slot as u32);
        self.under_way[(id.0 & 1) as usize] -= 1;
        match (pending, bytes) {
            (Pending::Plain(then), _) | (Pending::Relay { then, .. }, None) => Some(then),
            (Pending::Relay { to, then }, Some(bytes)) => {
                // In the half of its first part: it touches the same memory.
                let id = self.id(Pending::Plain(then), id.0 & 1);
                let access = Access::Write {
                    address: to.address,
                    bytes: std::mem::take(bytes),
                };
                self.ready.push_back(Start {
                    id,
                    space: to.space,
                    access,
                });
                None
            }
            (Pending::Free, _) => None,
        }
    }

    /// True if accesses are under way or held back.
    pub(crate) fn waits(&self) -> bool {
        self.under_way != [0, 0]
    }

    /// Begins the other half of time if all accesses that began in it before
    /// are done; true if so. After two turns everything that was under way
    /// before the first is done.
    pub(crate) fn turn(&mut self) -> bool {
        let other = self.half ^ 1;
        if self.under_way[other as usize] > 0 {
            return false;
        }
        self.half = other;
        true
    }
}

/// The new value of a word that held `old`.
pub(crate) fn apply(operation: AtomicOperation, old: u64) -> u64 {
    match operation {
        AtomicOperation::Add(addend) => old.wrapping_add(addend),
        AtomicOperation::Swap { compare, swap } if old == compare => swap,
        AtomicOperation::Swap { .. } => old,
    }
}
