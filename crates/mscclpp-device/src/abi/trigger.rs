// SPDX-License-Identifier: MIT
//! The 16-byte trigger that a kernel pushes and the proxy executes.

use std::fmt;

use thiserror::Error;

/// Opcode of [`Trigger::Put`].
pub const PUT: u8 = 1;
/// Opcode of [`Trigger::Signal`].
pub const SIGNAL: u8 = 2;
/// Opcode of [`Trigger::PutWithSignal`].
pub const PUT_WITH_SIGNAL: u8 = 3;
/// Opcode of [`Trigger::Flush`].
pub const FLUSH: u8 = 4;
/// Opcode of [`Trigger::Accumulate`].
pub const ACCUMULATE: u8 = 6;
/// Opcode of [`Trigger::PutWithSignalAndFlush`].
pub const PUT_WITH_SIGNAL_AND_FLUSH: u8 = 7;

/// How many memory ids a trigger can name (9 bits).
pub const MAX_MEMORIES: u32 = 1 << 9;
/// How many semaphore ids a trigger can name (10 bits).
pub const MAX_SEMAPHORES: u32 = 1 << 10;

/// The trigger as it lies in a FIFO slot; twin of `mscclpp::ProxyTrigger` in
/// `trigger.hpp`. Little-endian words, 16-byte aligned:
///
/// | word | bits | field |
/// |---|---|---|
/// | `fst` | 31:0 | size in bytes |
/// | `fst` | 63:32 | source offset in bytes |
/// | `snd` | 31:0 | destination offset in bytes |
/// | `snd` | 40:32 | source memory id |
/// | `snd` | 49:41 | destination memory id |
/// | `snd` | 52:50 | opcode |
/// | `snd` | 62:53 | semaphore id |
/// | `snd` | 63 | commit bit, owned by the FIFO |
///
/// An accumulate uses `fst` as a whole for its operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C, align(16))]
pub struct ProxyTrigger {
    /// First word.
    pub fst: u64,
    /// Second word; the FIFO writes it last.
    pub snd: u64,
}

/// Where the bytes of a put come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// Id of the destination memory, below [`MAX_MEMORIES`].
    pub dst: u32,
    /// Offset into it, in bytes, below 4 GiB.
    pub dst_offset: u64,
    /// Id of the source memory, below [`MAX_MEMORIES`].
    pub src: u32,
    /// Offset into it, in bytes, below 4 GiB.
    pub src_offset: u64,
    /// Bytes to move, below 4 GiB.
    pub size: u64,
}

/// A trigger's meaning. `semaphore` names the channel's semaphore, and by it
/// the connection, below [`MAX_SEMAPHORES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// Write bytes to the peer.
    Put {
        /// What to move.
        transfer: Transfer,
        /// The channel's semaphore.
        semaphore: u32,
    },
    /// Add one to the peer's semaphore.
    Signal {
        /// The channel's semaphore.
        semaphore: u32,
    },
    /// Write, then signal.
    PutWithSignal {
        /// What to move.
        transfer: Transfer,
        /// The channel's semaphore.
        semaphore: u32,
    },
    /// Report when all earlier operations of the connection are complete.
    Flush {
        /// The channel's semaphore.
        semaphore: u32,
    },
    /// Add to a 64-bit word in the peer's memory, modulo 2^64.
    Accumulate {
        /// Id of the destination memory, below [`MAX_MEMORIES`].
        dst: u32,
        /// Offset of the word, in bytes, below 4 GiB.
        dst_offset: u64,
        /// What to add.
        operand: i64,
        /// The channel's semaphore.
        semaphore: u32,
    },
    /// Write, then signal, then flush.
    PutWithSignalAndFlush {
        /// What to move.
        transfer: Transfer,
        /// The channel's semaphore.
        semaphore: u32,
    },
}

/// A field of the trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TriggerField {
    /// Bytes to move, 32 bits.
    Size,
    /// Offset into the source memory, 32 bits.
    SrcOffset,
    /// Offset into the destination memory, 32 bits.
    DstOffset,
    /// Id of the source memory, 9 bits.
    SrcMemoryId,
    /// Id of the destination memory, 9 bits.
    DstMemoryId,
    /// Id of the semaphore, 10 bits.
    SemaphoreId,
}

impl TriggerField {
    /// Width of the field in bits.
    pub const fn bits(self) -> u32 {
        match self {
            Self::Size | Self::SrcOffset | Self::DstOffset => 32,
            Self::SrcMemoryId | Self::DstMemoryId => 9,
            Self::SemaphoreId => 10,
        }
    }
}

impl fmt::Display for TriggerField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Size => "size",
            Self::SrcOffset => "source offset",
            Self::DstOffset => "destination offset",
            Self::SrcMemoryId => "source memory id",
            Self::DstMemoryId => "destination memory id",
            Self::SemaphoreId => "semaphore id",
        })
    }
}

/// Why a trigger cannot be encoded or decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TriggerError {
    /// A value does not fit its field. Nothing is ever cut off.
    #[error("{field} {value} does not fit the {} bits that a trigger has for it", field.bits())]
    TooLarge {
        /// Which field.
        field: TriggerField,
        /// The value given.
        value: u64,
    },
    /// The opcode field holds a number that is no operation.
    #[error("a trigger for semaphore {semaphore} has opcode {opcode}, which is no operation")]
    UnknownOpcode {
        /// The number found: 0 or 5.
        opcode: u8,
        /// The semaphore that the trigger names, so that its connection can be
        /// told.
        semaphore: u32,
    },
}

