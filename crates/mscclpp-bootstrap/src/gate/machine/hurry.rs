// SPDX-License-Identifier: MIT
//! Asking for an answer while there is time for one.

use std::time::Duration;

use super::{Machine, Neighbour, State, rank_of};
use crate::gate::wire::Body;

impl Machine {
    /// A neighbour asks for an answer within the time.
    pub(super) fn hurried(&mut self, now: Duration, from: usize, left: Duration) {
        let by = now + left;
        if let Some(neighbour) = self.neighbour(from) {
            neighbour.asks = true;
        }
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

    /// The rank that this one waits for, as far as it knows.
    pub(super) fn suspect(&self) -> Option<usize> {
        let of = |neighbour: &Neighbour| neighbour.suspect.unwrap_or(neighbour.rank);
        match self.state {
            State::Collecting => (self.children.iter())
                .filter(|child| !child.reported)
                .map(of)
                .min(),
            // What the parent knows of may be this rank itself, a moment ago.
            State::Reported => (self.parent.as_ref()).map(|parent| {
                Some(of(parent))
                    .filter(|r| *r != self.rank)
                    .unwrap_or(parent.rank)
            }),
            _ => None,
        }
    }

    /// Tells those who asked, and do not know it yet.
    pub(super) fn tell_suspect(&mut self) {
        let Some(suspect) = self.suspect() else {
            return;
        };
        let reported = self.state == State::Reported;
        let mut ranks = Vec::new();
        for child in self.children.iter_mut() {
            if child.asks && child.told != Some(suspect) {
                child.told = Some(suspect);
                ranks.push(child.rank);
            }
        }
        // The parent does not wait for a rank that has reported.
        if let Some(parent) = self.parent.as_mut().filter(|_| !reported)
            && parent.asks
            && parent.told != Some(suspect)
        {
            parent.told = Some(suspect);
            ranks.push(parent.rank);
        }
        for rank in ranks {
            self.send(rank, Body::Waiting(suspect));
        }
    }
}
