// SPDX-License-Identifier: MIT
//! What an HCA reports by itself: queues that it has stopped, ports that went away, its own end.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::sync::lock_plain as lock;
use crate::verbs::{AsyncEvent, PortChange, QueueChange};

/// What was reported and still holds. Shared by the HCA and its queues.
#[derive(Default)]
pub(super) struct News(Mutex<State>);

#[derive(Default)]
struct State {
    queues: HashMap<u32, Fault>,
    /// Completion queues that were overrun.
    completions: HashSet<u64>,
    /// Ports that are down, and since when.
    ports: HashMap<u8, Instant>,
    gone: bool,
}

/// What reports a connection is affected by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Affected {
    /// Number of its queue pair.
    pub(super) queue: u32,
    /// Its completion queues.
    pub(super) completions: [u64; 2],
    pub(super) port: u8,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
            AsyncEvent::QueuePair { number, change } => {
                let fault = match change {
                    QueueChange::Fatal => Fault::Failed,
                    QueueChange::RequestError | QueueChange::AccessError => Fault::Refused,
                    _ => return,
                };
                state.queues.entry(number).or_insert(fault);
            }
            AsyncEvent::CompletionQueue { id } => {
                state.completions.insert(id);
            }
            AsyncEvent::Port { number, change } => match change {
                PortChange::Active => {
                    if let Some(since) = state.ports.remove(&number) {
                        let down = since.elapsed();
                        tracing::info!(hca = name, port = number, ?down, "a port is up again");
                    }
                }
                PortChange::Down => {
                    tracing::warn!(hca = name, port = number, "a port is down");
                    state.ports.entry(number).or_insert_with(Instant::now);
                }
                change => tracing::info!(hca = name, port = number, ?change, "a port has changed"),
            },
            AsyncEvent::DeviceFatal => state.gone = true,
            other => tracing::debug!(hca = name, event = ?other, "an HCA reports"),
        }
    }

    /// What ends the connection of a queue. A port may be down for a while.
    pub(super) fn trouble(&self, of: &Affected, patience: Duration) -> Option<Trouble> {
        let state = lock(&self.0);
        if state.gone {
            return Some(Trouble::Gone);
        }
        if let Some(fault) = state.queues.get(&of.queue) {
            return Some(Trouble::Queue(*fault));
        }
        if (of.completions.iter()).any(|id| state.completions.contains(id)) {
            return Some(Trouble::Queue(Fault::Failed));
        }
        let down = state.ports.get(&of.port)?.elapsed();
        (down > patience).then_some(Trouble::PortDown(down))
    }

    /// A queue is gone; its number may come again.
    pub(super) fn forget(&self, of: &Affected) {
        let mut state = lock(&self.0);
        state.queues.remove(&of.queue);
        for id in of.completions {
            state.completions.remove(&id);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(20);

    fn affected(queue: u32, port: u8) -> Affected {
        Affected {
            queue,
            completions: [7, 8],
            port,
        }
    }

    fn queue(number: u32, change: QueueChange) -> AsyncEvent {
        AsyncEvent::QueuePair { number, change }
    }

    fn port(number: u8, change: PortChange) -> AsyncEvent {
        AsyncEvent::Port { number, change }
    }

    #[test]
    fn ib_a_queue_that_the_hca_stopped_ends_its_own_connection_only() {
        let news = News::default();
        news.take("x", &queue(3, QueueChange::Established));
        news.take("x", &queue(3, QueueChange::AccessError));
        news.take("x", &queue(3, QueueChange::Fatal));
        news.take("x", &queue(4, QueueChange::Fatal));
        let of = |number| news.trouble(&affected(number, 1), PATIENCE);
        // What came first is the cause.
        assert_eq!(of(3), Some(Trouble::Queue(Fault::Refused)));
        assert_eq!(of(4), Some(Trouble::Queue(Fault::Failed)));
        assert_eq!(of(5), None);
        // A later queue with the same number is another one.
        news.forget(&affected(3, 1));
        assert_eq!(of(3), None);
        news.take("x", &AsyncEvent::CompletionQueue { id: 8 });
        assert_eq!(of(5), Some(Trouble::Queue(Fault::Failed)));
    }

    #[test]
    fn ib_a_port_may_be_down_for_a_while_and_a_device_that_is_gone_ends_all() {
        let news = News::default();
        news.take("x", &port(1, PortChange::Down));
        assert_eq!(news.trouble(&affected(3, 1), PATIENCE), None);
        std::thread::sleep(PATIENCE * 2);
        let trouble = news.trouble(&affected(3, 1), PATIENCE);
        assert!(matches!(trouble, Some(Trouble::PortDown(_))), "{trouble:?}");
        assert_eq!(news.trouble(&affected(3, 2), PATIENCE), None);
        news.take("x", &port(1, PortChange::Active));
        assert_eq!(news.trouble(&affected(3, 1), PATIENCE), None);
        news.take("x", &AsyncEvent::DeviceFatal);
        let trouble = news.trouble(&affected(3, 2), PATIENCE);
        assert_eq!(trouble, Some(Trouble::Gone));
    }
}