const SRC_ID_SHIFT: u32 = 32;
const DST_ID_SHIFT: u32 = 41;
const OPCODE_SHIFT: u32 = 50;
const SEMAPHORE_SHIFT: u32 = 53;

fn place(field: TriggerField, value: u64, shift: u32) -> Result<u64, TriggerError> {
    if value >> field.bits() == 0 {
        Ok(value << shift)
    } else {
        Err(TriggerError::TooLarge { field, value })
    }
}

impl Trigger {
    /// The trigger's 16 bytes, commit bit clear, or which field is too large.
    pub fn encode(&self) -> Result<ProxyTrigger, TriggerError> {
        let (opcode, semaphore) = (self.opcode(), self.semaphore());
        let (fst, snd) = match *self {
            Self::Signal { .. } | Self::Flush { .. } => (0, 0),
            Self::Accumulate {
                dst,
                dst_offset,
                operand,
                ..
            } => (operand.cast_unsigned(), destination(dst, dst_offset)?),
            Self::Put { transfer, .. }
            | Self::PutWithSignal { transfer, .. }
            | Self::PutWithSignalAndFlush { transfer, .. } => transfer.words()?,
        };
        let snd = snd
            | u64::from(opcode) << OPCODE_SHIFT
            | place(TriggerField::SemaphoreId, semaphore.into(), SEMAPHORE_SHIFT)?;
        Ok(ProxyTrigger { fst, snd })
    }

    /// The opcode, as in bits 52:50 of the second word.
    pub const fn opcode(&self) -> u8 {
        match self {
            Self::Put { .. } => PUT,
            Self::Signal { .. } => SIGNAL,
            Self::PutWithSignal { .. } => PUT_WITH_SIGNAL,
            Self::Flush { .. } => FLUSH,
            Self::Accumulate { .. } => ACCUMULATE,
            Self::PutWithSignalAndFlush { .. } => PUT_WITH_SIGNAL_AND_FLUSH,
        }
    }

    /// Id of the semaphore that the trigger names.
    pub const fn semaphore(&self) -> u32 {
        match *self {
            Self::Put { semaphore, .. }
            | Self::Signal { semaphore }
            | Self::PutWithSignal { semaphore, .. }
            | Self::Flush { semaphore }
            | Self::Accumulate { semaphore, .. }
            | Self::PutWithSignalAndFlush { semaphore, .. } => semaphore,
        }
    }
}

fn destination(dst: u32, dst_offset: u64) -> Result<u64, TriggerError> {
    Ok(place(TriggerField::DstOffset, dst_offset, 0)?
        | place(TriggerField::DstMemoryId, dst.into(), DST_ID_SHIFT)?)
}

impl Transfer {
    fn words(&self) -> Result<(u64, u64), TriggerError> {
        let fst = place(TriggerField::Size, self.size, 0)?
            | place(TriggerField::SrcOffset, self.src_offset, 32)?;
        let snd = destination(self.dst, self.dst_offset)?
            | place(TriggerField::SrcMemoryId, self.src.into(), SRC_ID_SHIFT)?;
        Ok((fst, snd))
    }
}

impl ProxyTrigger {
    /// The bit of `snd` that says in which lap of the ring a slot was written.
    pub const COMMIT_BIT: u64 = 1 << 63;

    /// The commit bit (in place, or 0) that a trigger at `position` carries in
    /// a ring of `1 << size_shift` slots: set in lap 0, clear in lap 1, and so
    /// on, so that a zeroed ring and the lap before read as empty.
    pub const fn commit_bit(position: u64, size_shift: u32) -> u64 {
        ((position >> size_shift) & 1 ^ 1) << 63
    }

    /// What the trigger means. The commit bit is ignored, and so are fields
    /// that the opcode does not use. Any 16 bytes are safe to pass.
    pub fn decode(self) -> Result<Trigger, TriggerError> {
        let semaphore = (self.snd >> SEMAPHORE_SHIFT) as u32 & (MAX_SEMAPHORES - 1);
        let dst = (self.snd >> DST_ID_SHIFT) as u32 & (MAX_MEMORIES - 1);
        let dst_offset = self.snd & u64::from(u32::MAX);
        let transfer = Transfer {
            dst,
            dst_offset,
            src: (self.snd >> SRC_ID_SHIFT) as u32 & (MAX_MEMORIES - 1),
            src_offset: self.fst >> 32,
            size: self.fst & u64::from(u32::MAX),
        };
        Ok(match (self.snd >> OPCODE_SHIFT) as u8 & 7 {
            PUT => Trigger::Put {
                transfer,
                semaphore,
            },
            SIGNAL => Trigger::Signal { semaphore },
            PUT_WITH_SIGNAL => Trigger::PutWithSignal {
                transfer,
                semaphore,
            },
            FLUSH => Trigger::Flush { semaphore },
            ACCUMULATE => Trigger::Accumulate {
                dst,
                dst_offset,
                operand: self.fst.cast_signed(),
                semaphore,
            },
            PUT_WITH_SIGNAL_AND_FLUSH => Trigger::PutWithSignalAndFlush {
                transfer,
                semaphore,
            },
            opcode => return Err(TriggerError::UnknownOpcode { opcode, semaphore }),
        })
    }
}

const _: () = {
    assert!(size_of::<ProxyTrigger>() == 16 && align_of::<ProxyTrigger>() == 16);
    assert!(std::mem::offset_of!(ProxyTrigger, fst) == 0);
    assert!(std::mem::offset_of!(ProxyTrigger, snd) == 8);
};

#[cfg(test)]
mod tests;
