// SPDX-License-Identifier: MIT
//! The posts of a connection: a bounded queue, and the part of it that the HCA has.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::account::Account;
use super::post::{Operation, Piece, Post};
use super::queue::Scratch;
use crate::counters::LinkCells;
use crate::error::{Error, Result};
use crate::gpu_queue::HcaRegistration;
use crate::transport::TransportKind;
use crate::verbs::{
    CompletionQueue, CompletionStatus, QueuePair, ReadyToSend, SendRequest, WorkCompletion,
};

/// What a trigger may need: a write, a signal and a flush.
const TRIGGER_POSTS: usize = 3;
/// Requests handed to the HCA together: one doorbell.
const CHAIN: usize = 64;
/// Completions polled at once.
const POLL: usize = 32;
/// No request is longer: every HCA takes that much. Some tens of requests may be under way before one
/// tells that it is done; on a slow link that has to come well within the time after which a queue that
/// tells nothing counts as stalled.
const MAX_REQUEST: u64 = 64 << 20;
/// How long a queue that flushes its requests may take to tell why: the HCA and the peer do so on other
/// ways.
pub(super) const TOLD_WITHIN: Duration = Duration::from_millis(250);

enum Entry {
    Post(Post),
    Flush(u64),
}

struct UnderWay {
    operation: Operation,
    ends_post: bool,
    /// Memory that the request reads.
    _keep: Option<Arc<dyn HcaRegistration>>,
}

/// The names that errors give.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    pub(super) rank: Option<usize>,
    /// Number of the queue pair.
    pub(super) queue: u32,
    pub(super) transport: TransportKind,
}

pub(super) struct Posts {
    // Before what its requests use.
    pair: Option<QueuePair<ReadyToSend>>,
    completions: Arc<CompletionQueue>,
    account: Account<UnderWay>,
    waiting: VecDeque<Entry>,
    /// Where the results of atomics land.
    scratch: Option<Scratch>,
    /// Posts that are not known to be done, and how many there may be.
    pending: usize,
    limit: usize,
    requested: u64,
    largest: u64,
    names: Names,
    /// When the HCA last did something, or was idle.
    moved: Instant,
    /// A request was flushed, and when: what failed before it is not known yet.
    flushed: Option<(Instant, Error)>,
    chain: Vec<SendRequest<'static>>,
    counts: Arc<LinkCells>,
}

/// What the posts of a connection are made of.
pub(super) struct Parts {
    pub(super) completions: Arc<CompletionQueue>,
    pub(super) scratch: Option<Scratch>,
    /// Requests that the send queue holds.
    pub(super) slots: usize,
    /// Posts that may wait or be under way.
    pub(super) limit: usize,
    /// Bytes of the largest message.
    pub(super) largest: u64,
    pub(super) names: Names,
}

