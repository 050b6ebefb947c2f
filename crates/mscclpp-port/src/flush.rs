// SPDX-License-Identifier: MIT
//! Which flushes of a FIFO are done.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::device::Device;
use crate::error::Result;
use crate::sync::{AtomicU64, Ordering};
use crate::visible::Visible;

/// The word that a kernel's `flush` polls: one past the highest FIFO position whose flush is done
/// on one connection. There is one for each pair of a FIFO and a connection, because positions of
/// two FIFOs cannot be compared.
pub(crate) struct FlushWord(Visible<AtomicU64>);

impl FlushWord {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self(Visible::new()?)))
    }

    /// Lets kernels of a device see it.
    pub(crate) fn show_to(&self, device: Device) -> Result<()> {
        self.0.show_to(device)
    }

    /// Address for device handles. Valid while the word lives.
    pub(crate) fn address(&self) -> u64 {
        std::ptr::from_ref(&*self.0).expose_provenance() as u64
    }

    /// The position, as kernels see it.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn done(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Flushes that were asked of a transport and not yet reported to kernels, oldest first.
///
/// Each flush has its own ticket, so one that is asked for later neither delays nor replaces an
/// earlier one, and each of several flushing threads is released by its own position.
pub(crate) struct PendingFlushes {
    word: Arc<FlushWord>,
    /// (position in the FIFO, the transport's ticket); both grow. Without a position: the transport
    /// tells kernels itself.
    queue: VecDeque<(Option<u64>, u64)>,
}

impl PendingFlushes {
    pub(crate) fn new(word: Arc<FlushWord>) -> Self {
        Self {
            word,
            queue: VecDeque::new(),
        }
    }

    /// The flush at `position` is done when the transport has finished `ticket`.
    pub(crate) fn push(&mut self, position: u64, ticket: u64) {
        debug_assert!(
            self.queue
                .back()
                .is_none_or(|(p, t)| p.is_none_or(|p| p < position) && *t < ticket)
        );
        self.queue.push_back((Some(position), ticket));
    }

    /// The same for a flush of which the transport tells kernels.
    pub(crate) fn push_told(&mut self, ticket: u64) {
        self.queue.push_back((None, ticket));
    }

    /// All tickets up to `flushed` are finished: tells kernels. Returns how many flushes that
    /// ended.
    pub(crate) fn finish(&mut self, flushed: u64) -> usize {
        let count = self.queue.partition_point(|(_, ticket)| *ticket <= flushed);
        if let Some((Some(position), _)) = self.queue.drain(..count).next_back() {
            // Release: whoever sees the position sees what the transport saw when it finished.
            self.word.0.store(position + 1, Ordering::Release);
        }
        count
    }

    /// Forgets all: the connection failed, and its status tells the kernels.
    pub(crate) fn abandon(&mut self) -> usize {
        let count = self.queue.len();
        self.queue.clear();
        count
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_flusher_is_released_by_its_own_position() {
        let word = FlushWord::new().unwrap();
        let mut pending = PendingFlushes::new(Arc::clone(&word));
        for (position, ticket) in [(3, 1), (9, 2), (10, 5)] {
            pending.push(position, ticket);
        }
        assert_eq!((pending.finish(0), word.done()), (0, 0));
        assert_eq!((pending.finish(1), word.done()), (1, 4));
        // Ticket 4 belongs to another service on the same connection.
        assert_eq!((pending.finish(4), word.done()), (1, 10));
        assert_eq!((pending.finish(4), word.done()), (0, 10));
        assert_eq!((pending.finish(5), word.done()), (1, 11));
        assert_eq!(pending.len(), 0);
    }

    proptest! {
        /// Against the plain rule: done = 1 + the highest position whose ticket is finished.
        #[test]
        fn the_word_is_one_past_the_highest_finished_position(
            steps in proptest::collection::vec((0_u64..4, 1_u64..4, 0_u64..40), 1..40)
        ) {
            let word = FlushWord::new().unwrap();
            let mut pending = PendingFlushes::new(Arc::clone(&word));
            let (mut position, mut ticket, mut finished) = (0, 0, 0);
            let mut all = Vec::new();
            for (gap, step, flushed) in steps {
                position += gap + 1;
                ticket += step;
                pending.push(position, ticket);
                all.push((position, ticket));
                finished = finished.max(flushed);
                pending.finish(flushed);
                let expected = all.iter().filter(|(_, t)| *t <= finished).map(|(p, _)| p + 1).max();
                // A ticket at or below an earlier `flushed` that was pushed later is only finished
                // by the next call.
                let seen = word.done();
                prop_assert!(seen <= expected.unwrap_or(0));
                pending.finish(finished);
                prop_assert_eq!(word.done(), expected.unwrap_or(0));
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// What the transport's completion published is visible to the thread that `flush` releases,
    /// and no position is released before its ticket.
    #[test]
    fn loom_flush_positions_publish_their_completions() {
        loom::model(|| {
            let word = FlushWord::new().unwrap();
            let landed = Arc::new(AtomicU64::new(0));
            let proxy = {
                let (word, landed) = (Arc::clone(&word), Arc::clone(&landed));
                loom::thread::spawn(move || {
                    let mut pending = PendingFlushes::new(word);
                    pending.push(4, 1);
                    pending.push(7, 2);
                    landed.store(1, Ordering::Relaxed);
                    pending.finish(1);
                    landed.store(2, Ordering::Relaxed);
                    pending.finish(2);
                })
            };
            let done = word.0.load(Ordering::Acquire);
            assert!([0, 5, 8].contains(&done));
            let finished = landed.load(Ordering::Relaxed);
            if done > 4 {
                assert!(finished >= 1);
            }
            if done > 7 {
                assert_eq!(finished, 2);
            }
            proxy.join().unwrap();
            assert_eq!(word.0.load(Ordering::Acquire), 8);
        });
    }
}
