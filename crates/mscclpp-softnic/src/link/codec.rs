// SPDX-License-Identifier: MIT
//! Packets and notices as bytes, between devices.
//!
//! | bytes | what (all little-endian) |
//! |---|---|
//! | 0-3 | length of what follows, at most [`MAX_FRAME`] |
//! | 4 | kind |
//!
//! Packets:
//!
//! | bytes | what |
//! |---|---|
//! | 5-8, 9-12 | queue pair that it is for, and from |
//! | 13-20 | packet number |
//! | 21- | fields of the kind, in the order of [`Body`]; the payload last: its bytes, or, where the kind says so, the pieces of lent memory that it is in, each a key, an address and a length |
//!
//! Notices of lent memory:
//!
//! | bytes | what |
//! |---|---|
//! | 5-8 | key |
//! | 9-16, 17-24 | of an offer: address and length |
//! | 25, 26- | of an offer: whether a descriptor comes with it; the description |

mod read;

use mlx5_queue::MemoryKey;

pub(crate) use read::decode;

use crate::nic::loans::Notice;
use crate::nic::packet::{AtomicOperation, Body, Packet, Part, Payload, Refusal};

/// Bytes of the largest frame: a train of packets and what belongs to it.
pub(crate) const MAX_FRAME: usize = MAX_PAYLOAD + 256;

/// What is in a frame.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Frame {
    Packet(Packet),
    /// Of the registration with this key.
    Notice(MemoryKey, Notice),
}

/// Bytes of the largest payload.
const MAX_PAYLOAD: usize = 1 << 16;

/// Packet numbers, lengths and counts above this are not believed: sums of a
/// few of them cannot overflow.
const MAX_COUNT: u64 = 1 << 48;

/// Bytes before a frame.
pub(crate) const HEADER: usize = 4;

/// Why bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CodecError {
    #[error("a frame of {0} bytes")]
    Length(usize),
    #[error("a frame that ends early")]
    Truncated,
    #[error("bytes after the end of a frame")]
    Trailing,
    #[error("an unknown kind {0}")]
    Kind(u8),
    #[error("a number that is out of range")]
    Range,
}

mod kind {
    pub(super) const WRITE: u8 = 1;
    pub(super) const SEND: u8 = 2;
    pub(super) const READ: u8 = 3;
    pub(super) const FETCH_ADD: u8 = 4;
    pub(super) const COMPARE_SWAP: u8 = 5;
    pub(super) const ACKNOWLEDGE: u8 = 6;
    pub(super) const REFUSE: u8 = 7;
    pub(super) const READ_RESPONSE: u8 = 8;
    pub(super) const ATOMIC_RESPONSE: u8 = 9;
    // With pieces of lent memory in place of bytes.
    pub(super) const WRITE_LENT: u8 = 10;
    pub(super) const SEND_LENT: u8 = 11;
    pub(super) const READ_RESPONSE_LENT: u8 = 12;
    // Notices.
    pub(super) const OFFERED: u8 = 32;
    pub(super) const TAKEN: u8 = 33;
    pub(super) const DECLINED: u8 = 34;
    pub(super) const WITHDRAWN: u8 = 35;
    pub(super) const RELEASED: u8 = 36;
}

mod refusal {
    pub(super) const SEQUENCE: u8 = 1;
    pub(super) const NOT_READY: u8 = 2;
    pub(super) const ACCESS: u8 = 3;
    pub(super) const INVALID_REQUEST: u8 = 4;
    pub(super) const OPERATION: u8 = 5;
}

/// Appends a frame to `out`.
fn frame(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>) -> u8) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER + 1]);
    out[start + HEADER] = write(out);
    let length = (out.len() - start - HEADER) as u32;
    out[start..start + HEADER].copy_from_slice(&length.to_le_bytes());
}

/// Appends a notice to `out`.
pub(crate) fn encode_notice(key: MemoryKey, notice: &Notice, out: &mut Vec<u8>) {
    frame(out, |out| {
        put_key(out, key);
        match notice {
            Notice::Offered(offer) => {
                put(out, &[offer.address, offer.length]);
                out.push(offer.descriptor.into());
                out.extend_from_slice(&offer.description);
                kind::OFFERED
            }
            Notice::Taken => kind::TAKEN,
            Notice::Declined => kind::DECLINED,
            Notice::Withdrawn => kind::WITHDRAWN,
            Notice::Released => kind::RELEASED,
        }
    });
}

