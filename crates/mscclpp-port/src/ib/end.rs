// SPDX-License-Identifier: MIT
//! One end of a connection over an HCA, as its owner, its own thread and the watcher share it.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

use super::news::{Affected, Fault, News, Trouble};
use super::posts::{Names, Posts};
use super::receiver::{Bell, Receiver};
use crate::control_end::ControlEnd;
use crate::counters::LinkCells;
use crate::error::{Error, Result};
use crate::gpu_queue::GpuQueueProvider;
use crate::idle::Idle;
use crate::sync::lock_plain as lock;
use crate::verbs::ReceiveRequest;
use crate::watcher::Watched;

/// Looks at what a peer sent before its last word: each finds at least one of the few hundred that fit
/// a receive queue.
const LAST_LOOKS: u32 = 1024;

pub(super) struct IbEnd {
    pub(super) control: ControlEnd,
    pub(super) posts: Mutex<Posts>,
    pub(super) counts: Arc<LinkCells>,
    /// Where signals are this host's to execute.
    pub(super) receiver: Option<Mutex<Receiver>>,
    /// Wakes the thread that receives.
    bell: Option<Arc<Bell>>,
    /// Behind the queue, which is made on it.
    hca: Arc<dyn GpuQueueProvider>,
    news: Arc<News>,
    affected: Affected,
    names: Names,
    /// The queue was let go of.
    ended: AtomicBool,
}

/// What an end is made of, beside its posts.
pub(super) struct Parts {
    pub(super) control: ControlEnd,
    pub(super) receiver: Option<Receiver>,
    pub(super) hca: Arc<dyn GpuQueueProvider>,
    pub(super) news: Arc<News>,
    pub(super) affected: Affected,
    pub(super) names: Names,
}

