// SPDX-License-Identifier: MIT
//! A queue pair: its parts, its states, its death.

use mlx5_queue::{BLOCK_BYTES, Entry, Failure, Opcode, QueueIndex, QueueNumber, Syndrome};

use super::access::QueueLife;
use super::common::Common;
use super::receive_queue::ReceiveQueue;
use super::request::Request;
use super::requester::Requester;
use super::responder::Responder;
use super::send_queue::SendQueue;
use crate::config::TriggerMode;
use crate::error::Error;
use crate::event::{Event, FailureCause};
use crate::memory::Bytes;
use crate::queue_config::{
    InitAttributes, QueuePairStatus, ReceiveAttributes, SendAttributes, State, Transition,
};

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) life: QueueLife,
    pub(crate) domain: u32,
    pub(crate) page: u32,
    pub(crate) trigger: TriggerMode,
    pub(crate) state: State,
    pub(crate) rights: InitAttributes,
    /// Set on the way to ready-to-receive.
    pub(crate) path: Option<ReceiveAttributes>,
    pub(crate) attributes: SendAttributes,
    pub(crate) send: SendQueue,
    pub(crate) receive: Option<ReceiveQueue>,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) failure: Option<Syndrome>,
    /// Why the queue is in error, until a request can be completed with it.
    pub(crate) untold: Option<Syndrome>,
}

impl QueuePair {
    pub(crate) fn number(&self) -> QueueNumber {
        self.life.queue
    }

    pub(crate) fn status(&self) -> QueuePairStatus {
        QueuePairStatus {
            state: self.state,
            announced: self.send.announced.get(),
            finished: self.send.finished.get(),
            failure: self.failure,
        }
    }

    /// One step; see the table of [`Transition`].
    pub(crate) fn transition(&mut self, c: &mut Common, step: Transition) -> Result<(), Error> {
        let (from, to) = (self.state, step.target());
        let allowed = match to {
            State::Reset | State::Error => true,
            State::Init => matches!(from, State::Reset | State::Init),
            State::ReadyToReceive => from == State::Init,
            State::ReadyToSend => matches!(from, State::ReadyToReceive | State::ReadyToSend),
        };
        if !allowed {
            return Err(Error::Transition {
                queue: self.number(),
                from,
                to,
            });
        }
        match step {
            Transition::Reset => self.reset(),
            Transition::Init(rights) => self.rights = rights,
            Transition::ReadyToReceive(path) => {
                self.check_path(c, &path)?;
                self.responder.expected = u64::from(path.first_packet);
                self.path = Some(path);
            }
            Transition::ReadyToSend(attributes) => {
                check_reads(c, attributes.max_outstanding_reads)?;
                if from == State::ReadyToReceive {
                    self.requester.begin(u64::from(attributes.first_packet));
                    self.send.begin_audits(c, self.life);
                }
                self.attributes = attributes;
                self.requester.restore_retries(&attributes);
            }
            Transition::Error => {
                let at = self.send.finished;
                self.enter_error(c, FailureCause::Owner, None, at, None);
                return Ok(());
            }
        }
        self.state = to;
        Ok(())
    }

    fn check_path(&self, c: &Common, path: &ReceiveAttributes) -> Result<(), Error> {
        let limit = c.config.capabilities.mtu;
        if path.mtu > limit {
            let (asked, limit) = (path.mtu.bytes(), limit.bytes());
            return Err(Error::Limit {
                what: "path MTU",
                asked,
                limit,
            });
        }
        check_reads(c, path.max_outstanding_reads)
    }

    fn reset(&mut self) {
        self.life.life = self.life.life.wrapping_add(1);
        self.send.reset();
        if let Some(receive) = &mut self.receive {
            receive.reset();
        }
        self.requester = Requester::default();
        self.responder = Responder::default();
        self.path = None;
        self.rights = InitAttributes::default();
        self.failure = None;
        self.untold = None;
    }

