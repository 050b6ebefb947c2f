// SPDX-License-Identifier: MIT
//! Asking for an answer while there is time for one.

use std::time::Duration;

use super::{Machine, State, rank_of};
use crate::gate::wire::Body;

impl Machine {
    /// A neighbour asks for an answer within the time.
    pub(super) fn hurried(&mut self, now: Duration, from: usize, left: Duration) {
        let by = now + left;
        if self.parent.as_ref().is_some_and(|p| p.rank == from) {
            self.collect_by = Some(self.collect_by.map_or(by, |earlier| earlier.min(by)));
            self.hurry_children(now);
        } else if self.neighbour(from).is_some() {
            self.verdict_by = self.verdict_by.min(by);
            self.hurried = true;
            match self.parent {
                Some(_) => self.hurry_parent(now),
                None => self.hurry_children(now),
            }
        }
    }

    pub(super) fn hurry_parent(&mut self, now: Duration) {
        let by = self.verdict_by.saturating_sub(self.timing.slot());
        let parent = self.parent.as_ref().map(rank_of);
        self.ask(now, by, parent.into_iter().collect());
    }

    pub(super) fn hurry_children(&mut self, now: Duration) {
        if self.state == State::Collecting
            && let Some(limit) = self.collect_limit()
        {
            let by = limit.saturating_sub(self.timing.slot());
            self.ask(now, by, self.awaits());
        }
    }

    /// Asks ranks to answer by then, unless they have been asked to by about the
    /// same time.
    fn ask(&mut self, now: Duration, by: Duration, ranks: Vec<usize>) {
        let slot = self.timing.slot();
        if by <= now {
            // Too late for an answer: asking would only make others give up, who
            // could not find out for whom they wait.
            return;
        }
        for rank in ranks {
            let Some(neighbour) = self.neighbour(rank) else {
                continue;
            };
            if neighbour.asked.is_none_or(|asked| by + slot < asked) {
                neighbour.asked = Some(by);
                self.send(rank, Body::hurry(by.saturating_sub(now)));
            }
        }
    }
}
