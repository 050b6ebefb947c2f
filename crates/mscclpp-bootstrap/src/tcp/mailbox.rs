// SPDX-License-Identifier: MIT
//! Messages that arrived and were not taken yet.

use std::collections::{HashMap, VecDeque};
use std::sync::PoisonError;

use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::{Deadline, Tag};

/// What an empty message counts for, so that a flood of them is bounded too: what this process
/// spends on one with a tag of its own, rounded up.
pub(crate) const MESSAGE_COST: u64 = 256;

/// What a message of this length counts for against a window.
pub(crate) fn cost(length: usize) -> u64 {
    length as u64 + MESSAGE_COST
}

/// The messages of one peer, one queue a tag.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queues: HashMap<Tag, VecDeque<Vec<u8>>>,
    /// The cost of all messages in the queues.
    held: u64,
}

/// How a wait for a message ended without one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoMessage<G> {
    /// The deadline came first.
    Expired,
    /// Nobody will send one any more.
    Gone(G),
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message in, unless as much as `limit` is held already; returns
    /// whether it did.
    pub(crate) fn deliver(&self, tag: Tag, message: Vec<u8>, limit: u64) -> bool {
        let mut state = self.lock();
        if state.held >= limit {
            return false;
        }
        state.held += cost(message.len());
        state.queues.entry(tag).or_default().push_back(message);
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Makes every waiting thread ask again whether its peer is gone. Called
    /// after the record of that has been made.
    pub(crate) fn wake(&self) {
        // Whoever looked at the record before it was made holds the lock or
        // waits; either way it hears this.
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Takes the next message of `tag`. What has arrived is handed out even if
    /// the peer is gone.
    pub(crate) fn take<G>(
        &self,
        tag: Tag,
        deadline: Deadline,
        gone: impl Fn() -> Option<G>,
    ) -> Result<Vec<u8>, NoMessage<G>> {
        let mut state = self.lock();
        loop {
            if let Some(queue) = state.queues.get_mut(&tag) {
                let message = queue.pop_front();
                if queue.is_empty() {
                    state.queues.remove(&tag);
                }
                if let Some(message) = message {
                    state.held -= cost(message.len());
                    return Ok(message);
                }
            }
            if let Some(gone) = gone() {
                return Err(NoMessage::Gone(gone));
            }
            if deadline.expired() {
                return Err(NoMessage::Expired);
            }
            (state, _) = self
                .changed
                .wait_timeout(state, deadline.remaining())
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    fn take(mailbox: &Mailbox, tag: u32) -> Result<Vec<u8>, NoMessage<()>> {
        let soon = Deadline::after(Duration::from_millis(5));
        mailbox.take(Tag::user(tag), soon, || None)
    }

    #[test]
    fn tags_are_separate_and_each_in_order() {
        let mailbox = Mailbox::default();
        for (tag, byte) in [(0, 1), (1, 2), (0, 3)] {
            assert!(mailbox.deliver(Tag::user(tag), vec![byte], u64::MAX));
        }
        assert_eq!(take(&mailbox, 1), Ok(vec![2]));
        assert_eq!(take(&mailbox, 0), Ok(vec![1]));
        assert_eq!(take(&mailbox, 0), Ok(vec![3]));
        assert_eq!(take(&mailbox, 0), Err(NoMessage::Expired));
        assert!(mailbox.lock().queues.is_empty());
        assert_eq!(mailbox.lock().held, 0);
    }

    #[test]
    fn the_limit_counts_empty_messages_too() {
        let mailbox = Mailbox::default();
        let limit = 3 * MESSAGE_COST;
        for _ in 0..3 {
            assert!(mailbox.deliver(Tag::user(0), vec![], limit));
        }
        assert!(!mailbox.deliver(Tag::user(0), vec![], limit));
        take(&mailbox, 0).unwrap();
        assert!(mailbox.deliver(Tag::user(0), vec![], limit));
    }

    /// As a sender may begin one message, of any size, while its window is not used up.
    #[test]
    fn a_message_begun_below_the_limit_is_taken_whatever_its_size() {
        let mailbox = Mailbox::default();
        let limit = 10 * MESSAGE_COST;
        assert!(mailbox.deliver(Tag::user(0), vec![0; 5000], limit));
        assert!(!mailbox.deliver(Tag::user(0), vec![], limit));
    }

    #[test]
    fn what_arrived_before_the_end_is_still_handed_out() {
        let mailbox = Mailbox::default();
        mailbox.deliver(Tag::user(0), vec![1], u64::MAX);
        let later = Deadline::after(Duration::from_secs(60));
        let gone = || Some("gone");
        assert_eq!(mailbox.take(Tag::user(0), later, gone), Ok(vec![1]));
        assert_eq!(
            mailbox.take(Tag::user(0), later, gone),
            Err(NoMessage::Gone("gone"))
        );
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::time::Duration;

    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::thread;

    use super::*;

    fn never() -> Deadline {
        Deadline::after(Duration::from_secs(3600))
    }

    /// A receiver that waits for a message and for the peer's death ends in every
    /// interleaving, and never loses the message that came first.
    #[test]
    fn loom_a_wait_ends_by_message_or_death() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::default());
            let dead = Arc::new(AtomicBool::new(false));
            let peer = {
                let (mailbox, dead) = (Arc::clone(&mailbox), Arc::clone(&dead));
                thread::spawn(move || {
                    assert!(mailbox.deliver(Tag::user(0), vec![7], u64::MAX));
                    dead.store(true, Ordering::SeqCst);
                    mailbox.wake();
                })
            };
            let gone = || dead.load(Ordering::SeqCst).then_some(());
            assert_eq!(mailbox.take(Tag::user(0), never(), gone), Ok(vec![7]));
            assert_eq!(
                mailbox.take(Tag::user(0), never(), gone),
                Err(NoMessage::Gone(()))
            );
            peer.join().unwrap();
        });
    }

    /// Two receivers of two tags: each gets its own message, whoever is woken.
    #[test]
    fn loom_two_receivers_each_get_theirs() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::default());
            let other = {
                let mailbox = Arc::clone(&mailbox);
                thread::spawn(move || mailbox.take(Tag::user(1), never(), || None::<()>).unwrap())
            };
            assert!(mailbox.deliver(Tag::user(0), vec![10], u64::MAX));
            assert!(mailbox.deliver(Tag::user(1), vec![11], u64::MAX));
            assert_eq!(
                mailbox.take(Tag::user(0), never(), || None::<()>),
                Ok(vec![10])
            );
            assert_eq!(other.join().unwrap(), vec![11]);
        });
    }
}
