// SPDX-License-Identifier: MIT
//! The protocol of the gate as a state machine: events in, messages out. It does
//! no I/O and has no clock; each event comes with the time since the gate was made.
//!
//! Reports go up a binomial tree over the ranks, each with the outcome of a rank
//! and all below it; the root's verdict goes down. So a rank passes only when all
//! have come to the gate with success, and ranks are never more than one gate
//! apart, whatever is lost or late. The rest is about naming the one to blame:
//!
//! - A child that is gone is put into its parent's report. A rank whose parent is
//!   gone fails, and tells those below it.
//! - Who has waited too long asks to hurry (see `timing`): upwards "I need the
//!   verdict by then", downwards "report by then". Who is asked answers with the
//!   rank that it waits for itself, and again when it knows better. So everybody
//!   comes to name the rank that all wait for, not one that waits too.
//! - Who gives up tells its neighbours, so that a rank that comes later fails with
//!   the same error.

mod hurry;
mod incoming;

use std::collections::VecDeque;
use std::time::Duration;

use super::error::{Reason, SetupError};
use super::timing::Timing;
use super::wire::{Body, MAX_WORDS, Message, Outcome};
use crate::collectives::tree;
use crate::gate::Cause;

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Between gates.
    Between,
    /// Waits for reports of children.
    Collecting,
    /// Has reported and waits for the verdict.
    Reported,
    /// Has failed, for good.
    Failed(SetupError),
}

#[derive(Clone, Debug)]
struct Neighbour {
    rank: usize,
    /// A child: it has reported, or something else stands for its report.
    reported: bool,
    /// Why nothing will come from it any more.
    lost: Option<Reason>,
    /// By when it was last asked to answer.
    asked: Option<Duration>,
    /// The rank that it says it waits for, and when it said so.
    suspect: Option<(usize, Duration)>,
    /// It has asked this rank to hurry.
    asks: bool,
    /// The rank that it was told this one waits for, and when.
    told: Option<(usize, Duration)>,
}

impl Neighbour {
    fn new(rank: usize) -> Self {
        Self {
            rank,
            reported: false,
            lost: None,
            asked: None,
            suspect: None,
            asks: false,
            told: None,
        }
    }
}

/// One rank at a sequence of gates.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    rank: usize,
    turn: u64,
    timing: Timing,
    step: u32,
    phase: String,
    state: State,
    merged: Outcome,
    parent: Option<Neighbour>,
    children: Vec<Neighbour>,
    /// When it reports without those who have not reported to it.
    collect_by: Option<Duration>,
    /// When it gives up waiting for the verdict; on the root as `collect_by`.
    verdict_by: Duration,
    /// It came when its time was over.
    late: bool,
    /// It has asked others to hurry, for itself or for one below it.
    hurried: bool,
    passed: Option<Vec<u128>>,
    out: VecDeque<(usize, Message)>,
}

impl Machine {
    /// Rank `rank` of `world`, in the use `turn` of its tag.
    pub(crate) fn new(rank: usize, world: usize, turn: u64, deadline: Duration) -> Self {
        let timing = Timing::new(deadline, world);
        Self {
            rank,
            turn,
            timing,
            step: 0,
            phase: String::new(),
            state: State::Between,
            merged: Ok(Vec::new()),
            parent: tree::parent(rank).map(Neighbour::new),
            children: tree::children(rank, world).map(Neighbour::new).collect(),
            collect_by: None,
            verdict_by: timing.verdict_by(tree::depth(rank)),
            late: false,
            hurried: false,
            passed: None,
            out: VecDeque::new(),
        }
    }

