// SPDX-License-Identifier: MIT
//! Whose collective it is, and which one.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::{Deadline, Tag};

/// The number of a collective where nobody counts.
pub(crate) const UNCOUNTED: u64 = u64::MAX;

/// Counts the collectives of each stream and lets one thread at a time into each.
/// A bootstrap holds one for its lifetime and returns it from
/// [`crate::Bootstrap::turns`].
#[derive(Debug, Default)]
pub struct Turns {
    streams: Mutex<HashMap<Tag, Stream>>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Stream {
    next: u64,
    taken: bool,
}

impl Turns {
    /// Counters that all begin at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until no other thread is in a collective of `tag`; `None` when the
    /// deadline comes first.
    pub(crate) fn enter(&self, tag: Tag, deadline: Deadline) -> Option<Turn<'_>> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let stream = streams.entry(tag).or_default();
            if !stream.taken {
                stream.taken = true;
                let number = stream.next;
                stream.next += 1;
                return Some(Turn {
                    turns: self,
                    tag,
                    number,
                });
            }
            if deadline.expired() {
                return None;
            }
            (streams, _) = self
                .freed
                .wait_timeout(streams, deadline.remaining())
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// One thread's stay in a collective.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    tag: Tag,
    pub(crate) number: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut streams = self
            .turns
            .streams
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = streams.get_mut(&self.tag) {
            stream.taken = false;
        }
        drop(streams);
        self.turns.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_turn_is_numbered_and_exclusive_per_stream() {
        let turns = Turns::new();
        let soon = || Deadline::after(Duration::from_millis(5));
        let first = turns.enter(Tag::WORLD, soon()).unwrap();
        assert_eq!(first.number, 0);
        assert!(turns.enter(Tag::WORLD, soon()).is_none());
        assert_eq!(turns.enter(Tag::group(1), soon()).unwrap().number, 0);
        drop(first);
        assert_eq!(turns.enter(Tag::WORLD, soon()).unwrap().number, 1);
    }
}
