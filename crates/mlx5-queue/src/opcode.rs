// SPDX-License-Identifier: MIT
use core::fmt;

use crate::Error;

/// Operation of a work request: the low byte of its first word.
///
/// Source of each number: rdma-core's `MLX5_OPCODE_*`, and for
/// [`Wait`](Self::Wait) and [`Dump`](Self::Dump) GPUNetIO's device headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Opcode {
    /// Does nothing, but completes in its turn.
    Nop = 0x00,
    /// RDMA write.
    Write = 0x08,
    /// RDMA write that also completes a receive request at the peer.
    WriteImmediate = 0x09,
    /// Message into the peer's next receive request.
    Send = 0x0a,
    /// The same with four bytes of immediate data.
    SendImmediate = 0x0b,
    /// Waits for a completion of another completion queue.
    Wait = 0x0f,
    /// RDMA read.
    Read = 0x10,
    /// 64-bit compare-and-swap.
    CompareSwap = 0x11,
    /// 64-bit fetch-and-add.
    FetchAdd = 0x12,
    /// Reads local memory and drops it: on hardware, an ordering device.
    Dump = 0x23,
}

impl TryFrom<u8> for Opcode {
    type Error = Error;

    fn try_from(opcode: u8) -> Result<Self, Error> {
        Ok(match opcode {
            0x00 => Self::Nop,
            0x08 => Self::Write,
            0x09 => Self::WriteImmediate,
            0x0a => Self::Send,
            0x0b => Self::SendImmediate,
            0x0f => Self::Wait,
            0x10 => Self::Read,
            0x11 => Self::CompareSwap,
            0x12 => Self::FetchAdd,
            0x23 => Self::Dump,
            _ => return Err(Error::UnknownOpcode { opcode }),
        })
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nop => "NOP",
            Self::Write => "RDMA_WRITE",
            Self::WriteImmediate => "RDMA_WRITE_IMM",
            Self::Send => "SEND",
            Self::SendImmediate => "SEND_IMM",
            Self::Wait => "WAIT",
            Self::Read => "RDMA_READ",
            Self::CompareSwap => "ATOMIC_CS",
            Self::FetchAdd => "ATOMIC_FA",
            Self::Dump => "DUMP",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_an_opcode_or_an_error() {
        let mut known = 0;
        for byte in 0..=u8::MAX {
            match Opcode::try_from(byte) {
                Ok(opcode) => {
                    assert_eq!(opcode as u8, byte);
                    known += 1;
                }
                Err(error) => assert_eq!(error, Error::UnknownOpcode { opcode: byte }),
            }
        }
        assert_eq!(known, 10);
    }
}
