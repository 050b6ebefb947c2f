// SPDX-License-Identifier: MIT
//! What comes back from the peer, and what is done when nothing does.

use mlx5_queue::Syndrome;

use super::access::{SpaceId, Then};
use super::common::Common;
use super::landing::{Places, Source, land};
use super::packet::{Part, Payload, Piece, Refusal, cut};
use super::queue::QueuePair;
use super::regions::Need;
use super::request::Work;
use crate::memory::Bytes;
use crate::time::Time;

impl QueuePair {
    /// Sets the clock of the oldest packet under way.
    pub(super) fn arm(&mut self, c: &mut Common) {
        let requester = &mut self.requester;
        if requester.next == requester.acknowledged || self.attributes.timeout.is_zero() {
            requester.deadline = None;
        } else if requester.deadline.is_none() {
            let due = c.now.after(self.attributes.timeout);
            requester.deadline = Some(due);
            self.alarm_at(c, due);
        }
    }

    fn alarm_at(&mut self, c: &mut Common, due: Time) {
        if self.requester.alarm.is_none_or(|alarm| alarm > due) {
            self.requester.alarm = Some(due);
            c.wake_at(due, self.number());
        }
    }

    /// An alarm went off: sends again what is overdue.
    pub(super) fn check_retry(&mut self, c: &mut Common) {
        if self.requester.alarm.is_some_and(|alarm| alarm <= c.now) {
            self.requester.alarm = None;
        }
        if self.requester.pause.is_some_and(|pause| pause <= c.now) {
            self.requester.pause = None;
            self.requester.deadline = None;
            self.pump(c);
        }
        match self.requester.deadline {
            Some(deadline) if deadline <= c.now => {
                self.requester.deadline = None;
                self.retry(c, Syndrome::TRANSPORT_RETRY_EXCEEDED);
            }
            Some(deadline) => self.alarm_at(c, deadline),
            None => {}
        }
        if let Some(pause) = self.requester.pause {
            self.alarm_at(c, pause);
        }
    }

    /// Sends again from the oldest packet, unless that has been done too often.
    fn retry(&mut self, c: &mut Common, exceeded: Syndrome) {
        if self.requester.retries == 0 {
            self.fail(c, exceeded);
            return;
        }
        self.requester.retries -= 1;
        c.counters.retransmissions += 1;
        self.requester.go_back();
        self.transmit(c);
    }

    /// Everything before `number` is done at the peer, but for answers that
    /// have not come: those are waited for.
    fn acknowledge(&mut self, c: &mut Common, number: u64) {
        let mtu = self.mtu();
        let requester = &mut self.requester;
        // Also what was sent before it is being sent again.
        let mut number = number.min(requester.sent);
        let results = requester
            .outstanding
            .iter()
            .filter(|request| request.packets > 0 && request.request.has_result());
        for request in results {
            if request.first > number {
                break;
            }
            if !request.answered {
                number = number.min(request.first + request.received / mtu);
                break;
            }
            // An answer that came before is as good as an acknowledgement.
            number = number.max(request.end());
        }
        if number > requester.acknowledged {
            requester.acknowledged = number;
            requester.next = requester.next.max(number);
            requester.deadline = None;
            requester.restore_retries(&self.attributes);
        }
        self.arm(c);
    }

    pub(crate) fn on_acknowledge(&mut self, c: &mut Common, number: u64) {
        self.acknowledge(c, number + 1);
        self.pump(c);
    }

    pub(crate) fn on_refuse(&mut self, c: &mut Common, number: u64, refusal: Refusal) {
        let repeated = refusal == Refusal::Sequence && number >= self.requester.next;
        if number < self.requester.acknowledged || number >= self.requester.sent || repeated {
            // Of a packet that has been, or is being, sent again since.
            return;
        }
        self.acknowledge(c, number);
        match refusal {
            Refusal::Sequence => self.retry(c, Syndrome::TRANSPORT_RETRY_EXCEEDED),
            Refusal::NotReady { microseconds } => self.pause(c, microseconds),
            Refusal::Access | Refusal::InvalidRequest | Refusal::Operation => {
                if let Some(syndrome) = refusal.syndrome() {
                    self.requester.mark_failed(number, syndrome);
                }
            }
        }
        self.pump(c);
    }

