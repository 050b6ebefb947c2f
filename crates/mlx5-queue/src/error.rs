// SPDX-License-Identifier: MIT
use crate::Opcode;

/// Why a value cannot be written, or bytes cannot be read.
///
/// A decoder returns these for any bytes that it does not take; none of them
/// is fatal to anything but the request or completion at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The slice ends before the thing does.
    #[error("{what}: {have} bytes where {need} are needed")]
    Truncated {
        /// What was read or written.
        what: &'static str,
        /// Bytes it takes.
        need: usize,
        /// Bytes the slice has.
        have: usize,
    },
    /// The low byte of a control segment is no operation of this crate's.
    #[error("unknown or unsupported work request opcode {opcode:#04x}")]
    UnknownOpcode {
        /// The byte found.
        opcode: u8,
    },
    /// The opcode modifier is not zero. Masked and extended operations use it;
    /// none of this crate's does.
    #[error("{opcode}: unsupported opcode modifier {modifier:#04x}")]
    UnsupportedModifier {
        /// The operation.
        opcode: Opcode,
        /// The modifier found.
        modifier: u8,
    },
    /// The fence bits hold a value that has no meaning.
    #[error("unknown fence mode {mode}")]
    UnknownFence {
        /// The three bits found, 5 to 7.
        mode: u8,
    },
    /// The request's size does not fit its operation.
    #[error("{opcode}: a request of {segments} segments is not of its form")]
    SegmentCount {
        /// The operation.
        opcode: Opcode,
        /// The size it gives, in segments of 16 bytes, the control segment
        /// among them.
        segments: u8,
    },
    /// Inline data of no bytes, or of a length that disagrees with the
    /// request's size.
    #[error("inline data of {length} bytes in room for {room}")]
    InlineLength {
        /// The length it gives.
        length: u32,
        /// Bytes that follow the length in the request.
        room: usize,
    },
    /// Inline data where the operation needs an address: the result of a read
    /// or of an atomic.
    #[error("{opcode}: inline data where the NIC has to write")]
    InlineResult {
        /// The operation.
        opcode: Opcode,
    },
    /// Inline data after data segments. Hardware may take the mix; no poster
    /// known to this crate makes it.
    #[error("inline data after {segments} data segments")]
    MixedPayload {
        /// Data segments before it.
        segments: usize,
    },
    /// The request would need more than [`MAX_SEGMENTS`](crate::MAX_SEGMENTS).
    #[error("a request of {segments} segments is larger than {max}", max = crate::MAX_SEGMENTS)]
    RequestTooLong {
        /// Segments it would need.
        segments: usize,
    },
    /// A ring's size is not a power of two, or beyond what it can be.
    #[error("a ring of {entries} entries: not a power of two up to 2^31")]
    RingSize {
        /// The size asked for.
        entries: u32,
    },
    /// A queue number does not fit its 24 bits.
    #[error("queue number {number:#x} does not fit 24 bits")]
    QueueNumber {
        /// The number given.
        number: u32,
    },
    /// A data segment of no bytes (the wire has no such thing: 0 means 2 GiB)
    /// or of more than 2 GiB.
    #[error("a data segment of {length} bytes: not 1 to 2^31")]
    DataLength {
        /// The length given.
        length: u32,
    },
    /// The completion's opcode is none that a reliable connection produces.
    #[error("unknown or unsupported completion opcode {opcode:#x}")]
    UnknownCompletion {
        /// The high nibble of the last byte.
        opcode: u8,
    },
    /// The completion is compressed or carries data, which a queue has to ask
    /// for and which this crate does not read.
    #[error("unsupported completion format {format}")]
    CompletionFormat {
        /// Bits 2 and 3 of the last byte: 1 and 2 carry 32 and 64 bytes of
        /// data, 3 is compressed.
        format: u8,
    },
}
