// SPDX-License-Identifier: MIT
//! Receives that run when somebody asks for their result, in the order of the calls.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use mscclpp_bootstrap::{Bootstrap, BootstrapError, Deadline, Tag};

use super::record::{Kind, Record};
use super::slot::{Receive, Slot};
use crate::error::{Error, Result};
use crate::status::StickyStatus;

/// The number that communicators take among the layers between users and bootstrap.
const LAYER: u8 = 1;
/// How often who waits looks at the connection that the result is for.
const LOOK: Duration = Duration::from_millis(50);

/// The records from one rank with one tag. The i-th receive made here gets the i-th record.
pub(super) struct Line {
    bootstrap: Arc<dyn Bootstrap>,
    pub(super) rank: usize,
    pub(super) tag: u32,
    /// Held while a half is sent and its receive is queued, so that both have the same order.
    order: Mutex<()>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// A record that was not sent in time, or not at all.
struct Unsent {
    error: Error,
    /// It may come to the peer nevertheless.
    may_arrive: bool,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Arc<dyn Receive>>,
    /// One thread receives at a time, without holding the lock.
    receiving: bool,
}

impl Line {
    pub(super) fn new(bootstrap: Arc<dyn Bootstrap>, rank: usize, tag: u32) -> Self {
        Self {
            bootstrap,
            rank,
            tag,
            order: Mutex::default(),
            queue: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Whether receives have not come to their end, also those that nobody asks for any more.
    pub(super) fn is_waited_on(&self) -> bool {
        let queue = self.lock();
        queue.receiving || !queue.waiting.is_empty()
    }

    /// Sends one record to the rank.
    pub(super) fn send(&self, record: &Record) -> Result<()> {
        self.try_send(record).map_err(|unsent| unsent.error)
    }

    fn try_send(&self, record: &Record) -> Result<(), Unsent> {
        let _span = tracing::debug_span!(
            "send_record",
            rank = self.bootstrap.rank(),
            peer = self.rank,
            tag = self.tag,
            kind = record.kind.name()
        )
        .entered();
        let deadline = Deadline::after(self.bootstrap.timeout());
        let tag = Tag::layered(LAYER, self.tag);
        let bytes = record.encode().map_err(|error| Unsent {
            error,
            may_arrive: false,
        })?;
        (self.bootstrap)
            .send(self.rank, tag, &bytes, deadline)
            .map_err(|error| {
                let operation = format!(
                    "sending {} to rank {} (tag {})",
                    record.kind, self.rank, self.tag
                );
                Unsent {
                    may_arrive: matches!(error, BootstrapError::Underway { .. }),
                    error: Error::bootstrap(operation, self.rank, error),
                }
            })
    }

    /// Queues a receive.
    pub(super) fn receive<T: Send + Sync + 'static>(
        self: &Arc<Self>,
        kind: Kind,
        make: impl FnMut(&[u8], Deadline) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let slot = Arc::new(Slot::new(kind, make));
        self.lock()
            .waiting
            .push_back(Arc::clone(&slot) as Arc<dyn Receive>);
        Pending {
            line: Arc::clone(self),
            slot,
            over: None,
        }
    }

    /// Sends this rank's half and queues the receive of the peer's. When the half could not be
    /// made, the peer is told, and its half is taken and thrown away. So it is when this rank's half may
    /// still arrive though it took too long. When nothing will, the next call takes this one's place.
    pub(super) fn exchange<H, T: Send + Sync + 'static>(
        self: &Arc<Self>,
        kind: Kind,
        half: Result<(H, Vec<u8>)>,
        mut make: impl FnMut(&mut H, &[u8], Deadline) -> Result<T> + Send + 'static,
    ) -> Result<Pending<T>>
    where
        H: Send + 'static,
    {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let (half, record) = match half {
            Ok((half, body)) => (Ok(half), Record::new(kind, body)),
            Err(error) => {
                let record = Record::gave_up(kind, &error.to_string());
                (Err(error), record)
            }
        };
        let sent = self.try_send(&record);
        let arrives = sent.as_ref().err().is_none_or(|unsent| unsent.may_arrive);
        let error = match (half, sent) {
            (Ok(mut half), Ok(())) => {
                let make = move |bytes: &[u8], deadline| make(&mut half, bytes, deadline);
                return Ok(self.receive(kind, make));
            }
            (Ok(_), Err(unsent)) => unsent.error,
            (Err(error), sent) => {
                if let Err(Unsent { error: unsent, .. }) = sent {
                    tracing::warn!(%unsent, "the peer could not be told of a failure");
                }
                error
            }
        };
        if arrives {
            drop(self.receive(kind, |_, _| Ok(())));
        }
        Err(error)
    }

