// SPDX-License-Identifier: MIT
//! What a device reports of itself, to whoever watches it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mlx5_queue::{Opcode, QueueNumber, Syndrome};
use rustix::event::{EventfdFlags, eventfd};

use crate::DeviceAddress;

/// Events kept until they are asked for.
const MAX_EVENTS: usize = 4096;

/// Something that a device reports once, as verbs' asynchronous events: see
/// [`Device::next_event`](crate::Device::next_event).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A queue pair has gone into state Error: it executes nothing any more,
    /// and what is posted is flushed. Once per life of the queue pair; a reset
    /// begins another.
    #[non_exhaustive]
    QueuePairFailed {
        /// The queue pair. It may be gone by now, and its number rests a while
        /// before another gets it.
        queue: QueueNumber,
        /// Which side of it failed.
        cause: FailureCause,
        /// What failed it: the error of its own request
        /// ([`FailureCause::Requester`]), or the one that it answered its peer
        /// with ([`FailureCause::Responder`]).
        syndrome: Option<Syndrome>,
        /// Position in the send queue of the request that failed; of the
        /// oldest unfinished one where none did.
        index: u64,
        /// Opcode of the request that failed, if it is known by now.
        opcode: Option<Opcode>,
    },
    /// The link to this device is down: its process or device has gone, or
    /// what it sent could not be read. Once per link; not for one that
    /// another to the same device has replaced here, though the end that
    /// replaces it last may see it close first. Queue pairs that are connected
    /// to that device notice at their next request only, when its retries are
    /// used up.
    #[non_exhaustive]
    LinkDown {
        /// The device at the other end.
        peer: DeviceAddress,
    },
    /// More happened than was asked for in time: this many events after the
    /// last one were dropped. What they would have said is in
    /// [`QueuePair::status`](crate::QueuePair::status) and
    /// [`Device::links`](crate::Device::links).
    #[non_exhaustive]
    Overflow {
        /// Events dropped.
        lost: u64,
    },
}

/// What put a queue pair into state Error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureCause {
    /// A request of its own failed, or its queue cannot be used.
    Requester,
    /// It refused a request of its peer.
    Responder,
    /// Its owner: [`Transition::Error`](crate::Transition::Error).
    Owner,
}

/// Events between the engine and those who wait for them.
#[derive(Debug)]
pub(crate) struct EventQueue {
    kept: Mutex<Kept>,
    arrived: Condvar,
    /// Readable while something is kept.
    readable: OwnedFd,
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<Event>,
    lost: u64,
}

impl EventQueue {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            kept: Mutex::default(),
            arrived: Condvar::new(),
            readable: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: Event) {
        tracing::debug!(?event, "an event of a NIC in software");
        let mut kept = self.lock();
        if kept.events.len() >= MAX_EVENTS || kept.lost > 0 {
            kept.lost = kept.lost.saturating_add(1);
            return;
        }
        if kept.events.is_empty() {
            // Of a counter that is zero it cannot fail.
            let _ = rustix::io::write(&self.readable, &1u64.to_ne_bytes());
        }
        kept.events.push_back(event);
        drop(kept);
        self.arrived.notify_one();
    }

    /// The oldest event, within `timeout`.
    pub(crate) fn next(&self, timeout: Duration) -> Option<Event> {
        let end = Instant::now().checked_add(timeout);
        let mut kept = self.lock();
        loop {
            if let Some(event) = self.take(&mut kept) {
                return Some(event);
            }
            let left = match end {
                Some(end) => end.saturating_duration_since(Instant::now()),
                None => timeout,
            };
            if left.is_zero() {
                return None;
            }
            let woken = self.arrived.wait_timeout(kept, left);
            kept = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn take(&self, kept: &mut Kept) -> Option<Event> {
        let event = match kept.events.pop_front() {
            Some(event) => event,
            None if kept.lost > 0 => Event::Overflow {
                lost: std::mem::take(&mut kept.lost),
            },
            None => return None,
        };
        if kept.events.is_empty() && kept.lost == 0 {
            let _ = rustix::io::read(&self.readable, &mut [0; 8]);
        }
        Some(event)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}
