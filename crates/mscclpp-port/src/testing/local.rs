// SPDX-License-Identifier: MIT
//! A bootstrap of ranks that are threads of this process, and that can be killed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, Weak};

use mscclpp_bootstrap::{
    Bootstrap, BootstrapError, Deadline, FailureKind, FailureObserver, PeerFailure, Tag,
};

type Stream = (usize, usize, Tag);

#[derive(Default)]
struct Hub {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    streams: HashMap<Stream, VecDeque<Vec<u8>>>,
    dead: Vec<PeerFailure>,
    observers: Vec<(usize, Weak<dyn FailureObserver>)>,
}

/// One rank.
pub(crate) struct Local {
    rank: usize,
    world: usize,
    hub: Arc<Hub>,
}

impl Local {
    /// A world of so many ranks, and what kills one of them.
    pub(crate) fn world(size: usize) -> (Vec<Arc<dyn Bootstrap>>, impl Fn(usize) + Send + Sync) {
        let hub = Arc::new(Hub::default());
        let ranks = (0..size)
            .map(|rank| {
                let hub = Arc::clone(&hub);
                Arc::new(Self {
                    rank,
                    world: size,
                    hub,
                }) as Arc<dyn Bootstrap>
            })
            .collect();
        let kill = move |rank| {
            let failure = PeerFailure::new(rank, FailureKind::Died, "killed by the test");
            let mut state = hub.state.lock().unwrap();
            state.dead.push(failure.clone());
            let observers: Vec<_> = (state.observers.iter())
                .filter(|(observer, _)| *observer != rank)
                .filter_map(|(_, observer)| observer.upgrade())
                .collect();
            drop(state);
            hub.changed.notify_all();
            for observer in observers {
                observer.peer_failed(&failure);
            }
        };
        (ranks, kill)
    }
}

impl Bootstrap for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world
    }

    fn send(&self, peer: usize, tag: Tag, data: &[u8], _: Deadline) -> Result<(), BootstrapError> {
        let mut state = self.hub.state.lock().unwrap();
        let stream = state.streams.entry((self.rank, peer, tag)).or_default();
        stream.push_back(data.to_vec());
        drop(state);
        self.hub.changed.notify_all();
        Ok(())
    }

    fn recv(&self, peer: usize, tag: Tag, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        let mut state = self.hub.state.lock().unwrap();
        loop {
            let stream = state.streams.entry((peer, self.rank, tag)).or_default();
            if let Some(message) = stream.pop_front() {
                return Ok(message);
            }
            let operation = "a receive".to_owned();
            if let Some(failure) = state.dead.iter().find(|failure| failure.rank == peer) {
                return Err(BootstrapError::from_failure(failure, self.rank, operation));
            }
            if deadline.expired() {
                return Err(BootstrapError::Timeout {
                    rank: self.rank,
                    operation,
                    waiting_for: vec![peer],
                    waited: deadline.budget(),
                    hint: String::new(),
                });
            }
            let waited = (self.hub.changed).wait_timeout(state, deadline.remaining());
            state = waited.unwrap().0;
        }
    }

    fn observe_failures(&self, observer: Weak<dyn FailureObserver>) {
        let mut state = self.hub.state.lock().unwrap();
        state.observers.push((self.rank, Weak::clone(&observer)));
        let dead = state.dead.clone();
        drop(state);
        if let Some(observer) = observer.upgrade() {
            for failure in dead {
                observer.peer_failed(&failure);
            }
        }
    }
}