    /// The oldest request fails with `syndrome`, the rest is flushed.
    pub(crate) fn fail(&mut self, c: &mut Common, syndrome: Syndrome) {
        if self.state == State::Error {
            return;
        }
        let mut opcode = None;
        let mut index = self.send.finished;
        match self
            .requester
            .pop_oldest()
            .or_else(|| self.send.ready.pop_front())
        {
            Some(request) => {
                opcode = Opcode::try_from(request.opcode).ok();
                index = request.index;
                self.report_failure(c, &request, syndrome);
            }
            // The first that is taken gets it.
            None if self.send.finished != self.send.announced => self.untold = Some(syndrome),
            None => {
                // Nothing to pin it on but the position.
                let nobody = Request::bad(self.send.finished, 0, 0);
                self.report_failure(c, &nobody, syndrome);
            }
        }
        self.enter_error(c, FailureCause::Requester, Some(syndrome), index, opcode);
    }

    /// Completes `request` in error.
    pub(crate) fn report_failure(&mut self, c: &mut Common, request: &Request, syndrome: Syndrome) {
        if syndrome != Syndrome::FLUSHED && self.failure.is_none() {
            self.failure = Some(syndrome);
            let queue = self.number().get();
            tracing::debug!(queue, index = request.index.get(), %syndrome, "a request failed");
        }
        let entry = Entry::RequesterError {
            opcode: request.opcode,
            failure: Failure::new(syndrome),
        };
        c.complete(
            self.send.completions,
            self.number(),
            request.index.low16(),
            entry,
        );
        self.send.finished = request.end();
        self.send.reported = request.end();
    }

    /// Stops both directions and flushes what has been posted, in order.
    pub(crate) fn enter_error(
        &mut self,
        c: &mut Common,
        cause: FailureCause,
        syndrome: Option<Syndrome>,
        index: QueueIndex,
        opcode: Option<Opcode>,
    ) {
        if self.state != State::Error {
            c.events.push(Event::QueuePairFailed {
                queue: self.number(),
                cause,
                syndrome,
                index: index.get(),
                opcode,
            });
        }
        self.state = State::Error;
        self.requester.stop();
        self.responder.stop(c);
        self.flush(c);
        if let Some(receive) = &mut self.receive {
            receive.read_record(c, self.life);
        }
    }

    /// Flushes what has been taken and takes the rest, to flush it too.
    pub(crate) fn flush(&mut self, c: &mut Common) {
        self.send.take_for_flush(c, self.life.queue);
        while let Some(request) = self
            .requester
            .pop_oldest()
            .or_else(|| self.send.ready.pop_front())
        {
            let syndrome = self.untold.take().unwrap_or(Syndrome::FLUSHED);
            self.report_failure(c, &request, syndrome);
        }
        self.send.fetch(c, self.life);
    }

    /// Blocks from `first` have been read.
    pub(crate) fn on_fetched(&mut self, c: &mut Common, first: QueueIndex, bytes: Bytes) {
        let flushing = self.state == State::Error;
        self.send.on_fetched(c, self.life, first, bytes, flushing);
        self.pump(c);
    }

    /// Blocks from `first` could not be read: there is nothing to execute.
    pub(crate) fn on_fetch_failed(&mut self, c: &mut Common, first: QueueIndex) {
        self.fail(c, Syndrome::LOCAL_PROTECTION);
        let blocks = self.send.under_way(first);
        let nothing = Bytes::from_elem(0, blocks as usize * BLOCK_BYTES);
        self.on_fetched(c, first, nothing);
    }

    /// Does what can be done: requests, then the blocks of further ones.
    pub(crate) fn pump(&mut self, c: &mut Common) {
        match self.state {
            State::ReadyToSend => {
                self.pump_requests(c);
                if self.state == State::ReadyToSend {
                    self.send.fetch(c, self.life);
                }
            }
            State::Error => self.flush(c),
            State::Reset | State::Init | State::ReadyToReceive => {}
        }
    }

    /// A timer that this queue pair had set is due.
    pub(crate) fn on_alarm(&mut self, c: &mut Common) {
        self.send.on_alarm(c, self.life, self.state);
        if self.state == State::ReadyToSend {
            self.check_retry(c);
        }
    }
}

fn check_reads(c: &Common, asked: u8) -> Result<(), Error> {
    let limit = c.config.capabilities.max_outstanding_reads;
    if asked > limit {
        let (asked, limit) = (u64::from(asked), u64::from(limit));
        return Err(Error::Limit {
            what: "outstanding reads and atomics",
            asked,
            limit,
        });
    }
    Ok(())
}
