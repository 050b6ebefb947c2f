// SPDX-License-Identifier: MIT
//! Steps that all ranks take or none: phases with a gate after each.
//!
//! A setup of many ranks is a sequence of named phases. In each, every rank does
//! its part on its own and then comes to a [`Gate`] with success or failure;
//! nobody goes on before all have come with success.
//!
//! ```
//! use std::time::Duration;
//! use mscclpp_bootstrap::{Bootstrap, BootstrapError, Deadline, TcpBootstrap};
//! use mscclpp_bootstrap::gate::{Cause, Gate};
//!
//! fn setup(bootstrap: &dyn Bootstrap) -> Result<Vec<u8>, BootstrapError> {
//!     let deadline = Deadline::after(Duration::from_secs(30));
//!     let mut gate = Gate::new(bootstrap, 0, deadline)?;
//!     // The step of this rank, which may fail.
//!     let memory: Result<Vec<u8>, Cause> = Ok(vec![0; 16]);
//!     let memory = gate.pass("allocate", memory)?;
//!     gate.pass("publish", Ok(()))?;
//!     gate.finish();
//!     Ok(memory)
//! }
//! # let alone = TcpBootstrap::new(0, 1).unwrap();
//! # let id = alone.create_unique_id_at([127, 0, 0, 1].into()).unwrap();
//! # alone.initialize(&id, Duration::from_secs(10)).unwrap();
//! # assert_eq!(setup(&alone).unwrap().len(), 16);
//! ```
//!
//! # What holds
//!
//! - While all ranks live and answer, all return the same at a gate: success, or
//!   the same [`SetupError`].
//! - No rank passes a gate to which another came with a failure, or not at all.
//!   So ranks are never more than one gate apart when one dies.
//! - A rank that dies, or does not answer, is named to all others by the
//!   deadline. They may be told at one gate or at the next.
//! - A rank that dies when all have passed the last gate does not make it fail;
//!   who observes the bootstrap is told. One that dies during the last gate may
//!   do either, on each of the others.
//! - A rank whose gate is dropped before [`Gate::finish`], because its step
//!   returned early or panicked, counts as failed: the others are told, with the
//!   name of the last gate that it came to.
//!
//! Each gate takes one message to and one from each neighbour in a binomial tree,
//! O(log world) a rank. Finding out who does not answer takes O(log world)
//! messages with each of them.
//!
//! # Deadlines
//!
//! The deadline is that of all phases together. Ranks need not give the same one,
//! nor begin at the same time: the earliest counts. The last half of the time, 5 s
//! at most, is kept for finding out who does not answer, so that all ranks
//! name the same one; a rank that comes to a gate within that part may be late.

mod error;
#[cfg(test)]
mod last_words;
mod machine;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod simulated_plans;
#[cfg(test)]
mod simulation;
mod timing;
mod wire;

use std::time::{Duration, Instant};

pub use self::error::{Cause, Reason, SetupError};
use self::error::{MAX_PHASE, fit};
use self::machine::Machine;
pub(crate) use self::wire::MAX_WORDS;
use self::wire::{Message, Outcome};
use crate::collectives::turns::{Turn, UNCOUNTED};
use crate::{Bootstrap, BootstrapError, Deadline, Tag};

/// Messages that are taken from one neighbour without looking at the others, and at the time.
const AT_ONCE: usize = 64;
/// The longest that a rank waits for one neighbour without looking at the others.
const MAX_LOOK: Duration = Duration::from_millis(20);
/// How long a rank that did not run for some time lets its bootstrap catch up.
const RESUMED: Duration = Duration::from_millis(50);
/// How long a gate that is dropped tries to tell each neighbour.
const PARTING: Duration = Duration::from_millis(200);

/// One rank's way through the gates of one setup; see the [module](self).
///
/// All ranks make one with the same tag and pass the same phases in the same
/// order. Gates of different tags do not meet and may be used at once, by
/// different threads; of the same tag, one after the other, all ranks equally
/// often. What an earlier setup of the tag left behind is recognized where the
/// bootstrap has [`Bootstrap::turns`]; with another bootstrap, take another tag
/// after a failure.
pub struct Gate<'a> {
    bootstrap: &'a dyn Bootstrap,
    tag: Tag,
    start: Instant,
    machine: Machine,
    finished: bool,
    /// Held so that no other thread of this rank uses the tag.
    _turn: Option<Turn<'a>>,
}

