// SPDX-License-Identifier: MIT
use crate::{Error, QueueIndex, QueueNumber, RingSize, Syndrome};

/// Bytes of a completion (rdma-core `mlx5_cqe64`).
pub const COMPLETION_BYTES: usize = 64;

/// High nibbles of the last byte (rdma-core `MLX5_CQE_*`).
mod code {
    pub(super) const REQUESTER: u8 = 0;
    pub(super) const WRITE_IMMEDIATE: u8 = 1;
    pub(super) const SEND: u8 = 2;
    pub(super) const SEND_IMMEDIATE: u8 = 3;
    pub(super) const REQUESTER_ERROR: u8 = 13;
    pub(super) const RESPONDER_ERROR: u8 = 14;
    pub(super) const INVALID: u8 = 15;
}

/// Which message completed a receive request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiveKind {
    /// An RDMA write with immediate data: the bytes went where the write said.
    WriteImmediate {
        /// The data, in the machine's byte order.
        immediate: u32,
    },
    /// A message without immediate data.
    Send,
    /// A message with immediate data.
    SendImmediate {
        /// The data, in the machine's byte order.
        immediate: u32,
    },
}

/// Why a request failed.
///
/// | byte | what | source |
/// |---|---|---|
/// | 52 | `hw_err_synd` | NVSHMEM, GPUNetIO (rdma-core: reserved) |
/// | 53 | `hw_synd_type` | the same |
/// | 54 | `vendor_err_synd` | rdma-core `mlx5_err_cqe` |
/// | 55 | `syndrome` | rdma-core `mlx5_err_cqe` |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    /// The cause, as far as it is standard.
    pub syndrome: Syndrome,
    /// The vendor's detail: a number for its support.
    pub vendor: u8,
    /// The hardware's detail.
    pub hardware: u8,
    /// Which table of hardware details that is from.
    pub hardware_type: u8,
}

impl Failure {
    /// A failure without further detail.
    pub const fn new(syndrome: Syndrome) -> Self {
        Self {
            syndrome,
            vendor: 0,
            hardware: 0,
            hardware_type: 0,
        }
    }
}

/// What completed, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// A send request succeeded, and with it every earlier one of its queue.
    Requester {
        /// Byte 56: its [`Opcode`](crate::Opcode), as a number.
        opcode: u8,
        /// Bytes 44-47 (`byte_cnt`): what a read or an atomic brought; for
        /// others not to be relied on.
        bytes: u32,
        /// Bytes 48-55: the NIC's clock.
        timestamp: u64,
    },
    /// A receive request was used.
    Responder {
        /// By what; immediate data are bytes 36-39 (`imm_inval_pkey`).
        kind: ReceiveKind,
        /// Bytes 44-47: length of the message.
        bytes: u32,
        /// Bytes 48-55: the NIC's clock.
        timestamp: u64,
    },
    /// A send request failed; its queue is in error.
    RequesterError {
        /// Byte 56: its opcode.
        opcode: u8,
        /// Why.
        failure: Failure,
    },
    /// A receive request failed; its queue is in error.
    ResponderError {
        /// Why.
        failure: Failure,
    },
    /// Nothing yet: what software fills a new ring with.
    Invalid,
}

/// A completion (rdma-core `mlx5_cqe64` and `mlx5_err_cqe`).
///
/// | bytes | what |
/// |---|---|
/// | 36-39, 44-55 | see [`Entry`] and [`Failure`] |
/// | 56 | opcode of the request, for those of a send queue |
/// | 57-59 | queue number, big-endian |
/// | 60-61 | `wqe_counter`, big-endian: index of the request's first block, low 16 bits |
/// | 62 | signature: written as 0, not read |
/// | 63 | `op_own`: opcode in bits 4-7, format in 2-3 (0 here), solicited event in 1, owner in 0 |
///
/// The rest is written as 0 and not read. Byte 63 must become visible last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Completion {
    /// The queue pair's number.
    pub queue: QueueNumber,
    /// Which request: low 16 bits of the index of its first block. For a
    /// successful unsignalled run it is the last, signalled one.
    pub wqe_counter: u16,
    /// The lap's parity: see [`QueueIndex::owner`].
    pub owner: bool,
    /// What completed.
    pub entry: Entry,
}

