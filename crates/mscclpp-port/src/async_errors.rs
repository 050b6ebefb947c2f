// SPDX-License-Identifier: MIT
//! What a supervisor hears of: every connection that ends by itself, in the order in which it becomes
//! known, whoever waits on it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use mscclpp_bootstrap::Deadline;

use crate::error::Error;
use crate::sync::lock_plain as lock;
use crate::transport::TransportKind;

/// A connection that has ended by itself.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AsyncError {
    /// The rank at this end, where it has one.
    pub rank: Option<usize>,
    /// The rank at the other end, where it has one.
    pub peer: Option<usize>,
    /// The transport of this end.
    pub transport: TransportKind,
    /// The connection's sticky error, by which all its operations fail from now on.
    pub error: Error,
}

impl fmt::Display for AsyncError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rank,
            peer,
            transport,
            error,
        } = self;
        let name = |rank: &Option<usize>| rank.map_or("?".into(), |rank| rank.to_string());
        write!(
            f,
            "connection of rank {} to rank {} over {transport}: {error}",
            name(rank),
            name(peer)
        )
    }
}

/// The errors of a context's connections, from when this was made. Each connection has one at most:
/// its first, also when that is the peer's orderly goodbye. Every such stream gets all of them; they
/// wait in it until they are taken.
///
/// May be used from any thread. Holds nothing but what it has not handed out.
pub struct AsyncErrors {
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<VecDeque<AsyncError>>,
    changed: Condvar,
}

impl AsyncErrors {
    /// The next error, if there is one.
    #[must_use]
    pub fn try_next(&self) -> Option<AsyncError> {
        lock(&self.queue.waiting).pop_front()
    }

    /// The next error, waiting for it; none when the deadline passes first.
    #[must_use]
    pub fn next_by(&self, deadline: Deadline) -> Option<AsyncError> {
        let waiting = lock(&self.queue.waiting);
        let none = |waiting: &mut VecDeque<AsyncError>| waiting.is_empty();
        let waited = (self.queue.changed).wait_timeout_while(waiting, deadline.remaining(), none);
        waited.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }
}

impl fmt::Debug for AsyncErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = lock(&self.queue.waiting).len();
        (f.debug_struct("AsyncErrors"))
            .field("waiting", &waiting)
            .finish()
    }
}

/// Hands what happens to a context's connections to those who listen.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<Vec<Weak<Queue>>>);

impl Listeners {
    pub(crate) fn listen(&self) -> AsyncErrors {
        let queue = Arc::<Queue>::default();
        let mut listeners = lock(&self.0);
        listeners.retain(|queue| queue.strong_count() > 0);
        listeners.push(Arc::downgrade(&queue));
        AsyncErrors { queue }
    }

    pub(crate) fn tell(&self, error: &AsyncError) {
        for queue in lock(&self.0).iter().filter_map(Weak::upgrade) {
            lock(&queue.waiting).push_back(error.clone());
            queue.changed.notify_all();
        }
    }
}
