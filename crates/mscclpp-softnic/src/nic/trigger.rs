// SPDX-License-Identifier: MIT
//! Doorbells and records: how far the poster says that it has come, and
//! whether it says so by the rules.

use mlx5_queue::{DoorbellRecord, Syndrome};

use super::access::{QueueLife, RecordReason, Then};
use super::common::Common;
use super::queue::QueuePair;
use super::send_queue::SendQueue;
use crate::config::TriggerMode;
use crate::memory::Bytes;
use crate::queue_config::State;
use crate::time::Time;
use crate::violation::ViolationKind;

/// What is known of a queue's doorbells, to be compared with its record now
/// and then.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// The last doorbell's value.
    doorbell: u16,
    /// The last doorbell came before its record.
    early: bool,
    /// Doorbells so far.
    rung: u64,
    due: Option<Time>,
    /// What looked wrong at the last audit: it must look the same at the next
    /// before it counts. With the record and the doorbells of then.
    suspicion: Option<(ViolationKind, u16, u64)>,
    reported: bool,
    /// A poll of the record is under way.
    polling: bool,
}

impl SendQueue {
    fn read_record(&self, c: &mut Common, queue: QueueLife, reason: RecordReason) {
        let place = self.record.offset(DoorbellRecord::SEND_OFFSET as u64);
        c.accesses.read(place, 4, Then::Record { queue, reason });
    }

    pub(crate) fn begin_audits(&mut self, c: &mut Common, queue: QueueLife) {
        let interval = c.config.checks.audit_interval;
        if !interval.is_zero() && self.audit.due.is_none() {
            let due = c.now.after(interval);
            self.audit.due = Some(due);
            c.wake_at(due, queue.queue);
        }
    }

    pub(crate) fn on_alarm(&mut self, c: &mut Common, queue: QueueLife, state: State) {
        if self.audit.due.is_some_and(|due| due <= c.now) {
            self.audit.due = None;
            if state == State::ReadyToSend {
                self.read_record(c, queue, RecordReason::Audit);
                self.begin_audits(c, queue);
            }
        }
    }

    /// How far `a` is ahead of `b`, if that is at most the ring's size.
    fn ahead(&self, a: u16, b: u16) -> Option<u64> {
        let ahead = u64::from(a.wrapping_sub(b));
        (1..=u64::from(self.ring.entries()))
            .contains(&ahead)
            .then_some(ahead)
    }

    fn on_audit(&mut self, trigger: TriggerMode, record: u16) -> Option<ViolationKind> {
        let Audit {
            doorbell,
            early,
            rung,
            ..
        } = self.audit;
        let kind = if self.ahead(doorbell, record).is_some() {
            ViolationKind::NoRecordAfterDoorbell
        } else if trigger != TriggerMode::PollRecord
            && (self.ahead(record, doorbell).is_some() || early)
        {
            ViolationKind::NoDoorbellAfterRecord
        } else {
            self.audit.suspicion = None;
            self.audit.reported = false;
            return None;
        };
        let suspicion = Some((kind, record, rung));
        if self.audit.suspicion != suspicion {
            self.audit.suspicion = suspicion;
            self.audit.reported = false;
            return None;
        }
        let first = !self.audit.reported;
        self.audit.reported = true;
        first.then_some(kind)
    }
}

impl QueuePair {
    /// A doorbell with these low bits was rung.
    pub(crate) fn on_doorbell(&mut self, c: &mut Common, value: u16) {
        if !matches!(self.state, State::ReadyToSend | State::Error) {
            c.violation(
                self.number(),
                self.send.announced,
                ViolationKind::NotReadyToSend,
            );
            return;
        }
        if c.config.faults.never_execute {
            return;
        }
        let back = self.send.ahead(self.send.audit.doorbell, value).is_some();
        // The record, which a NIC may read while doorbells are on their way, may have told more.
        let known = !back
            && self
                .send
                .ahead(self.send.announced.low16(), value)
                .is_some();
        self.send.audit.doorbell = value;
        self.send.audit.rung += 1;
        let at_once = match self.trigger {
            // A queue in error executes nothing: there is nothing to be early
            // for.
            _ if self.state == State::Error => true,
            TriggerMode::Doorbell => true,
            TriggerMode::Record => false,
            TriggerMode::Either => c.rng.bool(),
            TriggerMode::PollRecord => return,
        };
        if at_once && !known {
            self.announce(c, value);
        }
        if !at_once || !c.config.checks.audit_interval.is_zero() {
            let reason = RecordReason::Doorbell {
                value,
                at_once,
                announced: self.send.announced,
            };
            self.send.read_record(c, self.life, reason);
        }
    }

    /// Reads the record, if that is how the queue is started.
    pub(crate) fn poll_record(&mut self, c: &mut Common) {
        let live = matches!(self.state, State::ReadyToSend | State::Error);
        let polls = self.trigger == TriggerMode::PollRecord && !c.config.faults.never_execute;
        if live && polls && !self.send.audit.polling {
            self.send.audit.polling = true;
            self.send.read_record(c, self.life, RecordReason::Poll);
        }
    }

    pub(crate) fn on_record(&mut self, c: &mut Common, bytes: &Bytes, reason: RecordReason) {
        let Some(word) = bytes.first_chunk::<4>() else {
            return;
        };
        let record = DoorbellRecord::decode_word(*word);
        match reason {
            RecordReason::Poll => {
                self.send.audit.polling = false;
                self.announce(c, record);
            }
            RecordReason::Doorbell {
                value,
                at_once,
                announced,
            } => {
                let early = self.send.ahead(value, record).is_some();
                self.send.audit.early = early;
                if at_once {
                    return;
                }
                // Another doorbell, or a later read of the record, may have overtaken this one.
                let index = announced.at_or_after(record);
                let since = self.send.announced.distance_from(announced);
                if early {
                    c.counters.doorbells_dropped += 1;
                } else if index.distance_from(announced) > since {
                    self.announce(c, record);
                }
            }
            RecordReason::Audit => {
                if let Some(kind) = self.send.on_audit(self.trigger, record) {
                    c.violation(self.number(), self.send.announced, kind);
                }
            }
        }
    }

    /// The poster says that it has posted up to the index with these low bits.
    fn announce(&mut self, c: &mut Common, value: u16) {
        let send = &mut self.send;
        let index = send.announced.at_or_after(value);
        if index == send.announced {
            return;
        }
        let size = u64::from(send.ring.entries());
        if index.distance_from(send.reported) > size {
            let back = u64::from(send.announced.low16().wrapping_sub(value));
            let kind = if back <= size {
                ViolationKind::MovedBack { announced: value }
            } else {
                ViolationKind::TooFar { announced: value }
            };
            c.violation(self.number(), self.send.announced, kind);
            self.fail(c, Syndrome::LOCAL_QP_OPERATION);
            return;
        }
        send.announced = index;
        self.pump(c);
    }
}