impl Posts {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            pair: None,
            completions: parts.completions,
            account: Account::new(parts.slots),
            waiting: VecDeque::new(),
            scratch: parts.scratch,
            pending: 0,
            limit: parts.limit.max(TRIGGER_POSTS),
            requested: 0,
            largest: parts.largest.clamp(1, MAX_REQUEST),
            names: parts.names,
            moved: Instant::now(),
            flushed: None,
            chain: Vec::with_capacity(CHAIN),
            counts: Arc::default(),
        }
    }

    /// Both ends are ready: what waits is posted, and what comes.
    pub(super) fn start(&mut self, pair: QueuePair<ReadyToSend>) -> Result<()> {
        self.pair = Some(pair);
        self.pump()
    }

    /// Lets go of the queue, and with it of all that is under way.
    pub(super) fn stop(&mut self) {
        self.waiting.clear();
        // Behind the pair, which may use their memory until it is gone.
        self.pair = None;
        self.account.abandon();
    }

    /// What it counts; to be read without the lock that these posts are under.
    pub(super) fn counts(&self) -> &Arc<LinkCells> {
        &self.counts
    }

    pub(super) fn pair(&self) -> Option<&QueuePair<ReadyToSend>> {
        self.pair.as_ref()
    }

    pub(super) fn has_room(&self) -> bool {
        self.pending + TRIGGER_POSTS <= self.limit
    }

    /// Queues a post. The next [`pump`](Self::pump) hands it to the HCA.
    pub(super) fn push(&mut self, post: Post) -> Result<()> {
        self.make_room()?;
        self.waiting.push_back(Entry::Post(post));
        Ok(())
    }

    /// Queues a flush, and returns its ticket.
    pub(super) fn flush(&mut self) -> Result<u64> {
        self.make_room()?;
        self.requested += 1;
        self.waiting.push_back(Entry::Flush(self.requested));
        Ok(self.requested)
    }

    fn make_room(&mut self) -> Result<()> {
        if self.pending >= self.limit {
            self.look()?;
        }
        if self.pending >= self.limit {
            return Err(Error::QueueFull {
                rank: self.names.rank,
                limit: self.limit,
            });
        }
        self.pending += 1;
        Ok(())
    }

    /// Whether a post waits or is under way.
    pub(super) fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || self.account.is_busy()
    }

    /// Whether the HCA has requests.
    pub(super) fn is_under_way(&self) -> bool {
        self.pair.is_some() && self.account.is_busy()
    }

    /// The highest ticket that is done.
    pub(super) fn flushed(&self) -> u64 {
        self.account.flushed()
    }

    /// For how long the HCA has had requests and done none.
    pub(super) fn stalled(&self) -> Duration {
        if self.is_under_way() {
            self.moved.elapsed()
        } else {
            Duration::ZERO
        }
    }

    /// Looks what is done, and posts what there is room for.
    pub(super) fn look(&mut self) -> Result<()> {
        self.poll()?;
        self.pump()
    }

    /// Looks what is done, and posts nothing more.
    pub(super) fn poll(&mut self) -> Result<()> {
        let mut completions = [WorkCompletion::default(); POLL];
        while self.is_under_way() {
            let count = (self.completions.poll(&mut completions))
                .map_err(|error| error.into_error(self.names.transport))?;
            self.counts.completions.grow(count as u64);
            for completion in &completions[..count] {
                self.complete(completion)?;
            }
            if count < POLL {
                break;
            }
        }
        match &self.flushed {
            Some((at, error)) if at.elapsed() > TOLD_WITHIN => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn complete(&mut self, completion: &WorkCompletion) -> Result<()> {
        if !completion.status.is_success() {
            let error = self.failed(completion);
            if completion.status != CompletionStatus::Flushed {
                return Err(error);
            }
            self.flushed.get_or_insert((Instant::now(), error));
            return Ok(());
        }
        let pending = &mut self.pending;
        let known = self.account.complete(completion.id, |request| {
            *pending -= usize::from(request.ends_post);
        });
        self.moved = Instant::now();
        known.map_err(|_| self.failed(completion))
    }

    /// The error of a request that failed.
    fn failed(&self, completion: &WorkCompletion) -> Error {
        let request = self.account.get(completion.id);
        Error::RequestFailed {
            rank: self.names.rank,
            queue: self.names.queue,
            index: completion.id,
            operation: request.map_or("unknown", |request| request.operation.name()),
            status: completion.status,
            vendor: completion.vendor_error,
        }
    }

    /// Hands to the HCA what it has room for.
    pub(super) fn pump(&mut self) -> Result<()> {
        if self.pair.is_none() || self.flushed.is_some() {
            return Ok(());
        }
        if !self.account.is_busy() {
            self.moved = Instant::now();
        }
        loop {
            self.link();
            let Some(pair) = self.pair.as_ref().filter(|_| !self.chain.is_empty()) else {
                return Ok(());
            };
            self.counts.doorbells.grow(1);
            let posted = pair.post(&self.chain);
            self.chain.clear();
            // There is room for all: any refusal is for good.
            posted.map_err(|error| error.source.into_error(self.names.transport))?;
        }
    }

    /// Makes requests of what waits, as many as are handed over together.
    fn link(&mut self) {
        while self.chain.len() < CHAIN {
            let Some(entry) = self.waiting.front_mut() else {
                break;
            };
            let post = match entry {
                Entry::Flush(ticket) => {
                    self.account.flush(*ticket);
                    self.pending -= 1;
                    self.waiting.pop_front();
                    continue;
                }
                Entry::Post(_) if self.account.room() == 0 => break,
                Entry::Post(post) => post,
            };
            let Piece {
                made,
                operation,
                keep,
                ends_post,
            } = post.next(self.scratch.as_ref(), self.largest);
            if ends_post {
                self.waiting.pop_front();
            }
            let last = self.chain.len() + 1 == CHAIN
                || self.account.room() == 1
                || !matches!(self.waiting.front(), Some(Entry::Post(_)));
            let under_way = UnderWay {
                operation,
                ends_post,
                _keep: keep,
            };
            let (id, signaled) = self.account.post(under_way, last);
            self.chain.push(SendRequest {
                id,
                signaled,
                fence: false,
                operation: made,
            });
        }
    }
}