/// Appends a packet to `out`.
pub(crate) fn encode(packet: &Packet, out: &mut Vec<u8>) {
    frame(out, |out| encode_packet(packet, out));
}

fn encode_packet(packet: &Packet, out: &mut Vec<u8>) -> u8 {
    out.extend_from_slice(&packet.to.get().to_le_bytes());
    out.extend_from_slice(&packet.from.get().to_le_bytes());
    put(out, &[packet.number]);
    let (kind, payload) = match &packet.body {
        Body::Write {
            key,
            address,
            part,
            immediate,
            payload,
        } => {
            put_key(out, *key);
            put(out, &[*address]);
            put_part(out, part);
            put_immediate(out, *immediate);
            (kind::WRITE, Some(payload))
        }
        Body::Send {
            part,
            immediate,
            payload,
        } => {
            put_part(out, part);
            put_immediate(out, *immediate);
            (kind::SEND, Some(payload))
        }
        Body::Read {
            key,
            address,
            length,
            packets,
        } => {
            put_key(out, *key);
            put(out, &[*address, *length, *packets]);
            (kind::READ, None)
        }
        Body::Atomic {
            key,
            address,
            operation,
        } => {
            put_key(out, *key);
            put(out, &[*address]);
            match operation {
                AtomicOperation::Add(addend) => {
                    put(out, &[*addend]);
                    (kind::FETCH_ADD, None)
                }
                AtomicOperation::Swap { compare, swap } => {
                    put(out, &[*compare, *swap]);
                    (kind::COMPARE_SWAP, None)
                }
            }
        }
        Body::Acknowledge => (kind::ACKNOWLEDGE, None),
        Body::Refuse(refusal) => {
            let (code, detail) = match refusal {
                Refusal::Sequence => (refusal::SEQUENCE, 0),
                Refusal::NotReady { microseconds } => (refusal::NOT_READY, *microseconds),
                Refusal::Access => (refusal::ACCESS, 0),
                Refusal::InvalidRequest => (refusal::INVALID_REQUEST, 0),
                Refusal::Operation => (refusal::OPERATION, 0),
            };
            out.push(code);
            out.extend_from_slice(&detail.to_le_bytes());
            (kind::REFUSE, None)
        }
        Body::ReadResponse { part, payload } => {
            put_part(out, part);
            (kind::READ_RESPONSE, Some(payload))
        }
        Body::AtomicResponse { old } => {
            put(out, &[*old]);
            (kind::ATOMIC_RESPONSE, None)
        }
    };
    match payload {
        Some(Payload::Pieces(pieces)) if !pieces.is_empty() => {
            for piece in pieces {
                put_key(out, piece.key);
                put(out, &[piece.address, piece.length]);
            }
            match kind {
                kind::WRITE => kind::WRITE_LENT,
                kind::SEND => kind::SEND_LENT,
                _ => kind::READ_RESPONSE_LENT,
            }
        }
        Some(Payload::Bytes(bytes)) => {
            out.extend_from_slice(bytes);
            kind
        }
        _ => kind,
    }
}

fn put(out: &mut Vec<u8>, words: &[u64]) {
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

fn put_key(out: &mut Vec<u8>, key: MemoryKey) {
    out.extend_from_slice(&key.get().to_le_bytes());
}

fn put_part(out: &mut Vec<u8>, part: &Part) {
    put(out, &[part.total, part.offset, part.length, part.packets]);
}

fn put_immediate(out: &mut Vec<u8>, immediate: Option<u32>) {
    out.push(u8::from(immediate.is_some()));
    out.extend_from_slice(&immediate.unwrap_or(0).to_le_bytes());
}

/// The length of the frame that starts at `bytes`, header included, or `None`
/// if its header is not complete.
pub(crate) fn frame_length(bytes: &[u8]) -> Result<Option<usize>, CodecError> {
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*header) as usize;
    if length > MAX_FRAME {
        return Err(CodecError::Length(length));
    }
    Ok(Some(HEADER + length))
}

#[cfg(test)]
mod tests;
