// SPDX-License-Identifier: MIT
//! A connection over an HCA whose requests the host posts, as the rest of the crate sees it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mscclpp_bootstrap::Deadline;
#[cfg(doc)]
use mscclpp_bootstrap::Deadlines;

use super::end::IbEnd;
use super::post::{Operation, Post};
use super::queue::Connector;
use crate::context::ContextId;
use crate::control::{Arrived, Message, Route};
use crate::counters::LinkCounts;
use crate::ending::wait_until;
use crate::error::{Error, Result};
use crate::memory::{HcaSource, HcaTarget, RegisteredMemory};
use crate::sync::lock_plain as lock;
use crate::transport::{Progress, Transport, TransportKind};
use crate::watcher::{Watched, Watcher};

/// What a control stream is made for.
pub(crate) const CONTROL: &str = "mscclpp-port InfiniBand control";
/// How long to wait for a message before looking whether the connection is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The two ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    pub(crate) own: (ContextId, TransportKind),
    pub(crate) peer: (ContextId, TransportKind),
}

/// One end. Dropping it waits for what was posted, for [`Deadlines::linger`] at most, says goodbye,
/// and waits for its thread, for [`Deadlines::teardown`] at most.
pub(crate) struct IbTransport {
    end: Arc<IbEnd>,
    places: Places,
    watcher: Arc<Watcher>,
    thread: Option<JoinHandle<()>>,
}

/// What the connection's own thread needs.
pub(super) struct Start {
    pub(super) connector: Connector,
    pub(super) route: Route,
    pub(super) deadline: Deadline,
}

impl IbTransport {
    /// Begins to bring the connection up.
    pub(super) fn start(
        end: IbEnd,
        places: Places,
        start: Start,
        watcher: Arc<Watcher>,
    ) -> Result<Self> {
        let end = Arc::new(end);
        let (theirs, watched) = (Arc::clone(&end), Arc::clone(&watcher));
        let name = match end.control.rank {
            Some(rank) => format!("mscclpp-ib-{rank}"),
            None => "mscclpp-ib".into(),
        };
        let span = tracing::Span::current();
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || run(&theirs, start, &watched, span))
            .map_err(|error| Error::io("start the thread of a connection", error))?;
        Ok(Self {
            end,
            places,
            watcher,
            thread: Some(thread),
        })
    }

    fn post(&self, post: Post) -> Result<()> {
        self.end.with_posts(|posts| posts.push(post))
    }
}

/// The connection's own thread: the hand-shake, and then signals that this host executes.
fn run(end: &Arc<IbEnd>, start: Start, watcher: &Watcher, span: tracing::Span) {
    let result = span
        .in_scope(|| bring_up(end, start))
        .and_then(|()| watcher.add(Arc::clone(end) as Arc<dyn Watched>));
    // The connection is made.
    drop(span);
    match result {
        Ok(()) => end.keep_receiving(),
        // Why is known.
        Err(_) if end.control.given_up() => end.end(),
        Err(error) => end.fail(error),
    }
}

/// Neither end posts before both are ready to receive: requests to a queue that is not would use up
/// their retries.
fn bring_up(end: &IbEnd, start: Start) -> Result<()> {
    let control = &end.control;
    control.attach(start.route)?;
    control.check()?;
    let pair = start.connector.connect()?;
    meet(end, start.deadline)?;
    let mut posts = lock(&end.posts);
    // Who ends the connection says so, and then lets go of the pair under this lock.
    if end.has_ended() {
        return Err(control.peer_down("this end is closing"));
    }
    posts.start(pair)?;
    drop(posts);
    control.set_ready();
    Ok(())
}

/// Says that this end is ready, and waits until the other is, too.
fn meet(end: &IbEnd, deadline: Deadline) -> Result<()> {
    let Some(control) = end.control.control() else {
        return Ok(());
    };
    (control.send(&Message::Connected)).map_err(|error| {
        // Its last word tells more than the broken stream.
        let last = control.last().and_then(|last| end.control.meaning(last));
        last.unwrap_or_else(|| {
            end.control
                .peer_down(format!("its connection broke: {error}"))
        })
    })?;
    loop {
        end.control.check()?;
        match control.receive() {
            Arrived::Message(Message::Connected) => return Ok(()),
            arrived => {
                if let Some(error) = end.control.meaning(arrived) {
                    return Err(error);
                }
            }
        }
        if deadline.expired() {
            return Err(Error::Timeout {
                operation: "waiting for the other end of a queue".into(),
                rank: end.control.rank,
                waited: deadline.budget(),
            });
        }
        control.park(deadline.remaining().min(LOOK_EVERY));
    }
}