impl<'a> Gate<'a> {
    /// A gate for the ranks of `bootstrap`. Sends nothing.
    ///
    /// # Errors
    /// [`BootstrapError::Timeout`] when another thread of this process has a gate
    /// with the same tag all the time.
    pub fn new(
        bootstrap: &'a dyn Bootstrap,
        tag: u32,
        deadline: Deadline,
    ) -> Result<Self, BootstrapError> {
        let start = Instant::now();
        let tag = Tag::gate(tag);
        let (rank, world) = (bootstrap.rank(), bootstrap.world_size());
        let busy = || BootstrapError::Timeout {
            rank,
            operation: format!("{tag}, before its first phase"),
            waiting_for: Vec::new(),
            waited: deadline.budget(),
            hint: "another thread of this rank was in a setup with this tag all the time".into(),
        };
        let turn = match bootstrap.turns() {
            Some(turns) => Some(turns.enter(tag, deadline).ok_or_else(busy)?),
            None => None,
        };
        let number = turn.as_ref().map_or(UNCOUNTED, |turn| turn.number);
        let total = deadline.at().saturating_duration_since(start);
        Ok(Self {
            bootstrap,
            tag,
            start,
            machine: Machine::new(rank, world, number, total),
            finished: false,
            _turn: turn,
        })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.bootstrap.rank()
    }

