// SPDX-License-Identifier: MIT
//! Packets as bytes, between devices.
//!
//! | bytes | what (all little-endian) |
//! |---|---|
//! | 0-3 | length of what follows, at most [`MAX_FRAME`] |
//! | 4 | kind |
//! | 5-8, 9-12 | queue pair that it is for, and from |
//! | 13-20 | packet number |
//! | 21- | fields of the kind, in the order of [`Body`]; the payload last |

use mlx5_queue::{MemoryKey, QueueNumber};

use crate::memory::Bytes;
use crate::nic::packet::{AtomicOperation, Body, Packet, Part, Payload, Refusal};

/// Bytes of the largest frame: a train of packets and what belongs to it.
pub(crate) const MAX_FRAME: usize = MAX_PAYLOAD + 256;

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
}

mod refusal {
    pub(super) const SEQUENCE: u8 = 1;
    pub(super) const NOT_READY: u8 = 2;
    pub(super) const ACCESS: u8 = 3;
    pub(super) const INVALID_REQUEST: u8 = 4;
    pub(super) const OPERATION: u8 = 5;
}

/// Appends a packet to `out`; false, and nothing appended, if its payload is
/// memory of this device.
pub(crate) fn encode(packet: &Packet, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER]);
    let kind_at = out.len();
    out.push(0);
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
    out[kind_at] = kind;
    match payload {
        Some(Payload::Pieces(pieces)) if !pieces.is_empty() => {
            out.truncate(start);
            return false;
        }
        Some(Payload::Bytes(bytes)) => out.extend_from_slice(bytes),
        _ => {}
    }
    let length = (out.len() - start - HEADER) as u32;
    out[start..start + HEADER].copy_from_slice(&length.to_le_bytes());
    true
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