    fn pause(&mut self, c: &mut Common, microseconds: u32) {
        const FOR_EVER: u8 = 7;
        if self.attributes.rnr_retry != FOR_EVER {
            if self.requester.rnr_retries == 0 {
                self.fail(c, Syndrome::RNR_RETRY_EXCEEDED);
                return;
            }
            self.requester.rnr_retries -= 1;
        }
        c.counters.retransmissions += 1;
        self.requester.go_back();
        self.requester.deadline = None;
        let until = c
            .now
            .after(std::time::Duration::from_micros(u64::from(microseconds)));
        self.requester.pause = Some(until);
        self.alarm_at(c, until);
    }

    /// Part of the answer to a read.
    pub(crate) fn on_read_response(
        &mut self,
        c: &mut Common,
        number: u64,
        part: Part,
        payload: Payload,
    ) {
        let mtu = self.mtu();
        let outstanding = &mut self.requester.outstanding;
        let Some(request) = outstanding
            .iter_mut()
            .find(|request| request.end() > number)
        else {
            return;
        };
        let Work::Read { scatter, .. } = &request.request.work else {
            return;
        };
        let first = request.first;
        let offset = number.saturating_sub(first) * mtu;
        if first > number || request.answered || offset != request.received {
            // Of an earlier try, or after one that was lost.
            return;
        }
        let end = offset + part.length;
        let whole = part.length.is_multiple_of(mtu) && end < request.length;
        if end != request.length && !whole {
            request.failed = Some(Syndrome::BAD_RESPONSE);
            self.pump(c);
            return;
        }
        let target = cut(scatter, offset, part.length);
        request.received = end;
        request.answered = end == request.length;
        let landed = self.land_result(c, first, &target, payload);
        self.after_answer(c, first, landed);
    }

    pub(crate) fn on_atomic_response(&mut self, c: &mut Common, number: u64, old: u64) {
        let outstanding = &mut self.requester.outstanding;
        let Some(request) = outstanding
            .iter_mut()
            .find(|request| request.end() > number)
        else {
            return;
        };
        let Work::Atomic { result, .. } = request.request.work else {
            return;
        };
        if request.first != number || request.answered {
            return;
        }
        request.answered = true;
        let payload = Payload::Bytes(Bytes::from_slice(&old.to_ne_bytes()));
        let landed = self.land_result(c, number, &[result], payload);
        self.after_answer(c, number, landed);
    }

    fn after_answer(&mut self, c: &mut Common, first: u64, landed: Result<u32, Syndrome>) {
        let outstanding = &mut self.requester.outstanding;
        let Some(request) = outstanding.iter_mut().find(|request| request.end() > first) else {
            return;
        };
        match landed {
            Ok(pieces) => request.landing += pieces,
            Err(syndrome) => request.failed = Some(syndrome),
        }
        let end = request.end();
        self.acknowledge(c, end);
        self.pump(c);
    }

    /// Moves an answer to where the request wants it; how many pieces are on
    /// their way, or what is wrong: they may not go there (any more), or are
    /// nowhere.
    fn land_result(
        &self,
        c: &mut Common,
        first: u64,
        target: &[Piece],
        payload: Payload,
    ) -> Result<u32, Syndrome> {
        let mut places = Places::new();
        for piece in target {
            let Piece {
                key,
                address,
                length,
            } = *piece;
            let checked = c
                .regions
                .check(self.domain, key, address, length, Need::LocalWrite);
            let (place, _) = checked.map_err(|_| Syndrome::LOCAL_PROTECTION)?;
            places.push((place, length));
        }
        let space = places
            .first()
            .map_or(SpaceId::HOST, |(place, _)| place.space);
        let source = Source::of(c, self.peer(c), space, payload).ok_or(Syndrome::BAD_RESPONSE)?;
        Ok(land(
            c,
            source,
            &places,
            Then::Result {
                queue: self.life(),
                packet: first,
            },
        ))
    }

    /// A piece of the answer to the request that starts at packet `first` has
    /// landed.
    pub(crate) fn on_result_landed(&mut self, c: &mut Common, first: u64, ok: bool) {
        let outstanding = &mut self.requester.outstanding;
        let found = outstanding.iter_mut().find(|request| request.end() > first);
        if let Some(request) = found.filter(|request| request.first == first) {
            request.landing = request.landing.saturating_sub(1);
            if !ok {
                request.failed = Some(Syndrome::LOCAL_PROTECTION);
            }
            self.pump(c);
        }
    }
}
