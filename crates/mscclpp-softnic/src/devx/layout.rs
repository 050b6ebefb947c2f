// SPDX-License-Identifier: MIT
//! Where the fields of commands are: bits of big-endian 32-bit words. Facts of mlx5's
//! interface that GPUNetIO's header `mlx5_ifc.h` and the Linux driver have in common.

/// Some bits of one word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    /// Byte of the word, from the structure's start.
    at: usize,
    shift: u32,
    width: u32,
}

const fn field(at: usize, shift: u32, width: u32) -> Field {
    Field { at, shift, width }
}

impl Field {
    fn mask(self) -> u32 {
        u32::MAX >> (32 - self.width)
    }

    /// Its value in a structure that begins at `bytes`. What the structure is too short for
    /// is 0.
    pub(super) fn get(self, bytes: &[u8]) -> u32 {
        let word = bytes.get(self.at..self.at + 4);
        let word = word
            .and_then(|word| word.try_into().ok())
            .map_or(0, u32::from_be_bytes);
        (word >> self.shift) & self.mask()
    }

    /// Whether it is not 0.
    pub(super) fn is_set(self, bytes: &[u8]) -> bool {
        self.get(bytes) != 0
    }

    /// Sets it. What does not fit is cut off; a structure that is too short is left alone.
    pub(super) fn set(self, bytes: &mut [u8], value: u32) {
        let Some(word) = bytes.get_mut(self.at..self.at + 4) else {
            return;
        };
        let old = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
        let kept = old & !(self.mask() << self.shift);
        let new = kept | (value & self.mask()) << self.shift;
        word.copy_from_slice(&new.to_be_bytes());
    }
}

/// The 64-bit number at a byte.
pub(super) fn get64(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..at + 8);
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u64::from_be_bytes)
}

/// What a structure has from a byte on; nothing if it is shorter.
pub(super) fn from(bytes: &[u8], at: usize) -> &[u8] {
    bytes.get(at..).unwrap_or_default()
}

pub(super) const OPCODE: Field = field(0x00, 16, 16);
pub(super) const OP_MOD: Field = field(0x04, 0, 16);
/// Of commands to one queue pair.
pub(super) const QUEUE: Field = field(0x08, 0, 24);
pub(super) const OPTIONAL: Field = field(0x10, 0, 32);

/// Of every answer.
pub(super) const STATUS: Field = field(0x00, 24, 8);
pub(super) const SYNDROME: Field = field(0x04, 0, 32);
/// Of the answer to a creation.
pub(super) const NUMBER: Field = field(0x08, 0, 24);

/// Input of CREATE_CQ.
pub(super) mod cq {
    use super::{Field, field};

    pub(in super::super) const RECORD_VALID: Field = field(0x10, 25, 1);
    pub(in super::super) const ENTRY_SIZE: Field = field(0x10, 21, 3);
    pub(in super::super) const COLLAPSED: Field = field(0x10, 20, 1);
    pub(in super::super) const OVERRUN_IGNORED: Field = field(0x10, 17, 1);
    pub(in super::super) const RECORD_UMEM: Field = field(0x14, 0, 32);
    pub(in super::super) const LOG_SIZE: Field = field(0x1c, 24, 5);
    pub(in super::super) const PAGE: Field = field(0x1c, 0, 24);
    pub(in super::super) const EVENT_QUEUE: Field = field(0x24, 0, 8);
    /// 64 bits.
    pub(in super::super) const RECORD_OFFSET: usize = 0x48;
    /// 64 bits.
    pub(in super::super) const OFFSET: usize = 0x50;
    pub(in super::super) const UMEM: Field = field(0x58, 0, 32);
    pub(in super::super) const VALID: Field = field(0x5c, 31, 1);
}

/// Input of CREATE_QP, beside its context.
pub(super) mod qp {
    use super::{Field, field};

    /// 64 bits.
    pub(in super::super) const RING_OFFSET: usize = 0x100;
    pub(in super::super) const RING_UMEM: Field = field(0x108, 0, 32);
    pub(in super::super) const RING_VALID: Field = field(0x10c, 31, 1);
}

/// Context of a queue pair.
pub(super) mod context {
    use super::{Field, field};

    /// Where it begins in CREATE_QP, in all transitions, and in the answer of QUERY_QP.
    pub(in super::super) const AT: usize = 0x18;
    pub(in super::super) const BYTES: usize = 0xe8;

