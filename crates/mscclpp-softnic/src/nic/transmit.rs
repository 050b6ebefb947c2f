// SPDX-License-Identifier: MIT
//! Requests under way become packets.

use super::access::Then;
use super::common::Common;
use super::packet::{Body, MAX_PIECES, Packet, Part, Payload, Piece, Pieces, cut};
use super::queue::QueuePair;
use super::regions::Need;
use super::request::{Source, Work};
use super::requester::{OUTSTANDING, Outstanding};
use crate::capability::DeviceAddress;
use crate::capability::Mtu;
use crate::config::Acknowledge;
use crate::memory::Bytes;
use mlx5_queue::Syndrome;

/// Bytes sent and not acknowledged.
const WINDOW_BYTES: u64 = 1 << 20;
/// Packets sent and not acknowledged, whatever their size.
pub(super) const MOST_UNACKNOWLEDGED: u64 = WINDOW_BYTES / Mtu::Bytes256.bytes();
const _: () = assert!(MOST_UNACKNOWLEDGED >= OUTSTANDING as u64);
/// Packets that travel together, in bytes.
const TRAIN_BYTES: u64 = 1 << 16;
/// The same where the peer fetches the bytes itself: no more than the window.
pub(super) const LENT_BYTES: u64 = 1 << 20;

/// A packet whose bytes are being read.
#[derive(Debug)]
pub(super) struct Staged {
    id: u64,
    packet: Packet,
    missing: u32,
}

impl QueuePair {
    /// Sends packets until something says stop.
    pub(super) fn transmit(&mut self, c: &mut Common) {
        let Some(path) = self.path else { return };
        let mtu = path.mtu.bytes();
        let window = (WINDOW_BYTES / mtu).max(OUTSTANDING as u64);
        let train = if c.config.network.single_packets {
            mtu
        } else {
            TRAIN_BYTES.max(mtu)
        };
        let peer = path.remote.device;
        let own = peer == c.address;
        // This device reaches its own memory itself. Fetched when it lands, it could
        // not be acknowledged before: for that its bytes are read first.
        let local = own && c.config.acknowledge == Acknowledge::Landed;
        while self.requester.pause.is_none()
            && self.requester.next < self.requester.allocated
            && self.requester.next - self.requester.acknowledged < window
        {
            let requester = &mut self.requester;
            let number = requester.next;
            let Some(request) = requester.outstanding.get(requester.cursor) else {
                break;
            };
            if number >= request.end() {
                requester.cursor += 1;
                continue;
            }
            let offset = (number - request.first) * mtu;
            // What the peer fetches itself: only where it is told over the link.
            let lent =
                !own && source(request).is_some_and(|pieces| is_lent(c, self.domain, peer, pieces));
            let train = match lent && !c.config.network.single_packets {
                true => LENT_BYTES,
                false => train,
            };
            let length = train.min(request.length - offset);
            let packets = length.div_ceil(mtu).max(1);
            let part = Part {
                total: request.length,
                offset,
                length,
                packets,
            };
            let (body, pieces) = body(request, number, part, local || lent);
            requester.next = match request.request.has_result() {
                true => request.end(),
                false => number + packets,
            };
            requester.sent = requester.sent.max(requester.next);
            let packet = Packet {
                to: path.remote.queue,
                from: self.life.queue,
                number,
                body,
            };
            if local {
                c.send(path.remote.device, packet);
            } else {
                self.stage(c, packet, &pieces);
            }
        }
        self.send_staged(c);
        self.arm(c);
    }

    /// Reads the bytes of a packet that leaves the device.
    fn stage(&mut self, c: &mut Common, packet: Packet, pieces: &Pieces) {
        let id = self.requester.next_stage;
        self.requester.next_stage += 1;
        let mut offset = 0;
        let mut missing = 0;
        for piece in pieces {
            let Piece {
                key,
                address,
                length,
            } = *piece;
            let checked = c
                .regions
                .check(self.domain, key, address, length, Need::LocalRead);
            let Ok((place, _)) = checked else {
                // Deregistered since the request was checked.
                self.requester
                    .mark_failed(packet.number, Syndrome::LOCAL_PROTECTION);
                return;
            };
            let then = Then::Staged {
                queue: self.life,
                stage: id,
                offset,
            };
            c.accesses.read(place, length as usize, then);
            offset += length as u32;
            missing += 1;
        }
        self.requester.staged.push_back(Staged {
            id,
            packet,
            missing,
        });
    }

