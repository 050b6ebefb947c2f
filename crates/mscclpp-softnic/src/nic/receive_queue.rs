// SPDX-License-Identifier: MIT
//! The receive queue: where messages go, and what is told of them.

use mlx5_queue::{
    DataSegment, DoorbellRecord, Entry, Failure, MemoryKey, QueueIndex, ReceiveKind, RingSize,
    SEGMENT_BYTES, Syndrome,
};

use super::access::{Place, QueueLife, SpaceId, Then};
use super::common::Common;
use super::landing::{Places, Source, land};
use super::packet::{Packet, Part, Payload, Piece, Pieces, Refusal, cut};
use super::queue::QueuePair;
use super::regions::Need;
use super::request::length;
use super::responder::Inbound;
use crate::memory::Bytes;
use crate::queue_config::State;

/// A ring of receive requests.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    base: Place,
    ring: RingSize,
    /// Segments of each request.
    segments: u32,
    record: Place,
    pub(crate) completions: u32,
    /// One past the last request that the record has announced.
    posted: QueueIndex,
    /// One past the last request that a message has been given.
    used: QueueIndex,
    reading: bool,
}

impl ReceiveQueue {
    pub(crate) fn new(
        base: Place,
        ring: RingSize,
        segments: u32,
        record: Place,
        completions: u32,
    ) -> Self {
        let (posted, used) = (QueueIndex::ZERO, QueueIndex::ZERO);
        Self {
            base,
            ring,
            segments,
            record,
            completions,
            posted,
            used,
            reading: false,
        }
    }

    pub(crate) fn reset(&mut self) {
        *self = Self::new(
            self.base,
            self.ring,
            self.segments,
            self.record,
            self.completions,
        );
    }

    /// Looks how many requests there are.
    pub(crate) fn read_record(&mut self, c: &mut Common, queue: QueueLife) {
        if !self.reading {
            self.reading = true;
            let place = self.record.offset(DoorbellRecord::RECEIVE_OFFSET as u64);
            c.accesses.read(place, 4, Then::ReceiveRecord { queue });
        }
    }

    fn take(&mut self) -> Option<QueueIndex> {
        if self.used == self.posted {
            return None;
        }
        let index = self.used;
        self.used = index.advance(1);
        Some(index)
    }

    fn place(&self, slot: u32) -> Place {
        let stride = u64::from(self.segments) * SEGMENT_BYTES as u64;
        self.base.offset(u64::from(slot) * stride)
    }
}

/// The receive request that a message uses.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) index: QueueIndex,
    pub(super) immediate: Option<u32>,
    pub(super) bytes: u64,
    /// The request has been read.
    pub(super) segments: Option<Pieces>,
}

/// A receive request to complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveDone {
    counter: u16,
    kind: ReceiveKind,
    bytes: u32,
}

/// A message that is being received.
#[derive(Debug)]
pub(super) struct Message {
    counter: u16,
    segments: Pieces,
}

impl Message {
    fn new(receive: Receive) -> Self {
        let segments = receive.segments.unwrap_or_default();
        Self {
            counter: receive.index.low16(),
            segments,
        }
    }

    /// Where a part of the message goes.
    fn target(&self, c: &Common, domain: u32, part: Part) -> Result<Places, (Syndrome, Refusal)> {
        if part.total > length(&self.segments) {
            return Err((Syndrome::LOCAL_LENGTH, Refusal::InvalidRequest));
        }
        let mut places = Places::new();
        for piece in cut(&self.segments, part.offset, part.length) {
            let Piece {
                key,
                address,
                length,
            } = piece;
            let (place, _) = c
                .regions
                .check(domain, key, address, length, Need::LocalWrite)
                .map_err(|_| (Syndrome::LOCAL_PROTECTION, Refusal::Operation))?;
            places.push((place, length));
        }
        Ok(places)
    }
}

impl Receive {
    pub(super) fn done(&self) -> ReceiveDone {
        let kind = match self.immediate {
            Some(immediate) => ReceiveKind::WriteImmediate { immediate },
            None => ReceiveKind::Send,
        };
        ReceiveDone {
            counter: self.index.low16(),
            kind,
            bytes: self.bytes as u32,
        }
    }
}

impl QueuePair {
    /// Gives `packet` a receive request. `None`: it is not known yet whether
    /// there is one, and the packet is held.
    pub(super) fn take_receive(&mut self, c: &mut Common, packet: Packet) -> Option<QueueIndex> {
        let found = self.receive.as_mut().and_then(ReceiveQueue::take);
        if found.is_none() {
            self.responder.held.push_front(packet);
            match &mut self.receive {
                Some(receive) => receive.read_record(c, self.life),
                None => self.not_ready(),
            }
        }
        found
    }

    /// Tells the peer to try again later, and drops what has come since.
    fn not_ready(&mut self) {
        let delay = self
            .path
            .map_or_else(Default::default, |path| path.receiver_not_ready);
        let microseconds = u32::try_from(delay.as_micros()).unwrap_or(u32::MAX);
        self.responder.held.clear();
        let refusal = Refusal::NotReady { microseconds };
        let number = self.responder.expected;
        // What follows is out of sequence, and the peer knows why.
        self.responder.told = true;
        self.responder.push_note(number, refusal);
    }

