// SPDX-License-Identifier: MIT
//! Which requests of a send queue are under way, and which flushes are done: a state machine without
//! I/O.
//!
//! A request takes a slot of the send queue until it is known to be done, and there is an entry in the
//! completion queue for each slot, because requests that fail complete whether they asked for it or
//! not. So the completion queue cannot overrun. Requests of one queue are done in the order in which
//! they were posted: a completion covers all before it, and only some have to ask for one.

use std::collections::VecDeque;

/// Requests without completion in a row, at most: room is seen to come free.
const SILENT: usize = 32;

pub(super) struct Account<T> {
    slots: usize,
    /// What is known of the requests under way, oldest first.
    under_way: VecDeque<T>,
    /// Requests known to be done; the number of the oldest one under way.
    done: u64,
    /// Requests posted since the last one that asked for a completion.
    silent: usize,
    /// Flushes that wait: how many requests have to be done, and the ticket. Both grow.
    flushes: VecDeque<(u64, u64)>,
    flushed: u64,
}

/// A completion of a request that is not under way.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unexpected;

impl<T> Account<T> {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots,
            under_way: VecDeque::with_capacity(slots),
            done: 0,
            silent: 0,
            flushes: VecDeque::new(),
            flushed: 0,
        }
    }

    /// How many requests can be posted.
    pub(super) fn room(&self) -> usize {
        self.slots - self.under_way.len()
    }

    /// Whether a request is under way.
    pub(super) fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Requests known to be done.
    #[cfg(all(test, not(loom)))]
    fn done(&self) -> u64 {
        self.done
    }

    /// A request is about to be posted, for which there is room: its number, and whether it has to ask
    /// for a completion. The last of those that are posted together always does, so that nothing stays
    /// unknown.
    pub(super) fn post(&mut self, what: T, last: bool) -> (u64, bool) {
        debug_assert!(self.room() > 0, "a request was posted without room");
        let number = self.done + self.under_way.len() as u64;
        self.under_way.push_back(what);
        self.silent += 1;
        let asks = last || self.silent >= SILENT.min(self.slots / 2);
        if asks {
            self.silent = 0;
        }
        (number, asks)
    }

    /// A request has completed, and with it all before it; they are handed to `with`.
    pub(super) fn complete(&mut self, number: u64, with: impl FnMut(T)) -> Result<(), Unexpected> {
        let count = self.place(number).ok_or(Unexpected)? + 1;
        self.under_way.drain(..count).for_each(with);
        self.done += count as u64;
        self.tell();
        Ok(())
    }

    /// The queue is gone: nothing is under way any more, and flushes that wait are never done.
    pub(super) fn abandon(&mut self) {
        self.done += self.under_way.len() as u64;
        self.under_way.clear();
        self.flushes.clear();
    }

    /// What is known of a request under way.
    pub(super) fn get(&self, number: u64) -> Option<&T> {
        self.under_way.get(self.place(number)?)
    }

    /// A flush of all requests posted until now. Its ticket is greater than those before.
    pub(super) fn flush(&mut self, ticket: u64) {
        let until = self.done + self.under_way.len() as u64;
        self.flushes.push_back((until, ticket));
        self.tell();
    }

    /// The highest ticket that is done; all lower ones are, too.
    pub(super) fn flushed(&self) -> u64 {
        self.flushed
    }

    fn place(&self, number: u64) -> Option<usize> {
        let place = usize::try_from(number.checked_sub(self.done)?).ok()?;
        (place < self.under_way.len()).then_some(place)
    }

    fn tell(&mut self) {
        let done = self.done;
        while let Some((_, ticket)) = self.flushes.pop_front_if(|(until, _)| *until <= done) {
            self.flushed = ticket;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        /// So many requests are posted together, as far as there is room.
        Post(usize),
        /// The HCA executes so many requests.
        Execute(usize),
        /// So many completions are polled.
        Poll(usize),
        Flush,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (1usize..80).prop_map(Step::Post),
            (1usize..80).prop_map(Step::Execute),
            (1usize..8).prop_map(Step::Poll),
            Just(Step::Flush),
        ];
        proptest::collection::vec(step, 1..200)
    }

    /// A queue pair and its completion queue, as they are in an HCA.
    #[derive(Default)]
    struct Hca {
        /// Posted and not executed, with whether they ask for a completion.
        posted: VecDeque<(u64, bool)>,
        completions: VecDeque<u64>,
        executed: u64,
    }

    proptest! {
        /// The completion queue never holds more entries than there are slots, also if every request
        /// that was posted completes with an error; a flush is done when what was posted before it is
        /// known to be, not earlier, and no later.
        #[test]
        fn completions_never_overrun_and_each_flush_ends_by_its_own_requests(
            slots in 1usize..100, steps in steps()
        ) {
            let mut account = Account::new(slots);
            let mut hca = Hca::default();
            let (mut posts, mut ticket) = (0u64, 0);
            let mut flushes = Vec::new();
            for step in steps {
                match step {
                    Step::Post(count) => {
                        let count = count.min(account.room());
                        for i in 0..count {
                            let (number, asks) = account.post(posts, i + 1 == count);
                            prop_assert_eq!(number, posts);
                            prop_assert!(asks || i + 1 < count);
                            hca.posted.push_back((number, asks));
                            posts += 1;
                        }
                    }
                    Step::Execute(count) => {
                        for _ in 0..count.min(hca.posted.len()) {
                            let (number, asks) = hca.posted.pop_front().unwrap();
                            hca.executed = number + 1;
                            if asks {
                                hca.completions.push_back(number);
                            }
                        }
                    }
                    Step::Poll(count) => {
                        for _ in 0..count.min(hca.completions.len()) {
                            let number = hca.completions.pop_front().unwrap();
                            prop_assert_eq!(account.get(number), Some(&number));
                            let mut given = Vec::new();
                            account.complete(number, |what| given.push(what)).unwrap();
                            prop_assert_eq!(given.last(), Some(&number));
                            prop_assert_eq!(account.done(), number + 1);
                        }
                    }
                    Step::Flush => {
                        ticket += 1;
                        flushes.push((posts, ticket));
                        account.flush(ticket);
                    }
                }
                // Whatever fails now, all that is in the send queue completes.
                prop_assert!(hca.completions.len() + hca.posted.len() <= slots);
                let done = account.done();
                let expected = flushes.iter().filter(|(until, _)| *until <= done).map(|(_, t)| *t);
                prop_assert_eq!(account.flushed(), expected.max().unwrap_or(0));
            }
            // The last request of each post asks: once the HCA is done and all was polled, all is known.
            for (number, asks) in std::mem::take(&mut hca.posted) {
                if asks {
                    hca.completions.push_back(number);
                }
            }
            for number in std::mem::take(&mut hca.completions) {
                account.complete(number, drop).unwrap();
            }
            prop_assert!(!account.is_busy());
            prop_assert_eq!(account.flushed(), ticket);
        }

        #[test]
        fn a_completion_of_what_is_not_under_way_changes_nothing(
            done in 0u64..10, posted in 0usize..10, number in any::<u64>()
        ) {
            let mut account = Account::new(10);
            for _ in 0..done {
                let (number, _) = account.post((), true);
                account.complete(number, drop).unwrap();
            }
            for _ in 0..posted {
                account.post((), false);
            }
            let known = (done..done + posted as u64).contains(&number);
            prop_assert_eq!(account.complete(number, drop).is_ok(), known);
            if !known {
                prop_assert_eq!((account.done(), account.room()), (done, 10 - posted));
            }
        }
    }

    #[test]
    fn a_queue_that_is_gone_keeps_nothing_of_what_was_under_way() {
        let memory = std::rc::Rc::new(());
        let mut account = Account::new(8);
        for _ in 0..3 {
            account.post(std::rc::Rc::clone(&memory), true);
        }
        account.flush(1);
        account.abandon();
        assert_eq!(std::rc::Rc::strong_count(&memory), 1);
        assert!(!account.is_busy());
        assert_eq!((account.room(), account.flushed()), (8, 0));
        assert_eq!(account.complete(0, drop), Err(Unexpected));
    }

    #[test]
    fn posts_of_others_do_not_hold_up_a_flush() {
        let mut account = Account::new(64);
        let mut last = account.post((), true).0;
        account.flush(1);
        for _ in 0..1000 {
            // The queue never runs empty.
            let next = account.post((), true).0;
            account.complete(last, drop).unwrap();
            last = next;
            assert!(account.is_busy());
        }
        assert_eq!(account.flushed(), 1);
        account.flush(2);
        assert_eq!(account.flushed(), 1);
        account.complete(last, drop).unwrap();
        assert_eq!(account.flushed(), 2);
        // With nothing under way there is nothing to wait for.
        account.flush(3);
        assert_eq!(account.flushed(), 3);
    }

    #[test]
    fn a_long_chain_asks_for_few_completions() {
        let mut account = Account::new(1024);
        let asked = (0..256).filter(|i| account.post((), *i == 255).1).count();
        assert_eq!(asked, 256 / SILENT);
        let mut small = Account::new(1);
        assert!(small.post((), false).1, "a queue of one slot needs each");
    }
}