    /// Bytes of a staged packet have been read.
    pub(crate) fn on_staged(&mut self, c: &mut Common, stage: u64, offset: u32, bytes: &Bytes) {
        let staged = &mut self.requester.staged;
        let Some(found) = staged.iter_mut().find(|staged| staged.id == stage) else {
            return;
        };
        found.missing -= 1;
        if let Body::Write {
            payload: Payload::Bytes(all),
            ..
        }
        | Body::Send {
            payload: Payload::Bytes(all),
            ..
        } = &mut found.packet.body
        {
            let start = offset as usize;
            if let Some(room) = all.get_mut(start..start + bytes.len()) {
                room.copy_from_slice(bytes);
            }
        }
        self.send_staged(c);
    }

    fn send_staged(&mut self, c: &mut Common) {
        let Some(path) = self.path else { return };
        while self
            .requester
            .staged
            .front()
            .is_some_and(|staged| staged.missing == 0)
            && let Some(staged) = self.requester.staged.pop_front()
        {
            c.send(path.remote.device, staged.packet);
        }
    }
}

/// The registered memory that a request sends from.
fn source(request: &Outstanding) -> Option<&Pieces> {
    match &request.request.work {
        Work::Write {
            source: Source::Gather(pieces),
            ..
        }
        | Work::Send {
            source: Source::Gather(pieces),
            ..
        } => Some(pieces),
        _ => None,
    }
}

/// Whether `peer` reaches all of `pieces` itself. What it does not reach is
/// offered to it.
pub(super) fn is_lent(c: &mut Common, domain: u32, peer: DeviceAddress, pieces: &[Piece]) -> bool {
    let mut all = (1..=MAX_PIECES).contains(&pieces.len());
    for piece in pieces {
        let Piece {
            key,
            address,
            length,
        } = *piece;
        let need = Need::LocalRead;
        let Ok((place, _)) = c.regions.check(domain, key, address, length, need) else {
            return false;
        };
        all &= c.loans.lends(peer, key, place.space);
    }
    all
}

/// The body of a part of a request, and where its bytes are if they have to be
/// read first. `named`: the other end fetches them from where they are.
fn body(request: &Outstanding, number: u64, part: Part, named: bool) -> (Body, Pieces) {
    let payload = |source: &Source| match source {
        Source::Inline(data) => {
            let range = part.offset as usize..(part.offset + part.length) as usize;
            (
                Payload::Bytes(Bytes::from_slice(&data[range])),
                Pieces::new(),
            )
        }
        Source::Gather(pieces) if named => (
            Payload::Pieces(cut(pieces, part.offset, part.length)),
            Pieces::new(),
        ),
        Source::Gather(pieces) => {
            let room = Bytes::from_elem(0, part.length as usize);
            (Payload::Bytes(room), cut(pieces, part.offset, part.length))
        }
    };
    match &request.request.work {
        Work::Write {
            key,
            address,
            source,
            immediate,
        } => {
            let (payload, pieces) = payload(source);
            let (key, address, immediate) = (*key, *address, *immediate);
            (
                Body::Write {
                    key,
                    address,
                    part,
                    immediate,
                    payload,
                },
                pieces,
            )
        }
        Work::Send { source, immediate } => {
            let (payload, pieces) = payload(source);
            (
                Body::Send {
                    part,
                    immediate: *immediate,
                    payload,
                },
                pieces,
            )
        }
        Work::Read { key, address, .. } => {
            // Of an answer that stopped half way only the rest is asked for.
            let (key, address) = (*key, address.wrapping_add(part.offset));
            let length = request.length - part.offset;
            let packets = request.end() - number;
            (
                Body::Read {
                    key,
                    address,
                    length,
                    packets,
                },
                Pieces::new(),
            )
        }
        Work::Atomic {
            key,
            address,
            operation,
            ..
        } => {
            let (key, address, operation) = (*key, *address, *operation);
            (
                Body::Atomic {
                    key,
                    address,
                    operation,
                },
                Pieces::new(),
            )
        }
        // These have no packets.
        Work::Nothing | Work::Bad | Work::Drop { .. } => (Body::Acknowledge, Pieces::new()),
    }
}
