// SPDX-License-Identifier: MIT
//! A work request that has been taken from its slot.

use mlx5_queue::{Flags, MemoryKey, Operation, Payload as Wire, QueueIndex, WorkRequest};

use super::packet::{AtomicOperation, Piece, Pieces};
use crate::memory::Bytes;

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) index: QueueIndex,
    pub(crate) blocks: u64,
    pub(crate) opcode: u8,
    pub(crate) flags: Flags,
    pub(crate) work: Work,
}

#[derive(Debug)]
pub(crate) enum Work {
    Nothing,
    /// Could not be taken, or must not be executed.
    Bad,
    Drop {
        source: Pieces,
    },
    Write {
        key: MemoryKey,
        address: u64,
        source: Source,
        immediate: Option<u32>,
    },
    Send {
        source: Source,
        immediate: Option<u32>,
    },
    Read {
        key: MemoryKey,
        address: u64,
        scatter: Pieces,
    },
    Atomic {
        key: MemoryKey,
        address: u64,
        operation: AtomicOperation,
        result: Piece,
    },
}

#[derive(Debug)]
pub(crate) enum Source {
    Gather(Pieces),
    Inline(Bytes),
}

impl Source {
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Gather(pieces) => length(pieces),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

pub(crate) fn length(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.length).sum()
}

fn piece(segment: mlx5_queue::DataSegment) -> Piece {
    Piece {
        key: segment.key(),
        address: segment.address(),
        length: u64::from(segment.length()),
    }
}

fn source(payload: Wire<'_>) -> Source {
    match payload {
        Wire::Gather(segments) => Source::Gather(segments.iter().map(piece).collect()),
        Wire::Inline(data) => Source::Inline(Bytes::from_slice(data)),
    }
}

impl Request {
    /// The request in a slot; `None` for one that the NIC does not execute.
    pub(crate) fn take(wire: &WorkRequest<'_>, index: QueueIndex, blocks: u64) -> Option<Self> {
        let work = match wire.operation {
            Operation::Nop => Work::Nothing,
            Operation::Dump { source } => Work::Drop {
                source: [piece(source)].into(),
            },
            Operation::Write {
                remote,
                payload,
                immediate,
            } => Work::Write {
                key: remote.key,
                address: remote.address,
                source: source(payload),
                immediate,
            },
            Operation::Send { payload, immediate } => Work::Send {
                source: source(payload),
                immediate,
            },
            Operation::Read { remote, scatter } => Work::Read {
                key: remote.key,
                address: remote.address,
                scatter: scatter.iter().map(piece).collect(),
            },
            Operation::FetchAdd {
                remote,
                add,
                result,
            } => Work::Atomic {
                key: remote.key,
                address: remote.address,
                operation: AtomicOperation::Add(add),
                result: piece(result),
            },
            Operation::CompareSwap {
                remote,
                compare,
                swap,
                result,
            } => Work::Atomic {
                key: remote.key,
                address: remote.address,
                operation: AtomicOperation::Swap { compare, swap },
                result: piece(result),
            },
            _ => return None,
        };
        let opcode = wire.operation.opcode() as u8;
        Some(Self {
            index,
            blocks,
            opcode,
            flags: wire.flags,
            work,
        })
    }

    /// A slot from which no request can be taken.
    pub(crate) fn bad(index: QueueIndex, blocks: u64, opcode: u8) -> Self {
        Self {
            index,
            blocks,
            opcode,
            flags: Flags::UNSIGNALLED,
            work: Work::Bad,
        }
    }

    /// The index after its last block.
    pub(crate) fn end(&self) -> QueueIndex {
        self.index.advance(self.blocks)
    }

    /// True if its result comes back from the peer.
    pub(crate) fn has_result(&self) -> bool {
        matches!(self.work, Work::Read { .. } | Work::Atomic { .. })
    }

    /// Bytes of its message.
    pub(crate) fn length(&self) -> u64 {
        match &self.work {
            Work::Write { source, .. } | Work::Send { source, .. } => source.length(),
            Work::Read { scatter, .. } => length(scatter),
            Work::Atomic { .. } => 8,
            Work::Nothing | Work::Bad | Work::Drop { .. } => 0,
        }
    }

    /// True if it is carried out by the peer.
    pub(crate) fn is_remote(&self) -> bool {
        !matches!(self.work, Work::Nothing | Work::Bad | Work::Drop { .. })
    }
}
