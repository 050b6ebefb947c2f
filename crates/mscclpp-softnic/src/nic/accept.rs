// SPDX-License-Identifier: MIT
//! What the responder checks before it takes a packet.

use super::common::Common;
use super::packet::{Body, Packet, Part, Piece, Refusal};
use super::queue::QueuePair;
use super::receive_queue::Receive;
use super::regions::Need;
use super::responder::{Inbound, Operation};
use crate::region::WriteOrdering;

impl QueuePair {
    /// A packet that has been taken before: its answer may have been lost.
    pub(super) fn repeat(&mut self, c: &mut Common, packet: Packet) {
        let number = packet.number;
        let busy = |operation: &Operation| match operation.work {
            // The answer is on its way, or what of it was lost will be asked
            // for again when the rest has come.
            Inbound::Read { packets, .. } => {
                (operation.number..operation.number + packets).contains(&number)
            }
            _ => operation.number == number,
        };
        if self.responder.operations.iter().any(busy) {
            return;
        }
        match packet.body {
            // It asks for no more than it may at a time, now and then again.
            Body::Read { .. } if self.has_all_results() => c.counters.packets_lost += 1,
            Body::Read {
                key,
                address,
                length,
                packets,
            } => {
                let piece = Piece {
                    key,
                    address,
                    length,
                };
                let work = Inbound::Read {
                    piece,
                    packets,
                    sent: false,
                };
                // It may follow operations with higher numbers: it
                // acknowledges nothing.
                self.responder.push(number, 0, work);
            }
            Body::Atomic { .. } => {
                let replays = &self.responder.replays;
                let found = replays.iter().find(|(replayed, _)| *replayed == number);
                if let Some((_, old)) = found.copied() {
                    self.answer(c, number, Body::AtomicResponse { old });
                }
            }
            _ if self.responder.answered > 0 => {
                let last = self.responder.answered - 1;
                self.answer(c, last, Body::Acknowledge);
            }
            _ => {}
        }
    }

    /// Whether as many reads and atomics as the peer may ask for at a time have no answer yet.
    fn has_all_results(&self) -> bool {
        let limit = self.path.map_or(0, |path| path.max_outstanding_reads);
        self.responder.results() >= usize::from(limit)
    }

    /// The packet that was expected.
    pub(super) fn accept(&mut self, c: &mut Common, packet: Packet) {
        let number = packet.number;
        match self.check_request(c, packet) {
            Ok(Some((packets, work))) => {
                self.responder.expected += packets;
                let id = self.responder.push(number, packets, work);
                self.fetch_receive(c, id);
            }
            // Held until the receive queue's record has been read.
            Ok(None) => {}
            Err(refusal) => {
                self.responder.refusing = true;
                self.responder.push(number, 0, Inbound::Refuse(refusal));
            }
        }
    }

    fn check_request(
        &mut self,
        c: &mut Common,
        packet: Packet,
    ) -> Result<Option<(u64, Inbound)>, Refusal> {
        let capabilities = &c.config.capabilities;
        let domain = self.domain;
        let fits = |part: &Part| {
            let end = part.offset.checked_add(part.length);
            let whole = end.is_some_and(|end| end <= part.total);
            whole && part.packets > 0 && part.length <= part.packets.saturating_mul(self.mtu())
        };
        match packet.body {
            Body::Write {
                key,
                address,
                part,
                immediate,
                payload,
            } => {
                if !self.rights.remote_write || !fits(&part) {
                    return Err(Refusal::InvalidRequest);
                }
                let need = Need::RemoteWrite;
                let (place, ordering) = c
                    .regions
                    .check(domain, key, address, part.total, need)
                    .map_err(|_| Refusal::Access)?;
                let mut last = None;
                if let Some(value) = immediate.filter(|_| part.is_last()) {
                    let body = Body::Write {
                        key,
                        address,
                        part,
                        immediate,
                        payload: payload.clone(),
                    };
                    let Some(index) = self.take_receive(c, Packet { body, ..packet }) else {
                        return Ok(None);
                    };
                    let (immediate, bytes) = (Some(value), part.total);
                    last = Some(Receive {
                        index,
                        immediate,
                        bytes,
                        segments: None,
                    });
                }
                let to = place.offset(part.offset);
                let strict = ordering == WriteOrdering::Strict;
                let length = part.length;
                let work = Inbound::Write {
                    to,
                    length,
                    strict,
                    payload,
                    last,
                };
                Ok(Some((part.packets, work)))
            }
            Body::Send {
                part,
                immediate,
                payload,
            } => {
                if !fits(&part) {
                    return Err(Refusal::InvalidRequest);
                }
                let mut receive = None;
                if part.is_first() {
                    let body = Body::Send {
                        part,
                        immediate,
                        payload: payload.clone(),
                    };
                    let Some(index) = self.take_receive(c, Packet { body, ..packet }) else {
                        return Ok(None);
                    };
                    let bytes = part.total;
                    receive = Some(Receive {
                        index,
                        immediate,
                        bytes,
                        segments: None,
                    });
                }
                Ok(Some((
                    part.packets,
                    Inbound::Send {
                        part,
                        payload,
                        receive,
                        immediate,
                    },
                )))
            }
            Body::Read {
                key,
                address,
                length,
                packets,
            } => {
                let longest = packets.saturating_mul(self.mtu());
                if !self.rights.remote_read
                    || length > longest
                    || packets == 0
                    || self.has_all_results()
                {
                    return Err(Refusal::InvalidRequest);
                }
                c.regions
                    .check(domain, key, address, length, Need::RemoteRead)
                    .map_err(|_| Refusal::Access)?;
                let piece = Piece {
                    key,
                    address,
                    length,
                };
                Ok(Some((
                    packets,
                    Inbound::Read {
                        piece,
                        packets,
                        sent: false,
                    },
                )))
            }
            Body::Atomic {
                key,
                address,
                operation,
            } => {
                if !self.rights.remote_atomic
                    || !capabilities.atomics
                    || !address.is_multiple_of(8)
                    || self.has_all_results()
                {
                    return Err(Refusal::InvalidRequest);
                }
                let (to, _) = c
                    .regions
                    .check(domain, key, address, 8, Need::RemoteAtomic)
                    .map_err(|_| Refusal::Access)?;
                Ok(Some((
                    1,
                    Inbound::Atomic {
                        to,
                        operation,
                        old: None,
                    },
                )))
            }
            _ => Err(Refusal::InvalidRequest),
        }
    }
}
