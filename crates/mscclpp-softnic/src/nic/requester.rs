// SPDX-License-Identifier: MIT
//! The sending side: requests become packets, in order, as far as their
//! limits allow.

use std::collections::VecDeque;

use mlx5_queue::{Entry, FenceMode, Syndrome};

use super::access::QueueLife;
use super::common::Common;
use super::queue::QueuePair;
use super::regions::Need;
use super::request::{Request, Source, Work};
use super::transmit::Staged;
use crate::queue_config::{SendAttributes, State};
use crate::time::Time;
use crate::violation::ViolationKind;

/// Requests under way.
pub(super) const OUTSTANDING: usize = 256;
/// A request under way.
#[derive(Debug)]
pub(crate) struct Outstanding {
    pub(super) request: Request,
    /// Number of its first packet, and how many it has.
    pub(super) first: u64,
    pub(super) packets: u64,
    /// Bytes of its message.
    pub(super) length: u64,
    /// Bytes of its result that have come.
    pub(super) received: u64,
    /// Its result is complete, but for what is still landing.
    pub(super) answered: bool,
    /// Pieces of its result on their way to memory.
    pub(super) landing: u32,
    /// It will fail when it is the oldest.
    pub(super) failed: Option<Syndrome>,
}

impl Outstanding {
    pub(super) fn end(&self) -> u64 {
        self.first + self.packets
    }

