// SPDX-License-Identifier: MIT
//! The sending side towards one peer: whether there is a connection, and how
//! much the peer has not taken yet.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::UnboundedSender;

use super::mailbox::cost;
use crate::{Deadline, Tag};

/// How much (see [`cost`]) a peer may leave untaken before senders wait. One
/// message may begin while less than this is untaken, whatever its size.
pub(crate) const WINDOW: u64 = 1 << 30;
/// What was taken is reported in steps of this. A sender waits only while a whole
/// window is untaken, so an unreported rest never blocks it.
pub(crate) const CREDIT_STEP: u64 = WINDOW / 8;

/// Whether there is a connection.
#[derive(Debug)]
pub(crate) enum Link {
    /// None, and nobody is making one.
    Idle,
    /// This rank is connecting.
    Connecting,
    /// The peer is about to connect: it declined ours for its own.
    Awaiting,
    /// The peer has proven itself and has not opened the connection yet; the
    /// number tells one such attempt from the next.
    Accepting(u64),
    /// This rank has opened its connection, and the peer has not confirmed it
    /// yet. Nothing but a goodbye may be sent.
    Opening(Outbox),
    Open(Outbox),
    /// The peer is gone.
    Closed,
}

/// The way into a connection's writer.
#[derive(Clone, Debug)]
pub(crate) struct Outbox {
    /// Small news that overtake messages.
    pub(crate) urgent: UnboundedSender<News>,
    pub(crate) messages: UnboundedSender<Job>,
}

/// What a writer sends between the pieces of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Credit(u64),
    Death {
        rank: usize,
        cause: String,
    },
    /// A sign of life, with or without the wish for an answer.
    Beat {
        answer: bool,
    },
    Goodbye,
}

/// A message on its way to the writer.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) tag: Tag,
    pub(crate) data: Vec<u8>,
    /// Its place in the order of all messages to the peer, from 1.
    pub(crate) number: u64,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) link: Link,
    /// Why the last attempt to connect failed.
    pub(crate) trouble: Option<String>,
    accepting: u64,
    /// The cost of what was sent and not reported as taken.
    untaken: u64,
    /// The cost of what this rank took and has not reported.
    unreported: u64,
    queued: u64,
    written: u64,
    /// A sign of life waits to be written; another would say no more.
    beating: bool,
}

#[derive(Debug)]
pub(crate) struct Outgoing {
    state: Mutex<State>,
    changed: Condvar,
}

impl Default for Outgoing {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                link: Link::Idle,
                trouble: None,
                accepting: 0,
                untaken: 0,
                unreported: 0,
                queued: 0,
                written: 0,
                beating: false,
            }),
            changed: Condvar::new(),
        }
    }
}

/// What a thread waited for when its time was up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    Connection,
    Room,
    /// The message is queued, and goes out when the peer takes more.
    Writer,
}

/// How an attempt to queue a message ended.
pub(crate) enum Sent<G> {
    /// It is written to the socket.
    Written,
    Gone(G),
    Expired(Waiting, Option<String>),
}