/// Reads what follows a frame's header.
pub(crate) fn decode(bytes: &[u8]) -> Result<Packet, CodecError> {
    let mut reader = Reader(bytes);
    let kind = reader.byte()?;
    let (to, from) = (reader.queue()?, reader.queue()?);
    let number = reader.count()?;
    let body = match kind {
        kind::WRITE => {
            let (key, address) = (reader.key()?, reader.word()?);
            let (part, immediate) = (reader.part()?, reader.immediate()?);
            let payload = reader.payload(part.length)?;
            Body::Write {
                key,
                address,
                part,
                immediate,
                payload,
            }
        }
        kind::SEND => {
            let (part, immediate) = (reader.part()?, reader.immediate()?);
            let payload = reader.payload(part.length)?;
            Body::Send {
                part,
                immediate,
                payload,
            }
        }
        kind::READ => Body::Read {
            key: reader.key()?,
            address: reader.word()?,
            length: reader.count()?,
            packets: reader.count()?,
        },
        kind::FETCH_ADD => Body::Atomic {
            key: reader.key()?,
            address: reader.word()?,
            operation: AtomicOperation::Add(reader.word()?),
        },
        kind::COMPARE_SWAP => Body::Atomic {
            key: reader.key()?,
            address: reader.word()?,
            operation: AtomicOperation::Swap {
                compare: reader.word()?,
                swap: reader.word()?,
            },
        },
        kind::ACKNOWLEDGE => Body::Acknowledge,
        kind::REFUSE => {
            let (code, detail) = (reader.byte()?, reader.half()?);
            Body::Refuse(match code {
                refusal::SEQUENCE => Refusal::Sequence,
                refusal::NOT_READY => Refusal::NotReady {
                    microseconds: detail,
                },
                refusal::ACCESS => Refusal::Access,
                refusal::INVALID_REQUEST => Refusal::InvalidRequest,
                refusal::OPERATION => Refusal::Operation,
                _ => return Err(CodecError::Range),
            })
        }
        kind::READ_RESPONSE => {
            let part = reader.part()?;
            let payload = reader.payload(part.length)?;
            Body::ReadResponse { part, payload }
        }
        kind::ATOMIC_RESPONSE => Body::AtomicResponse {
            old: reader.word()?,
        },
        _ => return Err(CodecError::Kind(kind)),
    };
    if !reader.0.is_empty() {
        return Err(CodecError::Trailing);
    }
    Ok(Packet {
        to,
        from,
        number,
        body,
    })
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (first, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or(CodecError::Truncated)?;
        self.0 = rest;
        Ok(*first)
    }

    fn byte(&mut self) -> Result<u8, CodecError> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn half(&mut self) -> Result<u32, CodecError> {
        self.take().map(u32::from_le_bytes)
    }

    fn word(&mut self) -> Result<u64, CodecError> {
        self.take().map(u64::from_le_bytes)
    }

    fn count(&mut self) -> Result<u64, CodecError> {
        self.word().and_then(|count| {
            if count > MAX_COUNT {
                Err(CodecError::Range)
            } else {
                Ok(count)
            }
        })
    }

    fn queue(&mut self) -> Result<QueueNumber, CodecError> {
        QueueNumber::new(self.half()?).map_err(|_| CodecError::Range)
    }

    fn key(&mut self) -> Result<MemoryKey, CodecError> {
        self.half().map(MemoryKey::new)
    }

    fn part(&mut self) -> Result<Part, CodecError> {
        let part = Part {
            total: self.count()?,
            offset: self.count()?,
            length: self.count()?,
            packets: self.count()?,
        };
        if part.packets == 0 || part.offset + part.length > part.total {
            return Err(CodecError::Range);
        }
        Ok(part)
    }

    fn immediate(&mut self) -> Result<Option<u32>, CodecError> {
        let (present, value) = (self.byte()?, self.half()?);
        match present {
            0 => Ok(None),
            1 => Ok(Some(value)),
            _ => Err(CodecError::Range),
        }
    }

    /// The rest of the frame, which has to be `length` bytes.
    fn payload(&mut self, length: u64) -> Result<Payload, CodecError> {
        let bytes = std::mem::take(&mut self.0);
        if bytes.len() as u64 != length || bytes.len() > MAX_PAYLOAD {
            return Err(CodecError::Range);
        }
        Ok(Payload::Bytes(Bytes::from_slice(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part() -> impl Strategy<Value = (Part, Vec<u8>)> {
        (
            prop::collection::vec(any::<u8>(), 0..300),
            0..1u64 << 40,
            0..1u64 << 40,
            1..1u64 << 40,
        )
            .prop_map(|(bytes, offset, after, packets)| {
                let length = bytes.len() as u64;
                let total = offset + length + after;
                (
                    Part {
                        total,
                        offset,
                        length,
                        packets,
                    },
                    bytes,
                )
            })
    }

    fn body() -> impl Strategy<Value = Body> {
        let refusal = prop_oneof![
            Just(Refusal::Sequence),
            any::<u32>().prop_map(|microseconds| Refusal::NotReady { microseconds }),
            Just(Refusal::Access),
            Just(Refusal::InvalidRequest),
            Just(Refusal::Operation),
        ];
        let key = || any::<u32>().prop_map(MemoryKey::new);
        let payload = |bytes: Vec<u8>| Payload::Bytes(Bytes::from_vec(bytes));
        prop_oneof![
            (key(), any::<u64>(), part(), any::<Option<u32>>()).prop_map(
                move |(key, address, (part, bytes), immediate)| {
                    Body::Write {
                        key,
                        address,
                        part,
                        immediate,
                        payload: payload(bytes),
                    }
                }
            ),
            (part(), any::<Option<u32>>()).prop_map(move |((part, bytes), immediate)| {
                Body::Send {
                    part,
                    immediate,
                    payload: payload(bytes),
                }
            }),
            (key(), any::<u64>(), 0..MAX_COUNT, 0..MAX_COUNT).prop_map(
                |(key, address, length, packets)| Body::Read {
                    key,
                    address,
                    length,
                    packets
                }
            ),
            (key(), any::<u64>(), any::<u64>()).prop_map(|(key, address, add)| {
                Body::Atomic {
                    key,
                    address,
                    operation: AtomicOperation::Add(add),
                }
            }),
            (key(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
                |(key, address, compare, swap)| {
                    let operation = AtomicOperation::Swap { compare, swap };
                    Body::Atomic {
                        key,
                        address,
                        operation,
                    }
                }
            ),
            Just(Body::Acknowledge),
            refusal.prop_map(Body::Refuse),
            part().prop_map(move |(part, bytes)| {
                Body::ReadResponse {
                    part,
                    payload: payload(bytes),
                }
            }),
            any::<u64>().prop_map(|old| Body::AtomicResponse { old }),
        ]
    }

    proptest! {
        #[test]
        fn a_packet_reads_back(
            to in 0u32..1 << 24, from in 0u32..1 << 24, number in 0..MAX_COUNT, body in body(),
        ) {
            let to = QueueNumber::new(to).unwrap();
            let from = QueueNumber::new(from).unwrap();
            let packet = Packet { to, from, number, body };
            let mut bytes = vec![9, 9];
            prop_assert!(encode(&packet, &mut bytes));
            let frame = &bytes[2..];
            prop_assert_eq!(frame_length(frame), Ok(Some(frame.len())));
            prop_assert_eq!(decode(&frame[HEADER..]), Ok(packet));
            // Cut anywhere it is an error, never another packet.
            for end in HEADER..frame.len() {
                prop_assert!(decode(&frame[HEADER..end]).is_err());
            }
        }
    }

    #[test]
    fn fuzz_packet() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let _ = frame_length(bytes);
            let Ok(packet) = mscclpp_fuzz::in_proportion(bytes, || decode(bytes)) else {
                return;
            };
            let mut again = Vec::new();
            assert!(encode(&packet, &mut again));
            assert_eq!(decode(&again[HEADER..]), Ok(packet));
        });
    }

    #[test]
    fn long_frames_are_refused_before_they_are_read() {
        let header = (MAX_FRAME as u32 + 1).to_le_bytes();
        assert_eq!(
            frame_length(&header),
            Err(CodecError::Length(MAX_FRAME + 1))
        );
        assert_eq!(frame_length(&header[..3]), Ok(None));
    }
}
