// SPDX-License-Identifier: MIT
//! What an HCA reports by itself: queues that it has stopped, ports that went away, its own end.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::sync::lock_plain as lock;
use crate::verbs::AsyncEvent;

/// What was reported and still holds. Shared by the HCA and its queues.
#[derive(Default)]
pub(super) struct News(Mutex<State>);

#[derive(Default)]
struct State {
    queues: HashMap<u32, Fault>,
    /// Ports that are down, and since when.
    ports: HashMap<u8, Instant>,
    gone: bool,
}

/// Why an HCA stopped a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It refused a request of the peer.
    Refused,
    /// It, or its completion queue, failed.
    Failed,
}

/// What ends a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Queue(Fault),
    PortDown(Duration),
    Gone,
}

impl News {
    /// Takes a report of the HCA `name`.
    pub(super) fn take(&self, name: &str, event: &AsyncEvent) {
        let mut state = lock(&self.0);
        match *event {
            AsyncEvent::QueuePair { number, refused } => {
                let fault = if refused { Fault::Refused } else { Fault::Failed };
                state.queues.entry(number).or_insert(fault);
            }
            AsyncEvent::PortActive { port } => {
                if let Some(since) = state.ports.remove(&port) {
                    tracing::info!(hca = name, port, down = ?since.elapsed(), "a port is up again");
                }
            }
            AsyncEvent::PortDown { port } => {
                tracing::warn!(hca = name, port, "a port is down; requests are sent again meanwhile");
                state.ports.entry(port).or_insert_with(Instant::now);
            }
            AsyncEvent::GidChange { port } => {
                tracing::info!(hca = name, port, "the table of GIDs has changed: new connections use it");
            }
            AsyncEvent::DeviceFatal => state.gone = true,
            ref other => tracing::debug!(hca = name, event = ?other, "an HCA reports"),
        }
    }

    /// What ends the connections of a queue at a port. A port may be down for a while.
    pub(super) fn trouble(&self, queue: u32, port: u8, patience: Duration) -> Option<Trouble> {
        let state = lock(&self.0);
        if state.gone {
            return Some(Trouble::Gone);
        }
        if let Some(fault) = state.queues.get(&queue) {
            return Some(Trouble::Queue(*fault));
        }
        let down = state.ports.get(&port)?.elapsed();
        (down > patience).then_some(Trouble::PortDown(down))
    }

    /// A queue is gone; its number may come again.
    pub(super) fn forget(&self, queue: u32) {
        lock(&self.0).queues.remove(&queue);
    }
}
