// SPDX-License-Identifier: MIT
//! What queue pairs say to each other.

use mlx5_queue::{MemoryKey, QueueNumber, Syndrome};
use smallvec::SmallVec;

use crate::capability::DeviceAddress;
use crate::memory::Bytes;
use crate::observer::Transfer;

/// A packet, or a train of consecutive packets of one message that travel
/// together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Packet {
    pub(crate) to: QueueNumber,
    pub(crate) from: QueueNumber,
    /// Sequence number of the first packet, carried in 64 bits.
    pub(crate) number: u64,
    pub(crate) body: Body,
}

/// Where a part of a message lies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Bytes of the whole message.
    pub(crate) total: u64,
    /// Bytes before this part.
    pub(crate) offset: u64,
    /// Bytes of this part.
    pub(crate) length: u64,
    /// Packets of this part.
    pub(crate) packets: u64,
}

impl Part {
    pub(crate) fn is_first(&self) -> bool {
        self.offset == 0
    }

    pub(crate) fn is_last(&self) -> bool {
        self.offset + self.length == self.total
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Body {
    /// Part of an RDMA write to `address` and following.
    Write {
        key: MemoryKey,
        address: u64,
        part: Part,
        immediate: Option<u32>,
        payload: Payload,
    },
    /// Part of a message.
    Send {
        part: Part,
        immediate: Option<u32>,
        payload: Payload,
    },
    /// Request for `length` bytes, to be answered in `packets` packets.
    Read {
        key: MemoryKey,
        address: u64,
        length: u64,
        packets: u64,
    },
    /// Request for an atomic.
    Atomic {
        key: MemoryKey,
        address: u64,
        operation: AtomicOperation,
    },
    /// Everything up to `number` is done.
    Acknowledge,
    /// `number` was not taken.
    Refuse(Refusal),
    /// Part of the answer to a read; with it everything before `number` is
    /// acknowledged.
    ReadResponse { part: Part, payload: Payload },
    /// The answer to an atomic.
    AtomicResponse { old: u64 },
}

impl Packet {
    /// What an observer at one end is told of it.
    pub(crate) fn transfer(&self, local: QueueNumber, to: DeviceAddress) -> Transfer {
        let asks = matches!(
            self.body,
            Body::Write { .. } | Body::Send { .. } | Body::Read { .. } | Body::Atomic { .. }
        );
        Transfer {
            local,
            to,
            to_queue: self.to,
            number: self.number,
            answer: !asks,
        }
    }
}

impl Body {
    /// Packets that travel together.
    pub(crate) fn packets(&self) -> u64 {
        match self {
            Self::Write { part, .. }
            | Self::Send { part, .. }
            | Self::ReadResponse { part, .. } => part.packets,
            _ => 1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOperation {
    Add(u64),
    Swap { compare: u64, swap: u64 },
}

/// Why a responder did not take a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// `number` is the one that it expects.
    Sequence,
    /// There is no receive request; try again after this many microseconds.
    NotReady {
        microseconds: u32,
    },
    Access,
    InvalidRequest,
    Operation,
}

impl Refusal {
    /// What the request fails with, if the refusal is for good.
    pub(crate) fn syndrome(self) -> Option<Syndrome> {
        match self {
            Self::Sequence | Self::NotReady { .. } => None,
            Self::Access => Some(Syndrome::REMOTE_ACCESS),
            Self::InvalidRequest => Some(Syndrome::REMOTE_INVALID_REQUEST),
            Self::Operation => Some(Syndrome::REMOTE_OPERATION),
        }
    }
}

/// Pieces of a payload that one packet names.
pub(crate) const MAX_PIECES: usize = 64;

/// Bytes of a message: themselves, or where they are: in memory that is
/// registered with the sender, on this device or on one that has lent it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Payload {
    Bytes(Bytes),
    Pieces(Pieces),
}

/// Pieces of registered memory of the sender.
pub(crate) type Pieces = SmallVec<[Piece; 1]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) key: MemoryKey,
    pub(crate) address: u64,
    pub(crate) length: u64,
}

/// The part of `pieces` from `offset`, `length` bytes of it.
pub(crate) fn cut(pieces: &[Piece], mut offset: u64, mut length: u64) -> Pieces {
    let mut out = Pieces::new();
    for piece in pieces {
        if length == 0 {
            break;
        }
        if offset >= piece.length {
            offset -= piece.length;
            continue;
        }
        let take = length.min(piece.length - offset);
        out.push(Piece {
            address: piece.address.wrapping_add(offset),
            length: take,
            ..*piece
        });
        offset = 0;
        length -= take;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_the_same_bytes() {
        let key = MemoryKey::new(1);
        let pieces: Vec<Piece> = [(100, 5), (200, 1), (300, 7)]
            .map(|(address, length)| Piece {
                key,
                address,
                length,
            })
            .to_vec();
        let all: Vec<u64> = pieces
            .iter()
            .flat_map(|piece| piece.address..piece.address + piece.length)
            .collect();
        for offset in 0..=all.len() {
            for length in 0..=all.len() - offset {
                let cut = cut(&pieces, offset as u64, length as u64);
                let bytes: Vec<u64> = cut
                    .iter()
                    .flat_map(|piece| piece.address..piece.address + piece.length)
                    .collect();
                assert_eq!(bytes, all[offset..offset + length]);
                assert!(cut.iter().all(|piece| piece.length > 0));
            }
        }
    }
}