impl Outgoing {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes every waiting thread look again.
    pub(crate) fn wake(&self) {
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Changes the link and lets waiting threads know.
    pub(crate) fn set(&self, mut state: MutexGuard<'_, State>, link: Link) {
        state.link = link;
        // What waited for another writer is gone with it.
        state.beating = false;
        drop(state);
        self.changed.notify_all();
    }

    /// Changes the link if it is as `expected`; returns whether it was.
    pub(crate) fn change(&self, expected: impl Fn(&Link) -> bool, link: Link) -> bool {
        let state = self.lock();
        let was = expected(&state.link);
        if was {
            self.set(state, link);
        }
        was
    }

    /// The peer has confirmed the connection that this rank opened; false if the
    /// peer is gone by now.
    pub(crate) fn confirm(&self) -> bool {
        let mut state = self.lock();
        match std::mem::replace(&mut state.link, Link::Closed) {
            Link::Opening(outbox) => {
                self.set(state, Link::Open(outbox));
                true
            }
            other => {
                state.link = other;
                false
            }
        }
    }

    /// Keeps a place for a connection that the peer makes; the number is the
    /// attempt's.
    pub(crate) fn accept(&self, mut state: MutexGuard<'_, State>) -> u64 {
        state.accepting += 1;
        let attempt = state.accepting;
        self.set(state, Link::Accepting(attempt));
        attempt
    }

    /// Sends a piece of news if there is a connection. One that is ending passes nothing on any
    /// more, and whoever learns of its end knows more than the news.
    pub(crate) fn tell(&self, news: News) {
        if let Link::Open(outbox) = &self.lock().link {
            let _ = outbox.urgent.send(news);
        }
    }

    /// Sends a sign of life, unless one waits to be written: a peer that asks for many and reads
    /// none gets no more than one.
    pub(crate) fn beat(&self, answer: bool) {
        let mut state = self.lock();
        if let Link::Open(outbox) = &state.link
            && !state.beating
            && outbox.urgent.send(News::Beat { answer }).is_ok()
        {
            state.beating = true;
        }
    }

    /// No sign of life goes out from now on, unless one is waiting to be written.
    #[cfg(test)]
    pub(crate) fn hold_beats(&self) {
        self.lock().beating = true;
    }

    pub(crate) fn beat_written(&self) {
        self.lock().beating = false;
    }

    pub(crate) fn written(&self, number: u64) {
        self.lock().written = number;
        self.changed.notify_all();
    }

    pub(crate) fn credit(&self, cost: u64) {
        let mut state = self.lock();
        state.untaken = state.untaken.saturating_sub(cost);
        drop(state);
        self.changed.notify_all();
    }

    /// This rank took a message of the peer.
    pub(crate) fn took(&self, length: usize) {
        let mut state = self.lock();
        state.unreported += cost(length);
        if state.unreported >= CREDIT_STEP
            && let Link::Open(outbox) = &state.link
            && outbox.urgent.send(News::Credit(state.unreported)).is_ok()
        {
            state.unreported = 0;
        }
    }

    /// Sends one message: waits for a connection (asking `connect` to make one
    /// where there is none), for room, and until it is written.
    pub(crate) fn send<G>(
        &self,
        tag: Tag,
        data: &[u8],
        deadline: Deadline,
        gone: impl Fn() -> Option<G>,
        connect: impl Fn(),
    ) -> Sent<G> {
        // Copied before the lock is taken: the message may be large.
        let mut data = data.to_vec();
        let mut number = None;
        let mut state = self.lock();
        loop {
            if number.is_some_and(|number| state.written >= number) {
                return Sent::Written;
            }
            if let Some(gone) = gone() {
                return Sent::Gone(gone);
            }
            let waiting = match &state.link {
                _ if number.is_some() => Waiting::Writer,
                Link::Open(_) if state.untaken >= WINDOW => Waiting::Room,
                Link::Open(outbox) => {
                    let next = state.queued + 1;
                    let cost = cost(data.len());
                    let job = Job {
                        tag,
                        data: std::mem::take(&mut data),
                        number: next,
                    };
                    match outbox.messages.send(job) {
                        Ok(()) => {
                            number = Some(next);
                            state.queued = next;
                            state.untaken = state.untaken.saturating_add(cost);
                            Waiting::Writer
                        }
                        // The connection has ended; that is about to be recorded.
                        Err(returned) => {
                            data = returned.0.data;
                            Waiting::Connection
                        }
                    }
                }
                Link::Idle => {
                    state.link = Link::Connecting;
                    connect();
                    Waiting::Connection
                }
                _ => Waiting::Connection,
            };
            if deadline.expired() {
                return Sent::Expired(waiting, state.trouble.clone());
            }
            (state, _) = self
                .changed
                .wait_timeout(state, deadline.remaining())
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::*;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_millis(5))
    }

    #[test]
    fn a_full_window_holds_senders_until_credit_comes() {
        let outgoing = Outgoing::default();
        let (urgent, _news) = mpsc::unbounded_channel();
        let (messages, mut jobs) = mpsc::unbounded_channel();
        outgoing.set(outgoing.lock(), Link::Open(Outbox { urgent, messages }));
        outgoing.lock().untaken = WINDOW;
        let sent = outgoing.send(Tag::user(0), b"x", soon(), || None::<()>, || {});
        assert!(matches!(sent, Sent::Expired(Waiting::Room, None)));
        assert!(jobs.try_recv().is_err());
        outgoing.credit(1);
        let sent = outgoing.send(Tag::user(0), b"x", soon(), || None::<()>, || {});
        assert!(matches!(sent, Sent::Expired(Waiting::Writer, None)));
        assert_eq!(jobs.try_recv().unwrap().number, 1);
        // Nobody writes any more: it is not on its way.
        drop(jobs);
        outgoing.credit(WINDOW);
        let sent = outgoing.send(Tag::user(0), b"x", soon(), || None::<()>, || {});
        assert!(matches!(sent, Sent::Expired(Waiting::Connection, None)));
    }

    #[test]
    fn a_peer_that_asks_for_signs_of_life_and_reads_none_gets_one() {
        let outgoing = Outgoing::default();
        let (urgent, mut news) = mpsc::unbounded_channel();
        let (messages, _jobs) = mpsc::unbounded_channel();
        let outbox = Outbox { urgent, messages };
        outgoing.set(outgoing.lock(), Link::Open(outbox.clone()));
        for _ in 0..3 {
            outgoing.beat(false);
        }
        assert_eq!(news.try_recv(), Ok(News::Beat { answer: false }));
        assert!(news.try_recv().is_err());
        outgoing.beat_written();
        outgoing.beat(true);
        assert_eq!(news.try_recv(), Ok(News::Beat { answer: true }));
        // Another writer knows nothing of what waited for the first.
        outgoing.set(outgoing.lock(), Link::Open(outbox));
        outgoing.beat(true);
        assert!(news.try_recv().is_ok());
    }

    #[test]
    fn taken_messages_are_reported_in_steps() {
        let outgoing = Outgoing::default();
        let (urgent, mut news) = mpsc::unbounded_channel();
        let (messages, _jobs) = mpsc::unbounded_channel();
        outgoing.set(outgoing.lock(), Link::Open(Outbox { urgent, messages }));
        outgoing.took(10);
        assert!(news.try_recv().is_err());
        outgoing.took(CREDIT_STEP as usize);
        let total = cost(10) + cost(CREDIT_STEP as usize);
        assert_eq!(news.try_recv(), Ok(News::Credit(total)));
    }

    #[test]
    fn without_a_connection_one_is_asked_for_once() {
        let outgoing = Outgoing::default();
        let asked = std::cell::Cell::new(0);
        for _ in 0..2 {
            let connect = || asked.set(asked.get() + 1);
            let sent = outgoing.send(Tag::user(0), b"x", soon(), || None::<()>, connect);
            assert!(matches!(sent, Sent::Expired(Waiting::Connection, None)));
        }
        assert_eq!(asked.get(), 1);
    }
}
