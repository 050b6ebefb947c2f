// SPDX-License-Identifier: MIT
use crate::{QueueIndex, QueueNumber};

/// The 8 bytes stored to a send queue's doorbell register.
///
/// | bytes | what | source |
/// |---|---|---|
/// | 0 | bits 16-23 of the index, or an opcode modifier: not to be relied on | GPUNetIO shifts the whole index left by 8 |
/// | 1-2 | low 16 bits of the index, big-endian | rdma-core rings with the first 8 bytes of a control segment |
/// | 3 | 0, or the opcode: not to be relied on | the same |
/// | 4-6 | queue number, big-endian | the same |
/// | 7 | 0, or the segment count: not to be relied on | the same |
///
/// The store itself is one 64-bit store, at offset 0x800 of the register page
/// (0x600 for a queue without a doorbell record), after everything that the
/// record covers is visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Doorbell {
    /// The queue that has work.
    pub queue: QueueNumber,
    /// Low 24 bits of the index one past the last block posted. A reader may
    /// use the low 16 only: see [`low16`](Self::low16).
    index: u32,
}

impl Doorbell {
    /// A doorbell for `queue`, whose next free block is `index`.
    pub const fn new(queue: QueueNumber, index: QueueIndex) -> Self {
        Self {
            queue,
            index: (index.get() & 0x00ff_ffff) as u32,
        }
    }

    /// The index as far as a reader may rely on it.
    pub const fn low16(self) -> u16 {
        self.index as u16
    }

    /// The register's bytes in memory order.
    pub const fn encode(self) -> [u8; 8] {
        let index = (self.index << 8).to_be_bytes();
        let queue = (self.queue.get() << 8).to_be_bytes();
        [
            index[0], index[1], index[2], index[3], queue[0], queue[1], queue[2], queue[3],
        ]
    }

    /// Reads a register. Any 8 bytes are a doorbell; what the table calls
    /// unreliable in bytes 3 and 7 is dropped.
    pub const fn decode(bytes: [u8; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self {
            queue: QueueNumber::from_upper(u32::from_be_bytes([e, f, g, h])),
            index: u32::from_be_bytes([a, b, c, d]) >> 8,
        }
    }
}

/// A queue pair's doorbell record: two big-endian 32-bit words in memory.
///
/// | bytes | what | source |
/// |---|---|---|
/// | 0-3 | receive queue: entries posted, low 16 bits | Linux `MLX5_RCV_DBR` = 0 |
/// | 4-7 | send queue: blocks posted, low 16 bits | Linux `MLX5_SND_DBR` = 1 |
///
/// The record is the truth from which the NIC recovers. It is written after
/// the requests that it covers and before the doorbell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DoorbellRecord {
    /// Low 16 bits of the receive queue's index.
    pub receive: u16,
    /// Low 16 bits of the send queue's index.
    pub send: u16,
}

impl DoorbellRecord {
    /// Bytes of a record.
    pub const BYTES: usize = 8;

    /// Where the word of the send queue lies in the record. GPUNetIO's
    /// `sq_dbrec` points here.
    pub const SEND_OFFSET: usize = 4;

    /// Where the word of the receive queue lies in the record.
    pub const RECEIVE_OFFSET: usize = 0;

    /// The word that a poster stores for `index`, in memory order.
    pub const fn send_word(index: QueueIndex) -> [u8; 4] {
        (index.low16() as u32).to_be_bytes()
    }

    /// Reads one word of a record. The upper half is dropped: rdma-core
    /// clears it, Linux does not.
    pub const fn decode_word(word: [u8; 4]) -> u16 {
        u32::from_be_bytes(word) as u16
    }

    /// The record's bytes in memory order.
    pub const fn encode(self) -> [u8; 8] {
        let receive = (self.receive as u32).to_be_bytes();
        let send = (self.send as u32).to_be_bytes();
        [
            receive[0], receive[1], receive[2], receive[3], send[0], send[1], send[2], send[3],
        ]
    }

    /// Reads a record. Any 8 bytes are one.
    pub const fn decode(bytes: [u8; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self {
            receive: Self::decode_word([a, b, c, d]),
            send: Self::decode_word([e, f, g, h]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_doorbell() {
        bolero::check!().with_type::<[u8; 8]>().for_each(|bytes| {
            let doorbell = Doorbell::decode(*bytes);
            let mut expected = *bytes;
            expected[3] = 0;
            expected[7] = 0;
            assert_eq!(doorbell.encode(), expected);
            assert_eq!(Doorbell::decode(doorbell.encode()), doorbell);
        });
    }

    #[test]
    fn fuzz_doorbell_record() {
        bolero::check!().with_type::<[u8; 8]>().for_each(|bytes| {
            let record = DoorbellRecord::decode(*bytes);
            assert_eq!(DoorbellRecord::decode(record.encode()), record);
            assert_eq!(record.send, u16::from_be_bytes([bytes[6], bytes[7]]));
        });
    }
}
