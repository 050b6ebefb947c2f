// SPDX-License-Identifier: MIT
//! The frames of the Ethernet transport.
//!
//! Every frame starts with a header of 32 bytes, little-endian; a write's payload follows it.
//!
//! | bytes | field |
//! |---|---|
//! | 0-1 | magic, `0x504d` |
//! | 2 | version, 1 |
//! | 3 | kind of frame |
//! | 4 | nack: kind of the refused frame, else 0 |
//! | 5 | nack: reason, else 0 |
//! | 6-7 | 0 |
//! | 8-15 | key of the registration; flush and acknowledgement: ticket |
//! | 16-23 | offset in bytes from the start of the registration |
//! | 24-31 | write: length in bytes; accumulate: operand |
//!
//! Fields that a kind does not use are 0, and anything else in them is refused.

use crate::refusal::{Operation, Refusal, Refused};

pub(crate) const HEADER: usize = 32;
/// The longest payload of one frame. Longer writes are several frames, so that acknowledgements of
/// the other direction need not wait for all of it.
pub(crate) const MAX_PAYLOAD: u64 = 1 << 20;

const MAGIC: u16 = 0x504d;
const VERSION: u8 = 1;

const WRITE: u8 = 1;
const SIGNAL: u8 = 2;
const ACCUMULATE: u8 = 3;
const FLUSH: u8 = 4;
const FLUSH_ACK: u8 = 5;
const NACK: u8 = 6;
const GOODBYE: u8 = 7;

/// A decoded header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame {
    /// `len` bytes follow and go to `key + offset`. 1 to [`MAX_PAYLOAD`] bytes.
    Write { key: u64, offset: u64, len: u64 },
    /// `+= 1` on the word at `key + offset`.
    Signal { key: u64, offset: u64 },
    /// `+= operand` on the word at `key + offset`.
    Accumulate { key: u64, offset: u64, operand: u64 },
    /// Answer with `FlushAck` once everything before this is executed. Tickets count up from 1.
    Flush { ticket: u64 },
    /// Every flush up to `ticket` is done.
    FlushAck { ticket: u64 },
    /// A frame was refused; nothing that came after it has been or will be executed.
    Nack(Refused),
    /// The sender closes; everything that it posted came before this.
    Goodbye,
}

impl Frame {
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let (kind, refused, reason, words) = match *self {
            Self::Write { key, offset, len } => (WRITE, 0, 0, [key, offset, len]),
            Self::Signal { key, offset } => (SIGNAL, 0, 0, [key, offset, 0]),
            Self::Accumulate {
                key,
                offset,
                operand,
            } => (ACCUMULATE, 0, 0, [key, offset, operand]),
            Self::Flush { ticket } => (FLUSH, 0, 0, [ticket, 0, 0]),
            Self::FlushAck { ticket } => (FLUSH_ACK, 0, 0, [ticket, 0, 0]),
            Self::Nack(Refused {
                operation,
                key,
                offset,
                len,
                reason,
            }) => (
                NACK,
                operation_code(operation),
                reason_code(reason),
                [key, offset, len],
            ),
            Self::Goodbye => (GOODBYE, 0, 0, [0; 3]),
        };
        let mut header = [0; HEADER];
        header[..2].copy_from_slice(&MAGIC.to_le_bytes());
        header[2] = VERSION;
        header[3] = kind;
        header[4] = refused;
        header[5] = reason;
        for (to, word) in header[8..].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        header
    }

    /// Decodes a header. The error is what to answer in a [`Frame::Nack`].
    pub(crate) fn decode(header: &[u8; HEADER]) -> Result<Self, Refused> {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (a, b, c) = (word(8), word(16), word(24));
        let kind = header[3];
        let refuse = || {
            let operation = operation_of(kind).unwrap_or(Operation::Unknown);
            Err(Refused {
                operation,
                key: a,
                offset: b,
                len: c,
                reason: Refusal::Protocol,
            })
        };
        let known = header[..2] == MAGIC.to_le_bytes() && header[2] == VERSION;
        if !known || header[6..8] != [0; 2] || (kind != NACK && header[4..6] != [0; 2]) {
            return refuse();
        }
        match (kind, a, b, c) {
            (WRITE, key, offset, len @ 1..=MAX_PAYLOAD) => Ok(Self::Write { key, offset, len }),
            (SIGNAL, key, offset, 0) => Ok(Self::Signal { key, offset }),
            (ACCUMULATE, key, offset, operand) => Ok(Self::Accumulate {
                key,
                offset,
                operand,
            }),
            (FLUSH, ticket @ 1.., 0, 0) => Ok(Self::Flush { ticket }),
            (FLUSH_ACK, ticket @ 1.., 0, 0) => Ok(Self::FlushAck { ticket }),
            (NACK, key, offset, len) => match (operation_of(header[4]), reason_of(header[5])) {
                (Some(operation), Some(reason)) => Ok(Self::Nack(Refused {
                    operation,
                    key,
                    offset,
                    len,
                    reason,
                })),
                _ => refuse(),
            },
            (GOODBYE, 0, 0, 0) => Ok(Self::Goodbye),
            _ => refuse(),
        }
    }
}