impl Transport for IbTransport {
    fn write(
        &self,
        dst: &RegisteredMemory,
        dst_off: u64,
        src: &RegisteredMemory,
        src_off: u64,
        len: u64,
    ) -> Result<()> {
        self.end.control.status.check()?;
        let HcaTarget { address, key, .. } =
            dst.hca_target("write, destination", self.places.peer, dst_off, len)?;
        let source: HcaSource = src.hca_source("write, source", self.places.own, src_off, len)?;
        if len == 0 {
            return Ok(());
        }
        self.post(Post::Write {
            to: address,
            to_key: key,
            from: source.address,
            from_key: source.key,
            len,
            keep: source.keep,
        })
    }

    fn signal(&self, token: &RegisteredMemory, off: u64) -> Result<()> {
        self.end.control.status.check()?;
        let target = token.hca_target_word("signal", self.places.peer, off)?;
        let HcaTarget {
            address: to, key, ..
        } = target;
        if self.end.receiver.is_none() {
            return self.post(Post::Add {
                operation: Operation::Signal,
                to,
                key,
                operand: 1,
            });
        }
        if target.offset != 0 {
            return Err(Error::Unsupported {
                operation: "signal a word that is not the first of its registration",
                transport: self.places.own.1,
                missing: "without atomics (IbMode::HostNoAtomic) a signal has room for a key only",
            });
        }
        self.post(Post::Notice { token: key })
    }

    fn accumulate(&self, dst: &RegisteredMemory, off: u64, operand: i64) -> Result<()> {
        self.end.control.status.check()?;
        if self.end.receiver.is_some() {
            return Err(Error::Unsupported {
                operation: "accumulate",
                transport: self.places.own.1,
                missing: "it needs atomics of the HCA, and the mode is IbMode::HostNoAtomic",
            });
        }
        let target = dst.hca_target_word("accumulate", self.places.peer, off)?;
        self.post(Post::Add {
            operation: Operation::Accumulate,
            to: target.address,
            key: target.key,
            operand: operand.cast_unsigned(),
        })
    }

    fn request_flush(&self) -> Result<u64> {
        self.end.with_posts(|posts| posts.flush())
    }

    fn kick(&self) {
        // It has ended the connection if it has failed.
        let _ = self.end.with_posts(|posts| posts.pump());
    }

    fn has_room(&self) -> bool {
        let has = self.end.with_posts(|posts| {
            if !posts.has_room() {
                posts.look()?;
            }
            Ok(posts.has_room())
        });
        // A dead connection has room: what is posted gets its error.
        has.unwrap_or(true)
    }

    fn progress(&self) -> Result<Progress> {
        self.end.with_posts(|posts| {
            posts.look()?;
            Ok(Progress {
                flushed: posts.flushed(),
                busy: posts.is_busy(),
            })
        })
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_connected(&self) -> bool {
        self.end.control.is_ready()
    }

    fn counts(&self) -> LinkCounts {
        let counts = &self.end.counts;
        LinkCounts {
            doorbells: Some(counts.doorbells.get()),
            completions: Some(counts.completions.get()),
            ..LinkCounts::default()
        }
    }

    fn abort(&self) {
        self.end.end();
    }
}

impl IbTransport {
    /// Waits until what was posted is done.
    fn settle(&self, deadline: Deadline) {
        let done = || !matches!(self.progress(), Ok(Progress { busy: true, .. }));
        if !wait_until(deadline, done) {
            let (rank, waited) = (self.end.control.rank, deadline.budget());
            tracing::warn!(
                ?rank,
                ?waited,
                "a connection is dropped before its posts are done"
            );
        }
    }
}

impl Drop for IbTransport {
    fn drop(&mut self) {
        let control = &self.end.control;
        // One time for both: what was posted before the connection is up waits for that.
        let linger = Deadline::after(control.deadlines.linger);
        control.linger(linger);
        self.settle(linger);
        let watched: Arc<dyn Watched> = Arc::clone(&self.end) as _;
        let thread = self.thread.take();
        control.leave(&self.watcher, &watched, thread, || self.end.end());
    }
}