impl Completion {
    /// Last byte of an entry that no NIC has written: opcode 15, owner 1. A
    /// new ring is filled with it, so that the first lap (owner 0) is told
    /// apart. GPUNetIO uses the same value.
    pub const UNWRITTEN: u8 = code::INVALID << 4 | 1;

    /// The completion's bytes.
    pub fn encode(&self) -> [u8; COMPLETION_BYTES] {
        let mut bytes = [0; COMPLETION_BYTES];
        let (opcode, wqe_opcode) = match self.entry {
            Entry::Requester {
                opcode,
                bytes: count,
                timestamp,
            } => {
                put_success(&mut bytes, count, timestamp);
                (code::REQUESTER, opcode)
            }
            Entry::Responder {
                kind,
                bytes: count,
                timestamp,
            } => {
                put_success(&mut bytes, count, timestamp);
                let (opcode, immediate) = match kind {
                    ReceiveKind::WriteImmediate { immediate } => (code::WRITE_IMMEDIATE, immediate),
                    ReceiveKind::Send => (code::SEND, 0),
                    ReceiveKind::SendImmediate { immediate } => (code::SEND_IMMEDIATE, immediate),
                };
                bytes[36..40].copy_from_slice(&immediate.to_be_bytes());
                (opcode, 0)
            }
            Entry::RequesterError { opcode, failure } => {
                put_failure(&mut bytes, failure);
                (code::REQUESTER_ERROR, opcode)
            }
            Entry::ResponderError { failure } => {
                put_failure(&mut bytes, failure);
                (code::RESPONDER_ERROR, 0)
            }
            Entry::Invalid => (code::INVALID, 0),
        };
        let word = u32::from(wqe_opcode) << 24 | self.queue.get();
        bytes[56..60].copy_from_slice(&word.to_be_bytes());
        bytes[60..62].copy_from_slice(&self.wqe_counter.to_be_bytes());
        bytes[63] = opcode << 4 | u8::from(self.owner);
        bytes
    }

    /// Reads a completion, whoever owns it.
    ///
    /// # Errors
    /// [`Error::UnknownCompletion`], [`Error::CompletionFormat`].
    pub fn decode(bytes: &[u8; COMPLETION_BYTES]) -> Result<Self, Error> {
        let op_own = bytes[63];
        let opcode = op_own >> 4;
        let format = op_own >> 2 & 3;
        if format != 0 && opcode != code::INVALID {
            return Err(Error::CompletionFormat { format });
        }
        let immediate = be32(bytes, 36);
        let responder = |kind| Entry::Responder {
            kind,
            bytes: be32(bytes, 44),
            timestamp: be64(bytes, 48),
        };
        let entry = match opcode {
            code::REQUESTER => Entry::Requester {
                opcode: bytes[56],
                bytes: be32(bytes, 44),
                timestamp: be64(bytes, 48),
            },
            code::WRITE_IMMEDIATE => responder(ReceiveKind::WriteImmediate { immediate }),
            code::SEND => responder(ReceiveKind::Send),
            code::SEND_IMMEDIATE => responder(ReceiveKind::SendImmediate { immediate }),
            code::REQUESTER_ERROR => Entry::RequesterError {
                opcode: bytes[56],
                failure: get_failure(bytes),
            },
            code::RESPONDER_ERROR => Entry::ResponderError {
                failure: get_failure(bytes),
            },
            code::INVALID => Entry::Invalid,
            _ => return Err(Error::UnknownCompletion { opcode }),
        };
        Ok(Self {
            queue: QueueNumber::from_lower(be32(bytes, 56)),
            wqe_counter: u16::from_be_bytes([bytes[60], bytes[61]]),
            owner: op_own & 1 != 0,
            entry,
        })
    }

