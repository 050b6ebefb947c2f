// SPDX-License-Identifier: MIT
//! The connections of a communicator: whose they are, and who has died.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use mscclpp_bootstrap::{Bootstrap, FailureObserver, PeerFailure};

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::status::StickyStatus;

/// Marks the connections to a rank that has died, and all of them where the other ranks take this
/// one for dead.
///
/// Each connection keeps it alive, and with it the bootstrap that tells it of deaths.
pub(super) struct Peers {
    state: Mutex<State>,
    rank: usize,
    /// Held for its observation of the other ranks.
    _bootstrap: Arc<dyn Bootstrap>,
}

#[derive(Default)]
struct State {
    connections: Vec<Entry>,
    dead: HashMap<usize, PeerFailure>,
}

struct Entry {
    /// Stands for the connection, and is not kept alive by the communicator.
    connection: Weak<StickyStatus>,
    rank: usize,
    tag: u32,
}

impl Peers {
    pub(super) fn new(bootstrap: &Arc<dyn Bootstrap>) -> Arc<Self> {
        let peers = Arc::new(Self {
            state: Mutex::default(),
            rank: bootstrap.rank(),
            _bootstrap: Arc::clone(bootstrap),
        });
        let observer: Weak<Self> = Arc::downgrade(&peers);
        bootstrap.observe_failures(observer);
        peers
    }

    /// Enters a new connection by its status; if its rank is dead already, it is marked at once.
    pub(super) fn enter(self: &Arc<Self>, status: &Arc<StickyStatus>, rank: usize, tag: u32) {
        status.keep(Arc::clone(self) as _);
        let mut state = self.lock();
        state
            .connections
            .retain(|entry| entry.connection.strong_count() > 0);
        state.connections.push(Entry {
            connection: Arc::downgrade(status),
            rank,
            tag,
        });
        let dead = (state.dead.get(&self.rank).or_else(|| state.dead.get(&rank))).cloned();
        drop(state);
        if let Some(failure) = dead {
            status.fail(down(rank, &failure));
        }
    }

    /// The rank and tag that a connection was made for.
    pub(super) fn find(&self, connection: &Connection) -> Result<(usize, u32)> {
        let status = Arc::as_ptr(connection.sticky());
        let state = self.lock();
        let entry = (state.connections.iter()).find(|entry| entry.connection.as_ptr() == status);
        entry
            .map(|entry| (entry.rank, entry.tag))
            .ok_or_else(|| Error::UnknownConnection {
                rank: connection.peer(),
            })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FailureObserver for Peers {
    fn peer_failed(&self, failure: &PeerFailure) {
        let mut state = self.lock();
        state.dead.insert(failure.rank, failure.clone());
        let all = failure.rank == self.rank;
        let told: Vec<(usize, Arc<StickyStatus>)> = (state.connections.iter())
            .filter(|entry| all || entry.rank == failure.rank)
            .filter_map(|entry| Some((entry.rank, entry.connection.upgrade()?)))
            .collect();
        drop(state);
        let count = (told.iter())
            .filter(|(rank, status)| status.fail(down(*rank, failure)))
            .count();
        if count > 0 {
            tracing::warn!(
                rank = failure.rank,
                cause = %failure.cause,
                connections = count,
                "a rank is gone; its connections are marked"
            );
        }
    }
}

/// The error of a connection to `rank`.
fn down(rank: usize, failure: &PeerFailure) -> Error {
    let cause = if failure.rank == rank {
        failure.to_string()
    } else {
        format!("the other ranks take this one for dead: {failure}")
    };
    Error::PeerDown {
        rank: Some(rank),
        cause,
    }
}