    pub(in super::super) const STATE: Field = field(0x00, 28, 4);
    pub(in super::super) const SERVICE: Field = field(0x00, 16, 8);
    pub(in super::super) const PATH_MIGRATION: Field = field(0x00, 11, 2);
    pub(in super::super) const DOMAIN: Field = field(0x04, 0, 24);
    pub(in super::super) const MTU: Field = field(0x08, 29, 3);
    pub(in super::super) const LOG_MESSAGE: Field = field(0x08, 24, 5);
    pub(in super::super) const NO_SEND_QUEUE: Field = field(0x08, 15, 1);
    pub(in super::super) const LOG_SEND_SIZE: Field = field(0x08, 11, 4);
    pub(in super::super) const PAGE: Field = field(0x0c, 0, 24);
    pub(in super::super) const RECORD_MODE: Field = field(0x10, 30, 2);
    pub(in super::super) const USER_INDEX: Field = field(0x10, 0, 24);
    pub(in super::super) const REMOTE_QUEUE: Field = field(0x14, 0, 24);
    pub(in super::super) const LOG_SEND_READS: Field = field(0x70, 21, 3);
    pub(in super::super) const RETRY_COUNT: Field = field(0x70, 16, 3);
    pub(in super::super) const RNR_RETRY: Field = field(0x70, 13, 3);
    pub(in super::super) const SEND_PSN: Field = field(0x78, 0, 24);
    pub(in super::super) const SEND_CQ: Field = field(0x7c, 0, 24);
    pub(in super::super) const LOG_RECEIVE_READS: Field = field(0x90, 21, 3);
    pub(in super::super) const ATOMIC_MODE: Field = field(0x90, 16, 4);
    pub(in super::super) const REMOTE_READ: Field = field(0x90, 15, 1);
    pub(in super::super) const REMOTE_WRITE: Field = field(0x90, 14, 1);
    pub(in super::super) const REMOTE_ATOMIC: Field = field(0x90, 13, 1);
    pub(in super::super) const RNR_TIMER: Field = field(0x94, 24, 5);
    pub(in super::super) const RECEIVE_PSN: Field = field(0x94, 0, 24);
    /// 64 bits.
    pub(in super::super) const RECORD_OFFSET: usize = 0xa0;
    pub(in super::super) const RECEIVE_TYPE: Field = field(0xac, 24, 3);
    pub(in super::super) const RECORD_VALID: Field = field(0xd0, 28, 1);
    pub(in super::super) const RECORD_UMEM: Field = field(0xe4, 0, 32);

    // The path to the peer, at 0x18.
    pub(in super::super) const HAS_GRH: Field = field(0x1c, 23, 1);
    pub(in super::super) const REMOTE_LID: Field = field(0x1c, 0, 16);
    pub(in super::super) const ACK_TIMEOUT: Field = field(0x20, 27, 5);
    pub(in super::super) const SOURCE_GID: Field = field(0x20, 16, 8);
    /// 16 bytes.
    pub(in super::super) const REMOTE_GID: usize = 0x28;
    pub(in super::super) const SOURCE_PORT: Field = field(0x38, 0, 16);
    pub(in super::super) const PORT: Field = field(0x3c, 16, 8);
    /// 6 bytes.
    pub(in super::super) const REMOTE_MAC: usize = 0x3e;
}

/// Bits of [`OPTIONAL`]: what of the access rights a later transition changes.
pub(super) mod optional {
    pub(in super::super) const REMOTE_READ: u32 = 1 << 1;
    pub(in super::super) const REMOTE_ATOMIC: u32 = 1 << 2;
    pub(in super::super) const REMOTE_WRITE: u32 = 1 << 3;
}

/// The answer of QUERY_HCA_CAP, whose capability begins at 0x10.
pub(super) mod capability {
    use super::{Field, field};

    pub(in super::super) const AT: usize = 0x10;
    pub(in super::super) const BYTES: usize = 0x1010;

    // General.
    pub(in super::super) const HAS_SECOND: Field = field(0x04, 31, 1);
    pub(in super::super) const LOG_QP_SIZE: Field = field(0x10, 16, 8);
    pub(in super::super) const GID_TABLE: Field = field(0x2c, 0, 16);
    pub(in super::super) const PORT_TYPE: Field = field(0x34, 8, 2);
    pub(in super::super) const RELIABLE: Field = field(0x44, 0, 1);
    pub(in super::super) const SEND_REQUEST: Field = field(0x50, 0, 16);
    pub(in super::super) const RECEIVE_REQUEST: Field = field(0x54, 0, 16);
    // RoCE.
    pub(in super::super) const LARGEST_PORT: Field = field(0x18, 16, 16);
    pub(in super::super) const SMALLEST_PORT: Field = field(0x18, 0, 16);
    pub(in super::super) const ADDRESS_TABLE: Field = field(0x1c, 0, 16);
}

/// QUERY_ROCE_ADDRESS: input, and answer, whose address begins at 0x10.
pub(super) mod roce {
    use super::{Field, field};

    pub(in super::super) const INDEX: Field = field(0x08, 16, 16);
    pub(in super::super) const GID: usize = 0x10;
    pub(in super::super) const VERSION: Field = field(0x28, 0, 8);
}
