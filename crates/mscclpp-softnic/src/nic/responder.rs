// SPDX-License-Identifier: MIT
//! The receiving side: packets are taken in order, checked, carried out in
//! the order that the contract demands, and answered.

use std::collections::VecDeque;

use super::access::{Place, SpaceId, Then};
use super::common::Common;
use super::landing::{Source, is_in_order, land};
use super::packet::{AtomicOperation, Body, Packet, Part, Payload, Piece, Pieces, Refusal};
use super::queue::QueuePair;
use super::receive_queue::{Message, Receive, ReceiveDone};
use super::result::unlock;
use super::transmit::MOST_UNACKNOWLEDGED;
use crate::capability::DeviceAddress;
use crate::config::Acknowledge;
use crate::event::FailureCause;
use crate::queue_config::State;

/// How far packets may be beyond the oldest operation that is not done. A device sends no more than
/// [`MOST_UNACKNOWLEDGED`], and for as many is told that they are accepted before they are done.
/// What a peer sends beyond, which knows no such window, is lost.
pub(super) const REACH: u64 = 2 * MOST_UNACKNOWLEDGED;
/// Packets that wait while the receive queue's record is read.
pub(super) const MOST_HELD: u64 = MOST_UNACKNOWLEDGED;
/// Packets that wait for links, above which requests are not answered: some peer does not read, and
/// who asked may ask again.
pub(super) const MOST_ANSWERS: u64 = 1 << 18;

/// Something that a packet asked for.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) id: u64,
    pub(super) number: u64,
    /// Packets that it answers.
    pub(super) packets: u64,
    pub(super) work: Inbound,
    /// Accesses that it waits for.
    pub(super) missing: u32,
    pub(super) done: bool,
    /// Its payload is fetched from the sender's memory, which the sender may use
    /// again once it is acknowledged: that is never early.
    pub(super) borrows: bool,
}

#[derive(Debug)]
pub(super) enum Inbound {
    Write {
        to: Place,
        length: u64,
        strict: bool,
        payload: Payload,
        last: Option<Receive>,
    },
    Send {
        part: Part,
        payload: Payload,
        receive: Option<Receive>,
        immediate: Option<u32>,
    },
    Read {
        piece: Piece,
        packets: u64,
        sent: bool,
    },
    Atomic {
        to: Place,
        operation: AtomicOperation,
        old: Option<u64>,
    },
    /// Refused for good.
    Refuse(Refusal),
    /// Refused for now.
    Note(Refusal),
    /// Carried out: nothing is left to do but to answer.
    Finished(Option<ReceiveDone>),
}

#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// The packet that comes next.
    pub(crate) expected: u64,
    /// The requester has been told that it sent another.
    pub(super) told: bool,
    /// A request was refused for good: the queue goes into error when that has
    /// been said.
    pub(super) refusing: bool,
    pub(super) operations: VecDeque<Operation>,
    next_id: u64,
    /// Operations, from the front, that have been started.
    started: usize,
    /// Operations, from the front, that have been acknowledged.
    acknowledged: usize,
    /// Writes and atomics that have been started and have not landed.
    unlanded: u32,
    /// All of these have been submitted to this memory, which keeps the order
    /// of accesses.
    behind: Option<SpaceId>,
    /// Everything up to here has been acknowledged: one past the packet.
    pub(super) answered: u64,
    pub(super) replays: VecDeque<(u64, u64)>,
    /// Packets that wait until it is known whether there is a receive request.
    pub(super) held: VecDeque<Packet>,
    /// The message that is being received.
    pub(super) message: Option<Message>,
    /// A word that an atomic has locked.
    pub(super) locked: Option<u64>,
}

impl Responder {
    pub(crate) fn stop(&mut self, c: &mut Common) {
        if let Some(word) = self.locked.take() {
            unlock(c, word);
        }
        self.operations.clear();
        self.held.clear();
        self.message = None;
        self.started = 0;
        self.acknowledged = 0;
        self.unlanded = 0;
    }

    /// Has the peer told, in its turn, to try `number` again later.
    pub(super) fn push_note(&mut self, number: u64, refusal: Refusal) {
        self.push(number, 0, Inbound::Note(refusal));
    }

