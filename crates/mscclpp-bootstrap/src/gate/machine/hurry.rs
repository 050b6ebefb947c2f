// SPDX-License-Identifier: MIT
//! Asking for an answer while there is time for one.

use std::time::Duration;

use super::{Machine, Neighbour, State, rank_of};
use crate::gate::timing::Timing;
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
    pub(super) fn suspect(&self, now: Duration) -> Option<usize> {
        match self.state {
            State::Collecting => (self.children.iter())
                .filter(|child| !child.reported)
                .map(|child| child.waits_for(now, &self.timing))
                .min(),
            State::Reported => self.gives_up_on(now),
            _ => None,
        }
    }

    /// The rank to blame when the verdict does not come: the parent, or whom it
    /// waits for. A rank that still collects would have been asked to report, if
    /// its parent were there.
    pub(super) fn gives_up_on(&self, now: Duration) -> Option<usize> {
        let parent = self.parent.as_ref()?;
        match parent.waits_for(now, &self.timing) {
            rank if rank != self.rank => Some(rank),
            // It waits for this one, which waits for another.
            _ if self.state == State::Collecting => self.suspect(now),
            // It did, a moment ago.
            _ => Some(parent.rank),
        }
    }

    /// Tells those who asked and do not know it, and from time to time those who
    /// do: it holds only while somebody stands for it.
    pub(super) fn tell_suspect(&mut self, now: Duration) {
        let Some(suspect) = self.suspect(now) else {
            return;
        };
        let pause = self.timing.pause();
        // A parent that has the report does not wait for this rank.
        let parent = self.parent.as_mut();
        let parent = parent.filter(|_| self.state == State::Collecting);
        let mut ranks = Vec::new();
        for neighbour in self.children.iter_mut().chain(parent) {
            let told = |(rank, at)| rank == suspect && now < at + pause;
            if neighbour.asks && !neighbour.told.is_some_and(told) {
                neighbour.told = Some((suspect, now));
                ranks.push(neighbour.rank);
            }
        }
        for rank in ranks {
            self.send(rank, Body::Waiting(suspect));
        }
    }

    /// When [`Machine::tell_suspect`] is next needed for its own sake.
    pub(super) fn tells_again_at(&self) -> Option<Duration> {
        let parent = self.parent.as_ref();
        let parent = parent.filter(|_| self.state == State::Collecting);
        (self.children.iter().chain(parent))
            .filter(|neighbour| neighbour.asks)
            .filter_map(|neighbour| Some(neighbour.told?.1 + self.timing.pause()))
            .min()
    }
}

impl Neighbour {
    /// The rank that it waits for, if it has said so lately; else itself.
    pub(super) fn waits_for(&self, now: Duration, timing: &Timing) -> usize {
        let fresh = |(_, at): &(usize, Duration)| now < *at + timing.pause() * 3;
        self.suspect
            .filter(fresh)
            .map_or(self.rank, |(rank, _)| rank)
    }
}