impl IbEnd {
    pub(super) fn new(posts: Posts, parts: Parts) -> Self {
        Self {
            control: parts.control,
            counts: Arc::clone(posts.counts()),
            posts: Mutex::new(posts),
            bell: parts.receiver.as_ref().map(Receiver::bell),
            receiver: parts.receiver.map(Mutex::new),
            hca: parts.hca,
            news: parts.news,
            affected: parts.affected,
            names: parts.names,
            ended: AtomicBool::new(false),
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// Does something with the posts. An error ends the connection.
    pub(super) fn with_posts<T>(&self, act: impl FnOnce(&mut Posts) -> Result<T>) -> Result<T> {
        self.control.status.check()?;
        let mut posts = lock(&self.posts);
        let done = act(&mut posts);
        drop(posts);
        done.map_err(|error| match error {
            Error::QueueFull { .. } => error,
            error => {
                self.fail(error.clone());
                // Somebody else may have been first.
                self.control.status.error().unwrap_or(error)
            }
        })
    }

    /// Forwards signals that have come; whether there were any.
    pub(super) fn receive(&self) -> Result<bool> {
        let Some(receiver) = &self.receiver else {
            return Ok(false);
        };
        let mut receiver = lock(receiver);
        let (used, ended) = receiver.drain()?;
        if used > 0
            && let Some(pair) = lock(&self.posts).pair()
        {
            // None needs memory, and any is as good as another.
            let receive = ReceiveRequest { id: 0, local: None };
            (pair.post_receive(&vec![receive; used]))
                .map_err(|error| error.source.into_error(self.names.transport))?;
        }
        Ok(used > 0 && !ended)
    }

    /// Forwards signals until the connection has ended.
    pub(super) fn keep_receiving(&self) {
        let (Some(receiver), Some(bell)) = (&self.receiver, &self.bell) else {
            return;
        };
        let mut idle = Idle::new();
        while !self.has_ended() {
            let mut sleep = false;
            let looked = self.receive().and_then(|moved| {
                if moved {
                    idle.reset();
                    return Ok(());
                }
                idle.pause(|_| sleep = true);
                if sleep {
                    lock(receiver).arm()?;
                    // What came meanwhile rings nothing.
                    sleep = !self.receive()?;
                }
                Ok(())
            });
            match looked {
                Ok(()) if sleep => bell.wait(),
                Ok(()) => {}
                Err(error) => {
                    self.fail(error);
                    // It may go on for a while, until requests under way have failed.
                    idle.pause(thread::sleep);
                }
            }
        }
    }

    /// Ends the connection with an error, unless it has ended already.
    pub(super) fn fail(&self, error: Error) {
        // No other completion will tell it.
        let own = matches!(error, Error::RequestFailed { .. });
        if !self.control.fail(error.clone()) && own {
            self.learn(&error);
        }
        if own || !self.waits_for_own_error() {
            self.end();
        }
    }

    /// A request has failed of which the peer's death may be the reason.
    fn learn(&self, error: &Error) {
        tracing::warn!(%error, "a request has failed after the connection");
        self.control.status.learn(error);
    }

    /// Whether the peer has died with requests of this end under way: they fail when all retries are
    /// used up, which tells more of what was lost.
    fn waits_for_own_error(&self) -> bool {
        let died = matches!(self.control.status.error(), Some(Error::PeerDown { .. }));
        died && !self.control.has_left() && lock(&self.posts).is_under_way()
    }

    /// Looks for the error of such a request.
    fn look_for_own_error(&self) {
        // Nothing new goes to the peer: it was told to be dead.
        let (looked, stalled) = {
            let mut posts = lock(&self.posts);
            (posts.poll(), posts.stalled())
        };
        if let Err(error @ Error::RequestFailed { .. }) = &looked {
            self.learn(error);
        }
        // An HCA that answers for a process that is stopped fails no request, ever.
        if looked.is_err() || stalled > self.control.deadlines.stall || !self.waits_for_own_error()
        {
            self.end();
        }
    }

    /// Lets go of the queue, and tells the other end as soon as there is a way to.
    pub(super) fn end(&self) {
        if !self.ended.swap(true, SeqCst) {
            lock(&self.posts).stop();
            self.news.forget(&self.affected);
            if let Some(bell) = &self.bell {
                bell.ring();
            }
        }
        self.control.tell();
    }

    /// What has ended the connection, if something has.
    fn failure(&self) -> Option<Error> {
        let mut posts = lock(&self.posts);
        let looked = posts.look();
        let stalled = posts.stalled();
        drop(posts);
        if let Err(error) = looked {
            return Some(error);
        }
        if let Some(trouble) = (self.news).trouble(&self.affected, self.control.deadlines.stall) {
            return Some(self.error_of(trouble));
        }
        if let Some(error) = self.control.received() {
            // What came before its last word counts; a peer that goes on all the same does not hold
            // up the connections of others.
            for _ in 0..LAST_LOOKS {
                if !matches!(self.receive(), Ok(true)) {
                    break;
                }
            }
            return Some(error);
        }
        (stalled > self.control.deadlines.stall).then_some(Error::Stalled {
            rank: self.names.rank,
            after: stalled,
        })
    }

    fn error_of(&self, trouble: Trouble) -> Error {
        let Names { rank, queue, .. } = self.names;
        let event = match trouble {
            Trouble::Queue(Fault::Refused) => return Error::QueueRefused { rank, queue },
            Trouble::Queue(Fault::Failed) => format!("queue {queue:#x} has failed"),
            Trouble::PortDown(down) => format!("port {} is down for {down:?}", self.affected.port),
            Trouble::Gone => "it is gone, or its driver has given up".into(),
        };
        Error::HcaFailed {
            hca: self.hca.name().into(),
            rank,
            event,
        }
    }
}

impl Watched for IbEnd {
    fn look(&self) {
        if self.has_ended() {
            return;
        }
        if self.control.status.is_failed() {
            // Perhaps the bootstrap knew first.
            self.look_for_own_error();
        } else if let Some(error) = self.failure() {
            self.fail(error);
        }
    }

    fn stream(&self) -> Option<BorrowedFd<'_>> {
        // One that has ended would be readable for ever.
        (!self.control.status.is_failed()).then(|| self.control.stream())?
    }

    fn hca(&self) -> Option<&Arc<dyn GpuQueueProvider>> {
        Some(&self.hca)
    }
}