    pub(super) fn push(&mut self, number: u64, packets: u64, work: Inbound) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let borrows = matches!(
            work,
            Inbound::Write {
                payload: Payload::Pieces(_),
                ..
            } | Inbound::Send {
                payload: Payload::Pieces(_),
                ..
            }
        );
        self.operations.push_back(Operation {
            id,
            number,
            packets,
            work,
            missing: 0,
            done: false,
            borrows,
        });
        id
    }

    pub(super) fn find(&mut self, id: u64) -> Option<&mut Operation> {
        let first = self.operations.front()?.id;
        self.operations
            .get_mut(usize::try_from(id.checked_sub(first)?).ok()?)
    }

    /// Whether a peer that keeps to its window would not send this packet yet.
    fn is_beyond_reach(&self, number: u64) -> bool {
        let beyond = |oldest: &Operation| {
            let packets = match oldest.work {
                // Of one that is answered again the operation has none.
                Inbound::Read { packets, .. } => packets,
                _ => oldest.packets,
            };
            number >= oldest.number + packets + REACH
        };
        self.operations.front().is_some_and(beyond)
            || self.operations.len() as u64 >= REACH
            || self.held.len() as u64 >= MOST_HELD
    }

    /// Reads and atomics that have not been answered.
    pub(super) fn results(&self) -> usize {
        let results = |operation: &&Operation| {
            matches!(
                operation.work,
                Inbound::Read { .. } | Inbound::Atomic { .. }
            )
        };
        self.operations.iter().filter(results).count()
    }
}

impl QueuePair {
    /// A request of the peer.
    pub(crate) fn on_request(&mut self, c: &mut Common, packet: Packet) {
        if !matches!(self.state, State::ReadyToReceive | State::ReadyToSend)
            || self.responder.refusing
        {
            c.counters.packets_stray += 1;
            return;
        }
        if self.responder.is_beyond_reach(packet.number) {
            c.counters.packets_lost += 1;
            return;
        }
        if !self.responder.held.is_empty() {
            self.responder.held.push_back(packet);
            return;
        }
        let expected = self.responder.expected;
        if packet.number > expected
            || (packet.number < expected && packet.number + packet.body.packets() > expected)
        {
            // Something was lost, or a train was cut differently this time.
            if !self.responder.told {
                self.responder.told = true;
                self.answer(c, expected, Body::Refuse(Refusal::Sequence));
            }
            return;
        }
        self.responder.told = false;
        if packet.number < expected {
            self.repeat(c, packet);
        } else {
            self.accept(c, packet);
        }
        self.pump_operations(c);
    }

    /// The device at the other end; this one, where there is none.
    pub(super) fn peer(&self, c: &Common) -> DeviceAddress {
        self.path.map_or(c.address, |path| path.remote.device)
    }

    pub(super) fn answer(&mut self, c: &mut Common, number: u64, body: Body) {
        let Some(path) = self.path else { return };
        if c.network.waiting() as u64 >= MOST_ANSWERS {
            c.counters.packets_lost += 1;
            return;
        }
        let packet = Packet {
            to: path.remote.queue,
            from: self.number(),
            number,
            body,
        };
        c.send(path.remote.device, packet);
    }

    /// Starts operations, in order, as far as the contract lets them; answers
    /// those that are done.
    pub(super) fn pump_operations(&mut self, c: &mut Common) {
        while let Some(operation) = self.responder.operations.get(self.responder.started)
            && self.may_start(c, operation)
        {
            let at = self.responder.started;
            self.responder.started += 1;
            self.start_operation(c, at);
        }
        self.answer_done(c);
    }

    fn may_start(&self, c: &mut Common, operation: &Operation) -> bool {
        let landed = self.responder.unlanded == 0;
        // What is submitted behind them acts when they have.
        let lands = |to: &Place| landed || self.responder.behind == Some(to.space);
        match &operation.work {
            Inbound::Write {
                to, strict, last, ..
            } => {
                (lands(to) || !strict)
                    && last
                        .as_ref()
                        .is_none_or(|receive| receive.segments.is_some())
            }
            Inbound::Send { receive, .. } => receive
                .as_ref()
                .is_none_or(|receive| receive.segments.is_some()),
            Inbound::Read { .. } | Inbound::Refuse(_) | Inbound::Note(_) | Inbound::Finished(_) => {
                landed
            }
            Inbound::Atomic { to, .. } => {
                let (landed, locked) = (lands(to), c.locked.contains(&to.address));
                if landed && locked && !c.waiting.contains(&self.number()) {
                    c.waiting.push(self.number());
                }
                landed && !locked
            }
        }
    }

    fn start_operation(&mut self, c: &mut Common, at: usize) {
        let (life, from) = (self.life(), self.peer(c));
        let Some(operation) = self.responder.operations.get_mut(at) else {
            return;
        };
        let id = operation.id;
        let then = Then::Landed {
            queue: life,
            operation: id,
        };
        match &mut operation.work {
            Inbound::Write {
                to,
                length,
                payload,
                last,
                ..
            } => {
                let (to, length) = (*to, *length);
                let payload = std::mem::replace(payload, Payload::Pieces(Pieces::new()));
                let done = last.take().map(|receive| receive.done());
                operation.work = Inbound::Finished(done);
                let Some(source) = Source::of(c, from, to.space, payload) else {
                    return self.refuse(at, Refusal::Operation);
                };
                c.counters.bytes_landed += length;
                let behind = is_in_order(c, &source, to).then_some(to.space);
                let missing = land(c, source, &[(to, length)], then);
                self.landing(at, missing, behind);
            }
            Inbound::Send { .. } => self.start_send(c, at, then),
            Inbound::Read { .. } => self.start_read(c, at),
            Inbound::Atomic { to, .. } => {
                let to = *to;
                // Its store comes later.
                self.landing(at, 1, None);
                self.responder.locked = Some(to.address);
                c.locked.push(to.address);
                let then = Then::Loaded {
                    queue: life,
                    operation: id,
                };
                c.accesses.read(to, 8, then);
            }
            Inbound::Refuse(_) | Inbound::Note(_) | Inbound::Finished(_) => operation.done = true,
        }
    }

