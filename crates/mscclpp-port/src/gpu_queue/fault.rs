// SPDX-License-Identifier: MIT
//! Why a queue failed, read from what its kernels and its NIC left in memory.

use mlx5_queue::{COMPLETION_BYTES, Completion, Entry, Opcode, QueueIndex, RingSize, Syndrome};
use mscclpp_device::abi::{QueueFailureCause, StatusWord};

use super::provider::QueueFault;

/// What the error word of a queue's state says, with its index. Zero says nothing.
pub(super) fn of_state(error: u64, index: u64) -> Option<QueueFault> {
    if error == 0 {
        return None;
    }
    let [syndrome, vendor, opcode, cause] = StatusWord::from_bits(error).detail.to_le_bytes();
    if cause == QueueFailureCause::NotExclusive as u8 {
        return Some(QueueFault::NotExclusive);
    }
    Some(QueueFault::Request {
        index,
        opcode: Opcode::try_from(opcode).ok(),
        syndrome: Syndrome(syndrome),
        vendor,
    })
}

/// The first error among completions that no kernel has consumed. `consumed` and `completed` are the
/// counts in the queue's state; `read` copies an entry of the ring.
pub(super) fn of_completions(
    ring: RingSize,
    consumed: u64,
    completed: u64,
    read: impl Fn(u32) -> [u8; COMPLETION_BYTES],
) -> Option<QueueFault> {
    let mut position = QueueIndex::new(completed);
    for number in (0..u64::from(ring.entries())).map(|i| QueueIndex::new(consumed).advance(i)) {
        let entry = Completion::poll(&read(number.slot(ring)), number, ring).ok()??;
        position = position.at_or_after(entry.wqe_counter);
        if let Entry::RequesterError { opcode, failure } = entry.entry {
            return Some(QueueFault::Request {
                index: position.get(),
                opcode: Opcode::try_from(opcode).ok(),
                syndrome: failure.syndrome,
                vendor: failure.vendor,
            });
        }
        position = position.advance(1);
    }
    None
}

#[cfg(test)]
mod tests {
    use mlx5_queue::{Failure, QueueNumber};
    use mscclpp_device::abi::Status;

    use super::*;

    fn entry(number: u64, ring: RingSize, index: u64, failure: Option<Syndrome>) -> [u8; 64] {
        Completion {
            queue: QueueNumber::new(5).unwrap(),
            wqe_counter: index as u16,
            owner: QueueIndex::new(number).owner(ring),
            entry: match failure {
                None => Entry::Requester {
                    opcode: Opcode::Write as u8,
                    bytes: 0,
                    timestamp: 0,
                },
                Some(syndrome) => Entry::RequesterError {
                    opcode: Opcode::FetchAdd as u8,
                    failure: Failure::new(syndrome),
                },
            },
        }
        .encode()
    }

    #[test]
    fn gpunetio_the_first_error_among_completions_is_found_across_wraps() {
        let ring = RingSize::new(8).unwrap();
        for consumed in [0, 5, 0xfffe, (1 << 32) - 1] {
            // Unsignalled requests in between: three requests a completion.
            let completed = consumed * 3;
            let mut slots = [[0xf1; 64]; 8];
            for i in 0..2 {
                let number = consumed + i;
                slots[(number % 8) as usize] = entry(number, ring, completed + i * 3 + 2, None);
            }
            let read = |slot: u32| slots[slot as usize];
            assert_eq!(of_completions(ring, consumed, completed, read), None);
            let bad = consumed + 2;
            let syndrome = Syndrome::REMOTE_ACCESS;
            slots[(bad % 8) as usize] = entry(bad, ring, completed + 7, Some(syndrome));
            let next = consumed + 3;
            let flushed = Syndrome::FLUSHED;
            slots[(next % 8) as usize] = entry(next, ring, completed + 8, Some(flushed));
            let read = |slot: u32| slots[slot as usize];
            let fault = QueueFault::Request {
                index: completed + 7,
                opcode: Some(Opcode::FetchAdd),
                syndrome,
                vendor: 0,
            };
            assert_eq!(of_completions(ring, consumed, completed, read), Some(fault));
        }
    }

    #[test]
    fn gpunetio_the_error_word_of_a_queue_is_taken_apart() {
        assert_eq!(of_state(0, 9), None);
        let word = |detail| StatusWord::new(Status::QueueError, detail).to_bits();
        assert_eq!(of_state(word(1 << 24), 9), Some(QueueFault::NotExclusive));
        let fault = QueueFault::Request {
            index: 9,
            opcode: Some(Opcode::Write),
            syndrome: Syndrome::TRANSPORT_RETRY_EXCEEDED,
            vendor: 0x81,
        };
        assert_eq!(of_state(word(0x15 | 0x81 << 8 | 8 << 16), 9), Some(fault));
    }
}
