// SPDX-License-Identifier: MIT
use std::fmt;

use mlx5_queue::{Opcode, QueueIndex, QueueNumber};

/// A poster did what it must not do.
///
/// Most of these also complete a request in error, as on a real NIC. Some
/// cannot be seen there at all: a poster that forgets the last doorbell works
/// until the day its first one is missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The queue pair.
    pub queue: QueueNumber,
    /// What was wrong.
    pub kind: ViolationKind,
    /// The position in the send queue at which it was noticed.
    pub index: QueueIndex,
}

/// What a poster did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ViolationKind {
    /// The slot holds a request for another position: it was not written
    /// before it was announced, or it was overwritten. The low 16 bits found.
    StaleSlot {
        /// The index that the slot's request carries.
        found: u16,
    },
    /// The slot holds a request for another queue.
    ForeignSlot {
        /// The queue number that it carries.
        found: QueueNumber,
    },
    /// Two copies of an announced slot differ: it was still being written.
    TornSlot,
    /// The slot holds no request: see the reason of the decoder.
    Malformed {
        /// Why it was not accepted.
        reason: mlx5_queue::Error,
    },
    /// A well-formed request that the device does not execute.
    Unsupported {
        /// Its opcode.
        opcode: Opcode,
    },
    /// A doorbell or record behind what was announced before.
    MovedBack {
        /// The low 16 bits announced.
        announced: u16,
    },
    /// A doorbell or record further ahead than the queue has room for slots
    /// whose completions have been reported.
    TooFar {
        /// The low 16 bits announced.
        announced: u16,
    },
    /// The record was moved, and no doorbell followed.
    NoDoorbellAfterRecord,
    /// A doorbell was rung, and the record did not follow.
    NoRecordAfterDoorbell,
    /// A doorbell for a queue pair that is not ready to send.
    NotReadyToSend,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, index, kind } = self;
        write!(f, "queue {:#x} at {}: {kind:?}", queue.get(), index.get())
    }
}
