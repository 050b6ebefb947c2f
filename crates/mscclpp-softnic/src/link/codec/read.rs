// SPDX-License-Identifier: MIT
//! Bytes as frames. They are not believed.

use mlx5_queue::{MemoryKey, QueueNumber};

use super::{CodecError, Frame, MAX_COUNT, MAX_PAYLOAD, kind, refusal};
use crate::memory::{Bytes, Export};
use crate::nic::loans::{Notice, Offer};
use crate::nic::packet::{
    AtomicOperation, Body, MAX_PIECES, Packet, Part, Payload, Piece, Pieces, Refusal,
};

/// Reads what follows a frame's header.
pub(crate) fn decode(bytes: &[u8]) -> Result<Frame, CodecError> {
    let mut reader = Reader(bytes);
    let kind = reader.byte()?;
    let frame = match kind {
        kind::OFFERED..=kind::RELEASED => {
            let key = reader.key()?;
            Frame::Notice(key, reader.notice(kind)?)
        }
        _ => Frame::Packet(reader.packet(kind)?),
    };
    if reader.0.is_empty() {
        Ok(frame)
    } else {
        Err(CodecError::Trailing)
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn notice(&mut self, kind: u8) -> Result<Notice, CodecError> {
        Ok(match kind {
            kind::OFFERED => {
                let (address, length) = (self.word()?, self.word()?);
                let descriptor = self.flag()?;
                let description = std::mem::take(&mut self.0);
                let wraps = address.checked_add(length).is_none();
                if length == 0 || wraps || description.len() > Export::MAX_DESCRIPTION {
                    return Err(CodecError::Range);
                }
                Notice::Offered(Offer {
                    address,
                    length,
                    descriptor,
                    description: description.to_vec(),
                })
            }
            kind::TAKEN => Notice::Taken,
            kind::DECLINED => Notice::Declined,
            kind::WITHDRAWN => Notice::Withdrawn,
            kind::RELEASED => Notice::Released,
            _ => return Err(CodecError::Kind(kind)),
        })
    }

    fn packet(&mut self, kind: u8) -> Result<Packet, CodecError> {
        let reader = self;
        let (to, from) = (reader.queue()?, reader.queue()?);
        let number = reader.count()?;
        let body = match kind {
            kind::WRITE | kind::WRITE_LENT => {
                let (key, address) = (reader.key()?, reader.word()?);
                let (part, immediate) = (reader.part()?, reader.immediate()?);
                let payload = reader.payload(kind, part.length)?;
                Body::Write {
                    key,
                    address,
                    part,
                    immediate,
                    payload,
                }
            }
            kind::SEND | kind::SEND_LENT => {
                let (part, immediate) = (reader.part()?, reader.immediate()?);
                let payload = reader.payload(kind, part.length)?;
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
            kind::READ_RESPONSE | kind::READ_RESPONSE_LENT => {
                let part = reader.part()?;
                let payload = reader.payload(kind, part.length)?;
                Body::ReadResponse { part, payload }
            }
            kind::ATOMIC_RESPONSE => Body::AtomicResponse {
                old: reader.word()?,
            },
            _ => return Err(CodecError::Kind(kind)),
        };
        Ok(Packet {
            to,
            from,
            number,
            body,
        })
    }

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
        let (present, value) = (self.flag()?, self.half()?);
        Ok(present.then_some(value))
    }

    fn flag(&mut self) -> Result<bool, CodecError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(CodecError::Range),
        }
    }

    /// The rest of the frame, which has to be `length` bytes, or pieces of
    /// together so many.
    fn payload(&mut self, kind: u8, length: u64) -> Result<Payload, CodecError> {
        if matches!(
            kind,
            kind::WRITE_LENT | kind::SEND_LENT | kind::READ_RESPONSE_LENT
        ) {
            return self.pieces(length).map(Payload::Pieces);
        }
        let bytes = std::mem::take(&mut self.0);
        if bytes.len() as u64 != length || bytes.len() > MAX_PAYLOAD {
            return Err(CodecError::Range);
        }
        Ok(Payload::Bytes(Bytes::from_slice(bytes)))
    }

    fn pieces(&mut self, length: u64) -> Result<Pieces, CodecError> {
        let mut pieces = Pieces::new();
        let mut left = length;
        while !self.0.is_empty() {
            let piece = Piece {
                key: self.key()?,
                address: self.word()?,
                length: self.count()?,
            };
            left = left.checked_sub(piece.length).ok_or(CodecError::Range)?;
            if piece.length == 0 || pieces.len() == MAX_PIECES {
                return Err(CodecError::Range);
            }
            pieces.push(piece);
        }
        // Not none at all: no bytes are sent as such.
        if left > 0 || pieces.is_empty() {
            return Err(CodecError::Range);
        }
        Ok(pieces)
    }
}