    /// Reads completion number `number` of a ring, if the NIC has written it:
    /// `None` while the entry is unwritten or still holds the completion of an
    /// earlier lap.
    ///
    /// A caller that polls memory reads byte 63 first and the rest after an
    /// acquire; a copy taken otherwise may be torn.
    ///
    /// # Errors
    /// Those of [`decode`](Self::decode), for an entry that the NIC has
    /// written.
    pub fn poll(
        bytes: &[u8; COMPLETION_BYTES],
        number: QueueIndex,
        ring: RingSize,
    ) -> Result<Option<Self>, Error> {
        let op_own = bytes[63];
        if op_own >> 4 == code::INVALID || (op_own & 1 != 0) != number.owner(ring) {
            return Ok(None);
        }
        Self::decode(bytes).map(Some)
    }

    /// Why it failed, if it did.
    pub const fn failure(&self) -> Option<Failure> {
        match self.entry {
            Entry::RequesterError { failure, .. } | Entry::ResponderError { failure } => {
                Some(failure)
            }
            _ => None,
        }
    }
}

fn put_success(bytes: &mut [u8; COMPLETION_BYTES], count: u32, timestamp: u64) {
    bytes[44..48].copy_from_slice(&count.to_be_bytes());
    bytes[48..56].copy_from_slice(&timestamp.to_be_bytes());
}

fn put_failure(bytes: &mut [u8; COMPLETION_BYTES], failure: Failure) {
    let Failure {
        syndrome,
        vendor,
        hardware,
        hardware_type,
    } = failure;
    bytes[52..56].copy_from_slice(&[hardware, hardware_type, vendor, syndrome.0]);
}

fn get_failure(bytes: &[u8; COMPLETION_BYTES]) -> Failure {
    Failure {
        hardware: bytes[52],
        hardware_type: bytes[53],
        vendor: bytes[54],
        syndrome: Syndrome(bytes[55]),
    }
}

fn be32(bytes: &[u8; COMPLETION_BYTES], at: usize) -> u32 {
    u32::from_be_bytes(core::array::from_fn(|i| bytes[at + i]))
}

fn be64(bytes: &[u8; COMPLETION_BYTES], at: usize) -> u64 {
    u64::from_be_bytes(core::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_completion() {
        bolero::check!()
            .with_type::<([u8; 32], [u8; 32])>()
            .for_each(|(first, second)| {
                let mut bytes = [0; COMPLETION_BYTES];
                bytes[..32].copy_from_slice(first);
                bytes[32..].copy_from_slice(second);
                let Ok(completion) = Completion::decode(&bytes) else {
                    return;
                };
                let again = completion.encode();
                assert_eq!(Completion::decode(&again), Ok(completion));
                // What is written back was read from the same place.
                for (i, (new, old)) in again.iter().zip(&bytes).enumerate() {
                    assert!(new & !old == 0, "byte {i} gained bits");
                }
                let ring = RingSize::new(64).unwrap();
                for number in [QueueIndex::new(0), QueueIndex::new(64)] {
                    let polled = Completion::poll(&bytes, number, ring).unwrap();
                    assert!(polled.is_none_or(|polled| polled == completion));
                }
            });
    }

    #[test]
    fn a_new_ring_is_the_nics_on_every_lap_until_written() {
        let ring = RingSize::new(4).unwrap();
        let mut slots = [[0u8; COMPLETION_BYTES]; 4];
        for slot in &mut slots {
            slot[63] = Completion::UNWRITTEN;
        }
        for count in (0..12)
            .chain((1 << 16) - 4..(1 << 16) + 4)
            .chain((1 << 32) - 4..(1 << 32) + 4)
        {
            let number = QueueIndex::new(count);
            let slot = &mut slots[number.slot(ring) as usize];
            assert_eq!(Completion::poll(slot, number, ring), Ok(None), "{count}");
            let completion = Completion {
                queue: QueueNumber::MAX,
                wqe_counter: number.low16(),
                owner: number.owner(ring),
                entry: Entry::Requester {
                    opcode: 8,
                    bytes: 0,
                    timestamp: count,
                },
            };
            *slot = completion.encode();
            assert_eq!(Completion::poll(slot, number, ring), Ok(Some(completion)));
            let next_lap = number.advance(4);
            assert_eq!(Completion::poll(slot, next_lap, ring), Ok(None));
        }
    }
}