fn operation_code(operation: Operation) -> u8 {
    match operation {
        Operation::Unknown => 0,
        Operation::Write => WRITE,
        Operation::Signal => SIGNAL,
        Operation::Accumulate => ACCUMULATE,
        Operation::Flush => FLUSH,
    }
}

fn operation_of(code: u8) -> Option<Operation> {
    Some(match code {
        0 => Operation::Unknown,
        WRITE => Operation::Write,
        SIGNAL => Operation::Signal,
        ACCUMULATE => Operation::Accumulate,
        FLUSH => Operation::Flush,
        _ => return None,
    })
}

fn reason_code(reason: Refusal) -> u8 {
    match reason {
        Refusal::UnknownKey => 1,
        Refusal::OutOfBounds => 2,
        Refusal::AccessDenied => 3,
        Refusal::Misaligned => 4,
        Refusal::Protocol => 5,
        Refusal::Device => 6,
    }
}

fn reason_of(code: u8) -> Option<Refusal> {
    Some(match code {
        1 => Refusal::UnknownKey,
        2 => Refusal::OutOfBounds,
        3 => Refusal::AccessDenied,
        4 => Refusal::Misaligned,
        5 => Refusal::Protocol,
        6 => Refusal::Device,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let refused = (0u8..=4, 1u8..=6, any::<[u64; 3]>()).prop_map(|(op, reason, [a, b, c])| {
            let (operation, reason) = (operation_of(op).unwrap(), reason_of(reason).unwrap());
            Frame::Nack(Refused {
                operation,
                key: a,
                offset: b,
                len: c,
                reason,
            })
        });
        prop_oneof![
            (any::<[u64; 2]>(), 1..=MAX_PAYLOAD).prop_map(|([key, offset], len)| Frame::Write {
                key,
                offset,
                len
            }),
            any::<[u64; 2]>().prop_map(|[key, offset]| Frame::Signal { key, offset }),
            any::<[u64; 3]>().prop_map(|[key, offset, operand]| Frame::Accumulate {
                key,
                offset,
                operand
            }),
            (1u64..).prop_map(|ticket| Frame::Flush { ticket }),
            (1u64..).prop_map(|ticket| Frame::FlushAck { ticket }),
            refused,
            Just(Frame::Goodbye),
        ]
    }

    proptest! {
        #[test]
        fn a_frame_survives_the_wire(frame in frames()) {
            prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }

        #[test]
        fn a_flaw_in_the_fixed_bytes_is_refused(frame in frames(), at in 0usize..8, flaw in 1u8..) {
            // Byte 3 may become another kind; in a nack, bytes 4 and 5 another refusal.
            prop_assume!(at != 3 && !(matches!(frame, Frame::Nack(_)) && (4..6).contains(&at)));
            let mut header = frame.encode();
            header[at] ^= flaw;
            prop_assert_eq!(Frame::decode(&header).unwrap_err().reason, Refusal::Protocol);
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let header = Frame::Write {
            key: 0x0102_0304_0506_0708,
            offset: 1 << 32,
            len: 5,
        }
        .encode();
        let golden = [
            0x4d, 0x50, 1, 1, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0,
            0, 0, 0, 0, 0,
        ];
        assert_eq!(header, golden);
    }

    #[test]
    fn a_length_of_nothing_or_too_much_is_refused() {
        for len in [0, MAX_PAYLOAD + 1, u64::MAX] {
            let header = Frame::Write {
                key: 1,
                offset: 2,
                len,
            }
            .encode();
            let refused = Frame::decode(&header).unwrap_err();
            assert_eq!((refused.operation, refused.len), (Operation::Write, len));
        }
    }

    #[test]
    fn fuzz_frame() {
        bolero::check!()
            .with_type::<[u8; HEADER]>()
            .for_each(|header| {
                if let Ok(frame) = Frame::decode(header) {
                    assert_eq!(&frame.encode(), header);
                }
            });
    }
}