    fn is_done(&self, acknowledged: u64) -> bool {
        if self.request.has_result() {
            self.answered && self.landing == 0
        } else {
            acknowledged >= self.end()
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Requester {
    pub(super) outstanding: VecDeque<Outstanding>,
    /// The outstanding request that `next` belongs to.
    pub(super) cursor: usize,
    /// Next packet number to give to a request.
    pub(super) allocated: u64,
    /// Next packet to send.
    pub(super) next: u64,
    /// One past the last packet that has been sent, ever.
    pub(super) sent: u64,
    /// Everything before it is acknowledged.
    pub(super) acknowledged: u64,
    /// Reads and atomics under way.
    results: usize,
    pub(super) staged: VecDeque<Staged>,
    pub(super) next_stage: u64,
    /// A request has failed or will: none after it is started.
    halted: bool,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    /// When what is under way counts as lost.
    pub(super) deadline: Option<Time>,
    /// The peer had no receive request: nothing is sent before.
    pub(super) pause: Option<Time>,
    /// An alarm is set for this time.
    pub(super) alarm: Option<Time>,
}

impl Requester {
    pub(crate) fn begin(&mut self, first: u64) {
        (self.allocated, self.next) = (first, first);
        (self.sent, self.acknowledged) = (first, first);
    }

    pub(crate) fn restore_retries(&mut self, attributes: &SendAttributes) {
        self.retries = attributes.retry_count;
        self.rnr_retries = attributes.rnr_retry;
    }

    pub(crate) fn stop(&mut self) {
        self.staged.clear();
        self.deadline = None;
        self.pause = None;
        self.halted = true;
    }

    pub(crate) fn pop_oldest(&mut self) -> Option<Request> {
        let oldest = self.outstanding.pop_front()?;
        self.cursor = self.cursor.saturating_sub(1);
        if oldest.request.has_result() {
            self.results -= 1;
        }
        Some(oldest.request)
    }

    /// Sends again from the oldest packet that is not acknowledged.
    pub(super) fn go_back(&mut self) {
        self.next = self.acknowledged;
        self.cursor = 0;
        self.staged.clear();
    }

    /// Marks the request that packet `number` belongs to.
    pub(super) fn mark_failed(&mut self, number: u64, syndrome: Syndrome) {
        self.halted = true;
        let found = self
            .outstanding
            .iter_mut()
            .find(|request| request.end() > number);
        if let Some(request) = found {
            request.failed.get_or_insert(syndrome);
        }
    }

    fn may_start(&self, request: &Request, attributes: &SendAttributes) -> bool {
        let fence = request.flags.fence;
        if self.halted
            || self.outstanding.len() >= OUTSTANDING
            || (fence.waits_for_results() && self.results > 0)
            || (fence == FenceMode::StrongOrdering && !self.outstanding.is_empty())
        {
            return false;
        }
        let limit = usize::from(attributes.max_outstanding_reads);
        // None at all is an error, to be reported in its turn.
        !request.has_result() || limit == 0 || self.results < limit
    }
}

impl QueuePair {
    /// Starts what may start, sends what may be sent, completes what is done.
    pub(crate) fn pump_requests(&mut self, c: &mut Common) {
        while self.state == State::ReadyToSend {
            let mut started = false;
            while let Some(request) = self.send.ready.front()
                && self.requester.may_start(request, &self.attributes)
                && let Some(request) = self.send.ready.pop_front()
            {
                self.start(c, request);
                started = true;
            }
            self.transmit(c);
            // What completes may be what others waited for.
            if !self.complete_done(c) && !started {
                return;
            }
        }
    }

    fn start(&mut self, c: &mut Common, request: Request) {
        let failed = self.check(c, &request).err();
        let length = request.length();
        let packets = match failed {
            None if request.is_remote() => length.div_ceil(self.mtu()).max(1),
            _ => 0,
        };
        let requester = &mut self.requester;
        let first = requester.allocated;
        requester.allocated += packets;
        requester.results += usize::from(request.has_result());
        requester.halted |= failed.is_some();
        requester.outstanding.push_back(Outstanding {
            request,
            first,
            packets,
            length,
            received: 0,
            answered: false,
            landing: 0,
            failed,
        });
    }

    pub(super) fn mtu(&self) -> u64 {
        self.path.map_or(256, |path| path.mtu.bytes())
    }

    /// What the requester checks before it sends anything.
    fn check(&self, c: &mut Common, request: &Request) -> Result<(), Syndrome> {
        let local = |c: &Common, pieces: &[_], need| {
            let checked = c.regions.check_all(self.domain, pieces, need);
            checked.map_err(|_| Syndrome::LOCAL_PROTECTION)
        };
        if request.length() > c.config.capabilities.max_message {
            return Err(Syndrome::LOCAL_LENGTH);
        }
        match &request.work {
            Work::Bad => Err(Syndrome::LOCAL_QP_OPERATION),
            Work::Nothing => Ok(()),
            Work::Drop { source }
            | Work::Write {
                source: Source::Gather(source),
                ..
            }
            | Work::Send {
                source: Source::Gather(source),
                ..
            } => local(c, source, Need::LocalRead),
            Work::Write { .. } | Work::Send { .. } => Ok(()),
            Work::Read { .. } | Work::Atomic { .. }
                if self.attributes.max_outstanding_reads == 0 =>
            {
                Err(Syndrome::LOCAL_QP_OPERATION)
            }
            Work::Read { scatter, .. } => local(c, scatter, Need::LocalWrite),
            Work::Atomic { .. } if !c.config.capabilities.atomics => {
                let opcode = mlx5_queue::Opcode::try_from(request.opcode);
                let opcode = opcode.unwrap_or(mlx5_queue::Opcode::FetchAdd);
                c.violation(
                    self.number(),
                    request.index,
                    ViolationKind::Unsupported { opcode },
                );
                Err(Syndrome::LOCAL_QP_OPERATION)
            }
            Work::Atomic { result, .. } if result.length != 8 => Err(Syndrome::LOCAL_LENGTH),
            Work::Atomic { result, .. } => local(c, &[*result], Need::LocalWrite),
        }
    }

    /// Completes the oldest requests as long as they are done; true if there
    /// were any.
    fn complete_done(&mut self, c: &mut Common) -> bool {
        let mut any = false;
        while let Some(oldest) = self.requester.outstanding.front() {
            if let Some(syndrome) = oldest.failed {
                self.fail(c, syndrome);
                return false;
            }
            if !oldest.is_done(self.requester.acknowledged) {
                return any;
            }
            any = true;
            let bytes = if oldest.request.has_result() {
                oldest.length as u32
            } else {
                0
            };
            let Some(request) = self.requester.pop_oldest() else {
                return any;
            };
            self.send.finished = request.end();
            if request.flags.completion.reports_success() {
                let timestamp = c.now.nanos();
                let entry = Entry::Requester {
                    opcode: request.opcode,
                    bytes,
                    timestamp,
                };
                let counter = request.index.low16();
                c.complete(self.send.completions, self.number(), counter, entry);
                self.send.reported = request.end();
            }
        }
        any
    }

    pub(super) fn life(&self) -> QueueLife {
        self.life
    }
}