    /// The receive word of the record has been read.
    pub(crate) fn on_receive_record(&mut self, c: &mut Common, bytes: &Bytes) {
        let Some(receive) = &mut self.receive else {
            return;
        };
        receive.reading = false;
        let Some(word) = bytes.first_chunk::<4>() else {
            return;
        };
        let posted = receive
            .posted
            .at_or_after(DoorbellRecord::decode_word(*word));
        if posted.distance_from(receive.used) <= u64::from(receive.ring.entries()) {
            receive.posted = posted;
        }
        if self.state == State::Error {
            self.flush_receives(c);
            return;
        }
        if receive.used == receive.posted {
            if !self.responder.held.is_empty() {
                self.not_ready();
                self.pump_operations(c);
            }
            return;
        }
        for packet in std::mem::take(&mut self.responder.held) {
            self.on_request(c, packet);
        }
    }

    fn flush_receives(&mut self, c: &mut Common) {
        while let Some(index) = self.receive.as_mut().and_then(ReceiveQueue::take) {
            self.fail_receive(c, index.low16(), Syndrome::FLUSHED);
        }
    }

    /// Reads the receive request of operation `id`, if it has one.
    pub(super) fn fetch_receive(&mut self, c: &mut Common, id: u64) {
        let life = self.life();
        let Some(queue) = &self.receive else { return };
        let Some(operation) = self.responder.find(id) else {
            return;
        };
        if let Inbound::Write {
            last: Some(receive),
            ..
        }
        | Inbound::Send {
            receive: Some(receive),
            ..
        } = &operation.work
        {
            let place = queue.place(receive.index.slot(queue.ring));
            let bytes = queue.segments as usize * SEGMENT_BYTES;
            c.accesses.read(
                place,
                bytes,
                Then::ReceiveEntry {
                    queue: life,
                    operation: id,
                },
            );
        }
    }

    pub(crate) fn on_receive_entry(&mut self, c: &mut Common, id: u64, bytes: &Bytes) {
        let Some(operation) = self.responder.find(id) else {
            return;
        };
        if let Inbound::Write {
            last: Some(receive),
            ..
        }
        | Inbound::Send {
            receive: Some(receive),
            ..
        } = &mut operation.work
        {
            let (segments, _) = bytes.as_chunks::<SEGMENT_BYTES>();
            let pieces = segments
                .iter()
                .map_while(DataSegment::decode)
                .take_while(|segment| segment.key() != MemoryKey::INVALID)
                .map(|segment| Piece {
                    key: segment.key(),
                    address: segment.address(),
                    length: u64::from(segment.length()),
                });
            receive.segments = Some(pieces.collect());
            self.pump_operations(c);
        }
    }

    pub(super) fn start_send(&mut self, c: &mut Common, at: usize, then: Then) {
        let from = self.peer(c);
        let Some(operation) = self.responder.operations.get_mut(at) else {
            return;
        };
        let Inbound::Send {
            part,
            payload,
            receive,
            immediate,
        } = &mut operation.work
        else {
            return;
        };
        let (part, immediate) = (*part, *immediate);
        let payload = std::mem::replace(payload, Payload::Pieces(Pieces::new()));
        if let Some(receive) = receive.take() {
            self.responder.message = Some(Message::new(receive));
        }
        operation.work = Inbound::Finished(None);
        let (target, counter) = match &self.responder.message {
            Some(message) => (message.target(c, self.domain, part), message.counter),
            // A middle without a beginning: the peer is not one of ours.
            None => return self.refuse(at, Refusal::InvalidRequest),
        };
        let places: Places = match target {
            Ok(places) => places,
            Err((syndrome, refusal)) => {
                self.fail_receive(c, counter, syndrome);
                return self.refuse(at, refusal);
            }
        };
        let space = places
            .first()
            .map_or(SpaceId::HOST, |(place, _)| place.space);
        let Some(source) = Source::of(c, from, space, payload) else {
            return self.refuse(at, Refusal::Operation);
        };
        if part.is_last() {
            let kind = match immediate {
                Some(immediate) => ReceiveKind::SendImmediate { immediate },
                None => ReceiveKind::Send,
            };
            operation.work = Inbound::Finished(Some(ReceiveDone {
                counter,
                kind,
                bytes: part.total as u32,
            }));
            self.responder.message = None;
        }
        c.counters.bytes_landed += part.length;
        let missing = land(c, source, &places, then);
        self.landing(at, missing, None);
    }

    pub(super) fn complete_receive(&mut self, c: &mut Common, done: ReceiveDone) {
        let Some(receive) = &self.receive else { return };
        let ReceiveDone {
            counter,
            kind,
            bytes,
        } = done;
        let entry = Entry::Responder {
            kind,
            bytes,
            timestamp: c.now.nanos(),
        };
        c.complete(receive.completions, self.life.queue, counter, entry);
    }

    fn fail_receive(&mut self, c: &mut Common, counter: u16, syndrome: Syndrome) {
        let Some(receive) = &self.receive else { return };
        let entry = Entry::ResponderError {
            failure: Failure::new(syndrome),
        };
        c.complete(receive.completions, self.life.queue, counter, entry);
        if syndrome != Syndrome::FLUSHED {
            self.failure.get_or_insert(syndrome);
        }
    }
}