    /// The number of ranks.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.bootstrap.world_size()
    }

    /// Which setup with this tag it is, counted from 0 and equal on all ranks: what tells messages
    /// of one setup from those that an earlier one left behind. `None` where the bootstrap has no
    /// [`Bootstrap::turns`].
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        Some(self.machine.turn()).filter(|turn| *turn != UNCOUNTED)
    }

    /// When a step should have come to the gate, whatever it still waits for, so that there is time
    /// left to find out who does not answer.
    #[must_use]
    pub fn steps_end_at(&self) -> Instant {
        self.start + self.machine.hurry_at()
    }

    /// Comes to the gate of a phase with the outcome of this rank's step, and
    /// waits for all others. Returns what the step made when all ranks succeeded.
    ///
    /// The name counts up to 32 bytes, and is the same on all ranks.
    ///
    /// # Errors
    /// When a rank failed, is gone or does not answer; the same on all ranks while
    /// all live and answer. Every later call returns the same again.
    pub fn pass<T>(&mut self, phase: &str, local: Result<T, Cause>) -> Result<T, SetupError> {
        match local {
            Ok(made) => self.agree(phase, Ok(Vec::new())).map(|_| made),
            Err(cause) => {
                let error = SetupError::new(phase, self.rank(), Reason::Failed(cause.clone()));
                self.agree(phase, Err(Reason::Failed(cause)))?;
                // A gate does not let a failure pass.
                Err(error)
            }
        }
    }

    /// Ends a setup all gates of which have been passed.
    pub fn finish(mut self) {
        self.finished = true;
    }

    /// As [`Gate::pass`], with a value that all ranks get the sum of, word by
    /// word.
    pub(crate) fn agree(&mut self, phase: &str, local: Result<Vec<u128>, Reason>) -> Outcome {
        let phase = fit(phase.to_owned(), MAX_PHASE);
        let _span = tracing::debug_span!("gate", rank = self.rank(), phase).entered();
        self.machine.enter(self.now(), &phase, local);
        let mut looked = self.now();
        let mut resumed = false;
        loop {
            self.sweep();
            let now = self.now();
            // Not twice in a row: a slot may be shorter than a look takes.
            if now - looked > self.machine.slot() && !resumed {
                // Nor did the bootstrap's threads run: what has come is not here yet.
                std::thread::sleep(RESUMED.min(self.machine.slot()));
                looked = self.now();
                self.machine.resumed(looked);
                resumed = true;
                continue;
            }
            (looked, resumed) = (now, false);
            // With the time of before: this rank may be stopped at any moment.
            self.machine.tick(now);
            self.send_all();
            if let Some(outcome) = self.machine.outcome() {
                return outcome;
            }
            self.wait();
        }
    }

    /// Fails with an error that all ranks know already.
    pub(crate) fn stop(&mut self, error: SetupError) -> SetupError {
        self.machine.stop(error.clone());
        error
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Takes all that has come.
    fn sweep(&mut self) {
        for rank in self.machine.listens() {
            self.take_from(rank);
        }
    }

    /// Takes what has come from one rank, as long as the outcome is not known; not all at once from one
    /// that says more than anybody has to.
    fn take_from(&mut self, rank: usize) {
        for _ in 0..AT_ONCE {
            if self.machine.outcome().is_some()
                || !self.receive(rank, Deadline::after(Duration::ZERO))
            {
                return;
            }
        }
    }

    /// Waits a little for one of those without whom this rank can not go on.
    fn wait(&mut self) {
        let look = MAX_LOOK.min(self.machine.slot() / 4);
        let limit = self.machine.wake_at().saturating_sub(self.now()).min(look);
        // Never without any wait: a bootstrap may return early.
        let limit = limit.max(Duration::from_micros(100));
        match self.machine.awaits().first() {
            Some(rank) => drop(self.receive(*rank, Deadline::after(limit))),
            None => std::thread::sleep(limit),
        }
    }

    /// Takes one message; false when there is none.
    fn receive(&mut self, rank: usize, deadline: Deadline) -> bool {
        let mut received = self.bootstrap.recv(rank, self.tag, deadline);
        if received.as_ref().is_err_and(BootstrapError::is_timeout) {
            // Another way to know than the receive.
            let Some(failure) = self.bootstrap.failure_of(rank) else {
                return false;
            };
            // What it said last may have come since, and tells more.
            let now = Deadline::after(Duration::ZERO);
            received = (self.bootstrap.recv(rank, self.tag, now))
                .map_err(|_| BootstrapError::from_failure(&failure, self.rank(), String::new()));
        }
        match received.map(|bytes| Message::decode(&bytes, self.world_size())) {
            Ok(Ok(message)) => self.machine.message(self.now(), rank, message),
            Ok(Err(error)) => self.machine.accuse(rank, error.to_string()),
            Err(error) => {
                self.machine.lost(rank, reason(rank, error));
                return false;
            }
        }
        true
    }

    fn send_all(&mut self) {
        let slot = self.machine.slot().max(Duration::from_millis(1));
        // What can not be sent may make more to send.
        while let Some((rank, message)) = self.machine.take_message() {
            // Who is told of a failure may be the one that does not answer.
            let limit = if self.machine.failed() {
                slot
            } else {
                let left = self.machine.gives_up_at().saturating_sub(self.now());
                left.max(slot)
            };
            self.send(rank, &message, limit);
        }
    }

    fn send(&mut self, rank: usize, message: &Message, limit: Duration) {
        let sent = message.encode().and_then(|bytes| {
            let deadline = Deadline::after(limit);
            self.bootstrap.send(rank, self.tag, &bytes, deadline)
        });
        if let Err(error) = sent {
            tracing::warn!(
                rank = self.rank(),
                peer = rank,
                %error,
                "a message of a setup was not sent"
            );
            // One that is only slow is waited for, and named if it does not answer.
            if !error.is_timeout() {
                // What one that is gone said last tells more than that.
                self.take_from(rank);
                self.machine.lost(rank, reason(rank, error));
            }
        }
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        if self.finished || self.machine.failed() {
            return;
        }
        let rank = self.rank();
        tracing::warn!(rank, "a setup was abandoned between its gates");
        self.machine.abandon();
        while let Some((peer, message)) = self.machine.take_message() {
            self.send(peer, &message, PARTING);
        }
    }
}

/// What an error of the bootstrap says about the peer.
fn reason(peer: usize, error: BootstrapError) -> Reason {
    match error {
        BootstrapError::PeerFailed { rank, cause, .. } if rank == peer => {
            Reason::Died(Cause::new(cause))
        }
        BootstrapError::PeerLeft { rank, .. } if rank == peer => Reason::Left,
        other => Reason::Unreachable(Cause::new(other)),
    }
}
