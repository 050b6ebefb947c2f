// SPDX-License-Identifier: MIT
//! Ranks in one process that pass messages through memory: cheap enough for
//! hundreds of them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};

use mscclpp_bootstrap::{Bootstrap, BootstrapError, Deadline, Tag, Turns};

/// By sender and tag.
type Queues = HashMap<(usize, Tag), VecDeque<Vec<u8>>>;

/// One rank's messages.
#[derive(Default)]
struct Inbox {
    queues: Mutex<Queues>,
    changed: Condvar,
}

/// One rank of a world in memory. It notices no deaths.
pub(crate) struct Local {
    rank: usize,
    inboxes: Arc<Vec<Inbox>>,
    turns: Turns,
}

/// A world of so many ranks.
pub(crate) fn local_world(world: usize) -> Vec<Local> {
    let inboxes: Arc<Vec<Inbox>> = Arc::new((0..world).map(|_| Inbox::default()).collect());
    (0..world)
        .map(|rank| Local {
            rank,
            inboxes: Arc::clone(&inboxes),
            turns: Turns::new(),
        })
        .collect()
}

impl Bootstrap for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.inboxes.len()
    }

    fn send(&self, peer: usize, tag: Tag, data: &[u8], _: Deadline) -> Result<(), BootstrapError> {
        let inbox = &self.inboxes[peer];
        let mut queues = inbox.queues.lock().unwrap();
        let queue = queues.entry((self.rank, tag)).or_default();
        queue.push_back(data.to_vec());
        inbox.changed.notify_all();
        Ok(())
    }

    fn recv(&self, peer: usize, tag: Tag, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        let inbox = &self.inboxes[self.rank];
        let mut queues = inbox.queues.lock().unwrap();
        loop {
            let queue = queues.get_mut(&(peer, tag));
            if let Some(message) = queue.and_then(VecDeque::pop_front) {
                return Ok(message);
            }
            if deadline.expired() {
                return Err(BootstrapError::Timeout {
                    rank: self.rank,
                    operation: "receiving".into(),
                    waiting_for: vec![peer],
                    waited: deadline.budget(),
                    hint: String::new(),
                });
            }
            let remaining = deadline.remaining();
            (queues, _) = inbox.changed.wait_timeout(queues, remaining).unwrap();
        }
    }

    fn turns(&self) -> Option<&Turns> {
        Some(&self.turns)
    }
}