    /// Which use of the tag this is.
    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }

    /// The outcome of the gate that was entered last, once it is known.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        match &self.state {
            State::Failed(error) => Some(Err(error.clone())),
            _ => self.passed.clone().map(Ok),
        }
    }

    /// The next message to send, and to whom.
    pub(crate) fn take_message(&mut self) -> Option<(usize, Message)> {
        self.out.pop_front()
    }

    /// The ranks without which this one can not go on.
    pub(crate) fn awaits(&self) -> Vec<usize> {
        let missing = |child: &&Neighbour| !child.reported;
        match self.state {
            State::Collecting => self.children.iter().filter(missing).map(rank_of).collect(),
            State::Reported => self.parent.iter().map(rank_of).collect(),
            _ => Vec::new(),
        }
    }

    /// The ranks that may have something to say.
    pub(crate) fn listens(&self) -> Vec<usize> {
        // The parent first: its verdict counts more than a child that gives up.
        (self.parent.iter().chain(&self.children))
            .filter(|neighbour| neighbour.lost.is_none())
            .map(rank_of)
            .collect()
    }

    /// When [`Machine::tick`] has something to do even if nothing comes.
    pub(crate) fn wake_at(&self) -> Duration {
        let mut at = self.verdict_by;
        if !self.hurried {
            at = at.min(self.timing.hurry_at());
        }
        if let Some(tell) = self.tells_again_at() {
            at = at.min(tell);
        }
        match (&self.state, self.collect_by) {
            (State::Collecting, Some(by)) => at.min(by),
            _ => at,
        }
    }

    /// How long sending to a neighbour may hold up the others.
    pub(crate) fn slot(&self) -> Duration {
        self.timing.slot()
    }

    /// When steps should have come to the gate.
    pub(crate) fn hurry_at(&self) -> Duration {
        self.timing.hurry_at()
    }

    /// When this rank gives up waiting.
    pub(crate) fn gives_up_at(&self) -> Duration {
        self.verdict_by
    }

    /// Comes to the next gate with the outcome of this rank's own step.
    pub(crate) fn enter(&mut self, now: Duration, phase: &str, local: Result<Vec<u128>, Reason>) {
        if matches!(self.state, State::Failed(_)) {
            return;
        }
        self.step += 1;
        self.phase = phase.to_owned();
        self.state = State::Collecting;
        self.passed = None;
        self.collect_by = None;
        self.verdict_by = self.timing.verdict_by(tree::depth(self.rank));
        self.hurried = false;
        self.late = now >= self.verdict_by;
        let local = if self.late {
            local.and(Err(Reason::Silent))
        } else {
            local
        };
        self.merged = local.map_err(|reason| self.blame(self.rank, reason));
        for neighbour in self.children.iter_mut().chain(&mut self.parent) {
            neighbour.reported = neighbour.lost.is_some();
            neighbour.asked = None;
            neighbour.suspect = None;
            neighbour.asks = false;
            neighbour.told = None;
        }
        let lost: Vec<SetupError> = (self.children.iter())
            .filter_map(|child| Some(self.blame(child.rank, child.lost.clone()?)))
            .collect();
        for error in lost {
            self.merge(Err(error));
        }
    }

    /// Whether a gate failed.
    pub(crate) fn failed(&self) -> bool {
        matches!(self.state, State::Failed(_))
    }

    /// Will come to no further gate.
    pub(crate) fn abandon(&mut self) {
        let cause = Cause::new(match self.step {
            0 => "it abandoned the setup before its first gate".to_owned(),
            _ => format!("it abandoned the setup after phase {}", self.phase),
        });
        self.step += 1;
        self.fail(self.blame(self.rank, Reason::Failed(cause)), None);
    }

    /// Fails without telling anybody: all ranks know.
    pub(crate) fn stop(&mut self, error: SetupError) {
        self.state = State::Failed(error);
    }

    /// This rank did not run for longer than a slot: what it waits for may have come
    /// meanwhile, and be on its way through this machine.
    pub(crate) fn resumed(&mut self, now: Duration) {
        let at_least = now + self.timing.slot();
        self.verdict_by = self.verdict_by.max(at_least);
        self.collect_by = self.collect_by.map(|by| by.max(at_least));
    }

    /// Goes on as far as what has come and the time allow. Called when all that
    /// has come is in: a child that has reported may have given up meanwhile.
    pub(crate) fn tick(&mut self, now: Duration) {
        if self.active() && now >= self.timing.hurry_at() && !self.hurried {
            self.hurried = true;
            match self.parent {
                Some(_) => self.hurry_parent(now),
                None => self.hurry_children(now),
            }
        }
        let limit = self.collect_limit();
        let mut silent = Vec::new();
        if self.state == State::Collecting && limit.is_some_and(|limit| now >= limit) {
            let timing = self.timing;
            for child in self.children.iter_mut().filter(|child| !child.reported) {
                child.reported = true;
                silent.push(child.waits_for(now, &timing));
            }
            for rank in silent {
                self.merge(Err(self.blame(rank, Reason::Silent)));
            }
        }
        if self.state == State::Collecting && self.awaits().is_empty() {
            self.collected();
        }
        if let Some(parent) = self.parent.as_ref().map(rank_of)
            && self.active()
            && now >= self.verdict_by
        {
            let slow = if self.late {
                Some(self.rank)
            } else {
                self.gives_up_on(now)
            };
            let slow = slow.unwrap_or(parent);
            self.fail(self.blame(slow, Reason::Silent), None);
        }
        self.tell_suspect(now);
    }

    fn collected(&mut self) {
        let merged = std::mem::replace(&mut self.merged, Ok(Vec::new()));
        if let Some(parent) = self.parent.as_ref().map(rank_of) {
            self.state = State::Reported;
            self.send(parent, Body::Report(merged));
            return;
        }
        match merged {
            Ok(sum) => self.pass(sum),
            Err(error) => self.fail(error, None),
        }
    }

    fn collect_limit(&self) -> Option<Duration> {
        match self.parent {
            Some(_) => self.collect_by,
            None => Some(self.verdict_by),
        }
    }

    fn merge(&mut self, other: Outcome) {
        let mine = std::mem::replace(&mut self.merged, Ok(Vec::new()));
        self.merged = match (mine, other) {
            (Err(a), Err(b)) => Err(a.worse(b)),
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
            (Ok(a), Ok(b)) => Ok(add(a, &b)),
        };
    }

    fn pass(&mut self, sum: Vec<u128>) {
        self.state = State::Between;
        self.inform(&Ok(sum.clone()), None);
        self.passed = Some(sum);
    }

    fn fail(&mut self, error: SetupError, from: Option<usize>) {
        self.inform(&Err(error.clone()), from);
        self.state = State::Failed(error);
    }

    /// Tells neighbours how it ended: children always, the parent of a failure
    /// that it has not told.
    fn inform(&mut self, outcome: &Outcome, from: Option<usize>) {
        let parent = self.parent.as_ref().filter(|_| outcome.is_err());
        // A verdict from above has been seen there.
        let from_above = from.is_some() && from == self.parent.as_ref().map(rank_of);
        let ranks: Vec<usize> = (self.children.iter())
            .chain(parent.filter(|_| !from_above))
            .filter(|neighbour| neighbour.lost.is_none() && Some(neighbour.rank) != from)
            .map(rank_of)
            .collect();
        for rank in ranks {
            self.send(rank, Body::Verdict(outcome.clone()));
        }
    }

    fn send(&mut self, to: usize, body: Body) {
        let message = Message {
            turn: self.turn,
            step: self.step,
            phase: self.phase.clone(),
            body,
        };
        self.out.push_back((to, message));
    }

    fn active(&self) -> bool {
        matches!(self.state, State::Collecting | State::Reported)
    }

    fn neighbour(&mut self, rank: usize) -> Option<&mut Neighbour> {
        (self.children.iter_mut().chain(&mut self.parent)).find(|n| n.rank == rank)
    }

    fn blame(&self, rank: usize, reason: Reason) -> SetupError {
        SetupError::new(&self.phase, rank, reason)
    }
}

fn rank_of(neighbour: &Neighbour) -> usize {
    neighbour.rank
}

fn add(mut a: Vec<u128>, b: &[u128]) -> Vec<u128> {
    a.resize(a.len().max(b.len()).min(MAX_WORDS), 0);
    for (sum, word) in a.iter_mut().zip(b) {
        *sum = sum.wrapping_add(*word);
    }
    a
}
