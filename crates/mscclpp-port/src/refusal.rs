// SPDX-License-Identifier: MIT
//! Why an operation was refused by the end that should have executed it.

use std::fmt;

/// An operation that a peer executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// A write of bytes.
    Write,
    /// `+= 1` on a semaphore's token.
    Signal,
    /// `+= operand` on a word.
    Accumulate,
    /// A flush.
    Flush,
    /// Something that is no valid frame.
    Unknown,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Signal => "signal",
            Self::Accumulate => "accumulate",
            Self::Flush => "flush",
            Self::Unknown => "unknown operation",
        })
    }
}

/// Why an operation was refused by the end that should have executed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// No registration has the key: never made, or dropped.
    UnknownKey,
    /// The range is out of bounds of the registration.
    OutOfBounds,
    /// The registration does not allow the operation.
    AccessDenied,
    /// The word is not aligned to 8 bytes.
    Misaligned,
    /// The frame breaks the protocol.
    Protocol,
    /// The memory is a GPU's, and the GPU could not execute it.
    Device,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownKey => {
                "no memory is registered under the key (never, or no longer: its owner keeps its \
                 RegisteredMemory until a barrier)"
            }
            Self::OutOfBounds => "the range is out of bounds of the registration",
            Self::AccessDenied => "the registration does not allow it",
            Self::Misaligned => "the word is not aligned to 8 bytes",
            Self::Protocol => "the frame breaks the protocol",
            Self::Device => "the GPU that the memory is of could not execute it",
        })
    }
}

/// An operation that was refused, with what it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The operation.
    pub operation: Operation,
    /// The key of the registration.
    pub key: u64,
    /// The offset in bytes from the start of the registration.
    pub offset: u64,
    /// The length in bytes.
    pub len: u64,
    /// Why.
    pub reason: Refusal,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} bytes at offset {} of memory {:#018x}: {}",
            self.operation, self.len, self.offset, self.key, self.reason
        )
    }
}