    /// An operation waits for so many accesses, all submitted to memory
    /// `behind`, if that keeps their order.
    pub(super) fn landing(&mut self, at: usize, missing: u32, behind: Option<SpaceId>) {
        let Some(operation) = self.responder.operations.get_mut(at) else {
            return;
        };
        operation.missing = missing;
        operation.done = missing == 0;
        if missing > 0 {
            if self.responder.unlanded == 0 {
                self.responder.behind = behind;
            } else if self.responder.behind != behind {
                self.responder.behind = None;
            }
            self.responder.unlanded += 1;
        }
    }

    /// Turns a started operation into a refusal.
    pub(super) fn refuse(&mut self, at: usize, refusal: Refusal) {
        self.responder.refusing = true;
        if let Some(operation) = self.responder.operations.get_mut(at) {
            operation.work = Inbound::Refuse(refusal);
            operation.packets = 0;
            operation.done = true;
        }
    }

    /// A piece of a write has landed (or could not).
    pub(crate) fn on_landed(&mut self, c: &mut Common, id: u64, ok: bool) {
        let Some(operation) = self.responder.find(id) else {
            return;
        };
        operation.missing = operation.missing.saturating_sub(1);
        if !ok {
            operation.work = Inbound::Refuse(Refusal::Operation);
            operation.packets = 0;
        }
        if operation.missing == 0 {
            operation.done = true;
            self.responder.unlanded -= 1;
            self.pump_operations(c);
        }
    }

    /// Answers, from the front, what is done.
    pub(super) fn answer_done(&mut self, c: &mut Common) {
        let early = c.config.acknowledge == Acknowledge::Accepted;
        let oldest = self.responder.operations.front();
        let first = oldest.map_or(0, |operation| operation.number);
        let mut last = None;
        while let Some(operation) = self.responder.operations.get(self.responder.acknowledged) {
            let write = matches!(
                operation.work,
                Inbound::Write { .. } | Inbound::Finished(None)
            );
            let soon = operation.number + operation.packets <= first + MOST_UNACKNOWLEDGED;
            let answered = operation.done || (early && soon && write && !operation.borrows);
            if !answered {
                break;
            }
            self.responder.acknowledged += 1;
            let operation = &mut self.responder.operations[self.responder.acknowledged - 1];
            let number = operation.number;
            let end = number + operation.packets;
            self.responder.answered = self.responder.answered.max(end);
            let body = match &mut operation.work {
                Inbound::Atomic { old: Some(old), .. } => Some(Body::AtomicResponse { old: *old }),
                Inbound::Refuse(refusal) | Inbound::Note(refusal) => Some(Body::Refuse(*refusal)),
                Inbound::Read { sent: true, .. } => continue,
                Inbound::Read {
                    piece,
                    packets,
                    sent,
                } => {
                    *sent = true;
                    let (piece, packets) = (*piece, *packets);
                    self.answer_read(c, number, piece, packets);
                    // The answer acknowledges what came before.
                    last = None;
                    continue;
                }
                Inbound::Atomic { .. } => continue,
                Inbound::Write { .. } | Inbound::Send { .. } | Inbound::Finished(_) => None,
            };
            match body {
                Some(body) => {
                    if let Some(number) = last.take() {
                        self.answer(c, number, Body::Acknowledge);
                    }
                    self.answer(c, number, body);
                }
                None => last = Some(end - 1),
            }
        }
        if let Some(number) = last {
            self.answer(c, number, Body::Acknowledge);
        }
        self.retire_done(c);
    }

    /// Lets go of operations that are done and answered, and completes receive
    /// requests.
    fn retire_done(&mut self, c: &mut Common) {
        while self.responder.acknowledged > 0
            && self
                .responder
                .operations
                .front()
                .is_some_and(|operation| operation.done)
            && let Some(operation) = self.responder.operations.pop_front()
        {
            self.responder.acknowledged -= 1;
            self.responder.started -= 1;
            match operation.work {
                Inbound::Finished(Some(done)) => self.complete_receive(c, done),
                Inbound::Refuse(refusal) => {
                    // What the peer did makes this end useless too.
                    let (told, at) = (refusal.syndrome(), self.send.finished);
                    self.enter_error(c, FailureCause::Responder, told, at, None);
                    return;
                }
                _ => {}
            }
        }
    }
}