    /// Receives until `done`, completing receives in their order. When the connection has failed that
    /// the last of them is `over`, nothing more is waited for; what has come is still taken.
    fn run(
        &self,
        done: impl Fn() -> bool,
        deadline: Deadline,
        over: Option<&StickyStatus>,
    ) -> Result<()> {
        let mut waited_since = false;
        loop {
            // Before the look at what has come.
            let failed = over.and_then(StickyStatus::error);
            let until = match (over, &failed) {
                (None, _) => deadline,
                (Some(_), None) => deadline.at_most(LOOK),
                (Some(_), Some(_)) => Deadline::after(Duration::ZERO),
            };
            let queue = self.lock();
            if done() {
                return Ok(());
            }
            if queue.receiving {
                if deadline.expired() {
                    return Err(self.timeout("waiting for an earlier receive", deadline));
                }
                let at_most = match failed {
                    // The other thread may be about to take what has come.
                    Some(_) if !waited_since => LOOK.min(deadline.remaining()),
                    Some(error) => return Err(error),
                    None => until.remaining(),
                };
                waited_since = failed.is_some();
                let waited = self.changed.wait_timeout(queue, at_most);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            let mut turn = Receiving::take(self, queue);
            let body = match turn.kept() {
                Some(bytes) => Ok(Ok(bytes)),
                None => self.next_body(turn.kind(), until),
            };
            match body {
                Ok(body) => {
                    if !turn.complete(body, deadline) {
                        return Err(self.timeout("mapping memory", deadline));
                    }
                }
                Err(error) => match (error, failed) {
                    (_, Some(failed)) => return Err(failed),
                    // It was no more than a look, and some bootstraps return early.
                    (Error::Timeout { .. }, None) if over.is_some() && !deadline.expired() => {
                        drop(turn);
                        thread::sleep(until.remaining());
                    }
                    (mut error, None) => {
                        if let Error::Timeout {
                            waited, operation, ..
                        } = &mut error
                        {
                            *waited = deadline.budget();
                            let rank = self.rank;
                            *operation +=
                                &format!(": did rank {rank} make the matching call on this tag?");
                        }
                        return Err(error);
                    }
                },
            }
        }
    }

    /// The next record's content. An outer error is one of the bootstrap: no record was taken.
    fn next_body(&self, expected: Kind, deadline: Deadline) -> Result<Result<Vec<u8>>> {
        let _span = tracing::debug_span!(
            "receive_record",
            rank = self.bootstrap.rank(),
            peer = self.rank,
            tag = self.tag,
            kind = expected.name()
        )
        .entered();
        let tag = Tag::layered(LAYER, self.tag);
        let bytes = (self.bootstrap)
            .recv(self.rank, tag, deadline)
            .map_err(|error| {
                let operation = format!(
                    "waiting for {expected} from rank {} (tag {})",
                    self.rank, self.tag
                );
                Error::bootstrap(operation, self.rank, error)
            })?;
        let record = Record::decode(&bytes).map_err(Error::said_by(self.rank, self.tag));
        Ok(record.and_then(|record| {
            if record.kind != expected {
                return Err(Error::WrongRecord {
                    rank: self.rank,
                    tag: self.tag,
                    expected: expected.name(),
                    found: record.kind.name(),
                });
            }
            record.body.map_err(|reason| Error::PeerGaveUp {
                rank: self.rank,
                tag: self.tag,
                what: expected.name(),
                reason,
            })
        }))
    }

    fn timeout(&self, doing: &str, deadline: Deadline) -> Error {
        Error::Timeout {
            operation: format!("{doing} (tag {})", self.tag),
            rank: Some(self.rank),
            waited: deadline.budget(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to receive on a line. Given back when dropped, whatever happens.
struct Receiving<'a> {
    line: &'a Line,
    first: Option<Arc<dyn Receive>>,
}

impl<'a> Receiving<'a> {
    fn take(line: &'a Line, mut queue: MutexGuard<'_, Queue>) -> Self {
        queue.receiving = true;
        let first = queue.waiting.front().cloned();
        Self { line, first }
    }

    /// The kind that the first receive in the queue expects. The queue holds at least that of the
    /// caller.
    fn kind(&self) -> Kind {
        self.first
            .as_ref()
            .map_or(Kind::Memory, |first| first.kind())
    }

    fn kept(&self) -> Option<Vec<u8>> {
        self.first.as_ref().and_then(|first| first.kept())
    }

    /// Whether it is through.
    fn complete(&mut self, body: Result<Vec<u8>>, deadline: Deadline) -> bool {
        let through = (self.first.take()).is_none_or(|first| first.complete(body, deadline));
        if through {
            let popped = self.line.lock().waiting.pop_front();
            // Not under the lock: it may be the last to hold a connection.
            drop(popped);
        }
        through
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        self.line.lock().receiving = false;
        self.line.changed.notify_all();
    }
}

/// Something that needs a peer's half to be whole.
///
/// This rank's half was sent when it was made; the peer's is received when somebody asks for the
/// result. For each rank and tag, the i-th receive gets what the i-th matching call of the peer
/// sent, so asking for one completes all earlier ones first. Of one that was dropped the record is
/// thrown away: neither a connection nor memory is kept for it. Different tags are independent.
///
/// May be asked from several threads, and again: the result stays.
pub struct Pending<T> {
    line: Arc<Line>,
    slot: Arc<Slot<T>>,
    /// The status of the connection that the result is for.
    over: Option<Arc<StickyStatus>>,
}

impl<T> Pending<T> {
    /// The same, of use only while a connection lasts.
    pub(super) fn over(mut self, status: &Arc<StickyStatus>) -> Self {
        self.over = Some(Arc::clone(status));
        self
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.slot.abandon();
    }
}

impl<T: Clone + Send + Sync> Pending<T> {
    /// The result, waiting for the peer's half as long as the bootstrap's timeout.
    ///
    /// # Errors
    /// As [`Pending::get_by`].
    pub fn get(&self) -> Result<T> {
        self.get_by(Deadline::after(self.line.bootstrap.timeout()))
    }

    /// The result, waiting for the peer's half until `deadline`.
    ///
    /// # Errors
    /// [`Error::Timeout`] when the peer's half did not come, or its memory was not mapped: asking again
    /// waits again.
    /// [`Error::PeerDown`] when the peer is gone. [`Error::WrongRecord`] when the peer sent
    /// something else, [`Error::PeerGaveUp`] when it could not make its half. Errors of connecting:
    /// both ends get [`Error::IncompatibleTransports`]. For a semaphore also its connection's, once
    /// that is down and the peer's half has not come: it may never come then.
    pub fn get_by(&self, deadline: Deadline) -> Result<T> {
        loop {
            if let Some(result) = self.slot.result.get() {
                return result.clone();
            }
            self.line.run(
                || self.slot.result.get().is_some(),
                deadline,
                self.over.as_deref(),
            )?;
        }
    }

    /// The rank whose half is waited for.
    pub fn rank(&self) -> usize {
        self.line.rank
    }
}

impl<T> std::fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending")
            .field("kind", &self.slot.kind)
            .field("rank", &self.line.rank)
            .field("tag", &self.line.tag)
            .field("done", &self.slot.result.get().is_some())
            .finish()
    }
}
