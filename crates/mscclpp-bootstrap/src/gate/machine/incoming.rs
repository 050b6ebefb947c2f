// SPDX-License-Identifier: MIT
//! What comes from other ranks, and what is heard of them.

use std::time::Duration;

use super::{Machine, State};
use crate::gate::Cause;
use crate::gate::error::Reason;
use crate::gate::wire::{Body, Message, Outcome};

impl Machine {
    /// A message has come.
    pub(crate) fn message(&mut self, now: Duration, from: usize, message: Message) {
        if !self.active() || message.turn < self.turn {
            return;
        }
        if message.turn > self.turn || message.step > self.step {
            let cause = format!(
                "it is at gate {} ({}) of use {} of the tag, rank {} at gate {} ({}) of use {}; \
                 all ranks must pass the same gates in the same order",
                message.step,
                message.phase,
                message.turn,
                self.rank,
                self.step,
                self.phase,
                self.turn
            );
            return self.accuse(from, cause);
        }
        match message.body {
            // Its sender will come to no later gate either.
            Body::Verdict(Err(error)) => {
                if self.neighbour(from).is_some() {
                    self.fail(error, Some(from));
                }
            }
            _ if message.step < self.step => {}
            Body::Verdict(Ok(sum)) => self.verdict(from, sum),
            Body::Report(outcome) => self.report(from, &message.phase, outcome),
            Body::Waiting(rank) => {
                if let Some(neighbour) = self.neighbour(from) {
                    neighbour.suspect = Some((rank, now));
                }
            }
            Body::Hurry(millis) => self.hurried(now, from, Duration::from_millis(millis.into())),
        }
    }

    /// A rank has sent what makes no sense.
    pub(crate) fn accuse(&mut self, from: usize, cause: String) {
        let error = self.blame(from, Reason::OutOfStep(Cause::new(cause)));
        if self.state == State::Collecting
            && let Some(child) = self.children.iter_mut().find(|child| child.rank == from)
        {
            // It is told with the others.
            child.reported = true;
            self.merge(Err(error));
        } else if self.active() {
            self.fail(error, None);
        }
    }

    /// Nothing will come from this rank any more.
    pub(crate) fn lost(&mut self, rank: usize, reason: Reason) {
        let is_parent = self.parent.as_ref().is_some_and(|p| p.rank == rank);
        let Some(neighbour) = self.neighbour(rank) else {
            return;
        };
        neighbour.lost.get_or_insert_with(|| reason.clone());
        neighbour.reported = true;
        if !self.active() {
            return;
        }
        let error = self.blame(rank, reason);
        if is_parent {
            self.fail(error, None);
        } else if self.state == State::Collecting {
            self.merge(Err(error));
        }
    }

    fn report(&mut self, from: usize, phase: &str, outcome: Outcome) {
        let Some(child) = self.children.iter_mut().find(|child| child.rank == from) else {
            return;
        };
        if self.state != State::Collecting || child.reported {
            return;
        }
        if phase != self.phase {
            let here = format!("rank {} in {}", self.rank, self.phase);
            return self.accuse(from, format!("it is in phase {phase}, {here}"));
        }
        child.reported = true;
        self.merge(outcome);
    }

    fn verdict(&mut self, from: usize, sum: Vec<u128>) {
        if self.parent.as_ref().is_none_or(|p| p.rank != from) {
            return;
        }
        if self.state == State::Reported {
            self.pass(sum);
        } else {
            let cause = format!("it passed without rank {}", self.rank);
            self.accuse(from, cause);
        }
    }
}
