// SPDX-License-Identifier: MIT
//! Operations of the responder that answer with data: reads and atomics.

use super::access::{Place, Then, apply};
use super::common::Common;
use super::landing::store_time;
use super::packet::{Body, Part, Payload, Piece, Refusal, cut};
use super::queue::QueuePair;
use super::regions::Need;
use super::responder::Inbound;
use super::transmit::{LENT_BYTES, is_lent};
use crate::memory::Bytes;
use crate::observer::Seen;

/// Answers to atomics that are kept, should they be asked for again.
const REPLAYS: usize = 256;

/// Bytes of an answer that are read and sent at a time.
const PART_BYTES: u64 = 1 << 16;

pub(super) fn unlock(c: &mut Common, word: u64) {
    if let Some(at) = c.locked.iter().position(|locked| *locked == word) {
        c.locked.swap_remove(at);
    }
    c.unlocked |= !c.waiting.is_empty();
}

impl QueuePair {
    /// All earlier writes have landed: the bytes are as the reader may expect
    /// them.
    pub(super) fn start_read(&mut self, c: &mut Common, at: usize) {
        let (peer, domain) = (self.peer(c), self.domain);
        let local = peer == c.address;
        let Some(operation) = self.responder.operations.get_mut(at) else {
            return;
        };
        let Inbound::Read { piece, .. } = operation.work else {
            return;
        };
        let Piece {
            key,
            address,
            length,
        } = piece;
        let checked = c
            .regions
            .check(domain, key, address, length, Need::RemoteRead);
        match checked {
            Err(_) => self.refuse(at, Refusal::Access),
            // Sent when its turn to be answered comes: where the bytes are.
            Ok(_) if local || length == 0 || is_lent(c, domain, peer, &[piece]) => {
                operation.done = true;
            }
            Ok((place, _)) => {
                let id = operation.id;
                self.read_part(c, id, place, 0, length);
            }
        }
    }

    fn read_part(&mut self, c: &mut Common, id: u64, place: Place, offset: u64, total: u64) {
        let length = PART_BYTES.min(total - offset);
        let then = Then::AnswerRead {
            queue: self.life(),
            operation: id,
            offset,
        };
        c.accesses.read(place.offset(offset), length as usize, then);
    }

    /// Bytes of an answer to another device have been read.
    pub(crate) fn on_answer_read(
        &mut self,
        c: &mut Common,
        id: u64,
        offset: u64,
        bytes: Option<&Bytes>,
    ) {
        // What came before has landed, and is answered first.
        self.answer_done(c);
        let mtu = self.mtu();
        let Some(operation) = self.responder.find(id) else {
            return;
        };
        let number = operation.number;
        let Inbound::Read { piece, sent, .. } = &mut operation.work else {
            return;
        };
        let Piece {
            key,
            address,
            length: total,
        } = *piece;
        let Some(bytes) = bytes else {
            operation.work = Inbound::Refuse(Refusal::Operation);
            operation.packets = 0;
            operation.done = true;
            return self.pump_operations(c);
        };
        let length = bytes.len() as u64;
        let end = offset + length;
        *sent = end == total;
        operation.done = *sent;
        let packets = length.div_ceil(mtu).max(1);
        let part = Part {
            total,
            offset,
            length,
            packets,
        };
        let payload = Payload::Bytes(bytes.clone());
        self.answer(
            c,
            number + offset / mtu,
            Body::ReadResponse { part, payload },
        );
        if end < total {
            let checked = c
                .regions
                .check(self.domain, key, address, total, Need::RemoteRead);
            match (checked, self.responder.find(id)) {
                (Ok((place, _)), _) => self.read_part(c, id, place, end, total),
                (Err(_), Some(operation)) => {
                    operation.work = Inbound::Refuse(Refusal::Access);
                    operation.packets = 0;
                    operation.done = true;
                }
                (Err(_), None) => {}
            }
        }
        self.pump_operations(c);
    }

    /// The answer to a read of this device, or of one that the memory is lent
    /// to: where the bytes are.
    pub(super) fn answer_read(&mut self, c: &mut Common, number: u64, piece: Piece, packets: u64) {
        let total = piece.length;
        if total == 0 {
            let part = Part {
                total,
                offset: 0,
                length: 0,
                packets,
            };
            let payload = Payload::Bytes(Bytes::new());
            return self.answer(c, number, Body::ReadResponse { part, payload });
        }
        let mtu = self.mtu();
        let step = if c.config.network.single_packets {
            mtu
        } else if self.peer(c) == c.address {
            PART_BYTES.max(mtu)
        } else {
            LENT_BYTES
        };
        let mut offset = 0;
        while offset < total {
            let length = step.min(total - offset);
            let part = Part {
                total,
                offset,
                length,
                packets: length.div_ceil(mtu),
            };
            let payload = Payload::Pieces(cut(&[piece], offset, length));
            self.answer(
                c,
                number + offset / mtu,
                Body::ReadResponse { part, payload },
            );
            offset += length;
        }
    }

    /// The word of an atomic has been read.
    pub(crate) fn on_loaded(&mut self, c: &mut Common, id: u64, bytes: Option<&Bytes>) {
        let life = self.life();
        let Some(operation) = self.responder.find(id) else {
            return;
        };
        let Inbound::Atomic {
            to,
            operation: atomic,
            old,
        } = &mut operation.work
        else {
            return;
        };
        let Some(word) = bytes.and_then(|bytes| bytes.first_chunk::<8>()) else {
            let word = to.address;
            self.responder.locked = None;
            unlock(c, word);
            return self.on_landed(c, id, false);
        };
        let value = u64::from_ne_bytes(*word);
        *old = Some(value);
        let (to, new) = (*to, apply(*atomic, value));
        let due = store_time(c);
        c.watched.tell(|| Seen::Added {
            queue: life.queue,
            address: to.address,
            old: value,
        });
        let then = Then::Stored {
            queue: life,
            operation: id,
            old: value,
        };
        c.accesses
            .publish(due, to, Bytes::from_slice(&new.to_ne_bytes()), then);
    }

    /// The word of an atomic has been stored.
    pub(crate) fn on_stored(&mut self, c: &mut Common, id: u64, old: u64, ok: bool) {
        let Some(operation) = self.responder.find(id) else {
            return;
        };
        let number = operation.number;
        if let Some(word) = self.responder.locked.take() {
            unlock(c, word);
        }
        self.responder.replays.push_back((number, old));
        if self.responder.replays.len() > REPLAYS {
            self.responder.replays.pop_front();
        }
        self.on_landed(c, id, ok);
    }
}
