// SPDX-License-Identifier: MIT
//! A neighbour tells how the setup ended and leaves at once: what it said counts, however its leaving
//! is noticed.

use std::sync::Mutex;
use std::time::Duration;

use super::error::{Cause, Reason, SetupError};
use super::wire::{Body, Message};
use super::{Gate, UNCOUNTED};
use crate::failure::{FailureKind, PeerFailure};
use crate::{Bootstrap, BootstrapError, Deadline, Tag};

/// How rank 3 notices that rank 2, its parent in the tree, has left.
#[derive(Clone, Copy, PartialEq)]
enum Noticed {
    /// It asks, after it has looked for a message.
    ByAsking,
    /// By sending its report.
    BySending,
}

/// Rank 3 of four. The last word of rank 2 is there when its leaving is noticed, and not before.
struct Leaving {
    noticed: Noticed,
    /// The last word, until it is taken.
    word: Mutex<Option<Vec<u8>>>,
    left: Mutex<bool>,
}

impl Leaving {
    fn failure() -> PeerFailure {
        PeerFailure::new(2, FailureKind::Left, "it said goodbye")
    }

    fn error() -> BootstrapError {
        BootstrapError::from_failure(&Self::failure(), 3, String::new())
    }
}

impl Bootstrap for Leaving {
    fn rank(&self) -> usize {
        3
    }

    fn world_size(&self) -> usize {
        4
    }

    fn send(&self, _: usize, _: Tag, _: &[u8], _: Deadline) -> Result<(), BootstrapError> {
        if self.noticed == Noticed::BySending {
            *self.left.lock().unwrap() = true;
            return Err(Self::error());
        }
        Ok(())
    }

    fn recv(&self, peer: usize, _: Tag, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        if *self.left.lock().unwrap() {
            return self.word.lock().unwrap().take().ok_or_else(Self::error);
        }
        Err(BootstrapError::Timeout {
            rank: 3,
            operation: "receiving".into(),
            waiting_for: vec![peer],
            waited: deadline.budget(),
            hint: String::new(),
        })
    }

    fn failure_of(&self, rank: usize) -> Option<PeerFailure> {
        let mut left = self.left.lock().unwrap();
        *left |= self.noticed == Noticed::ByAsking && rank == 2;
        left.then(Self::failure)
    }
}

#[test]
fn the_last_word_of_one_that_leaves_counts_more_than_that_it_left() {
    let blamed = SetupError::new("first", 0, Reason::Died(Cause::new("killed")));
    let word = Message {
        turn: UNCOUNTED,
        step: 1,
        phase: "first".into(),
        body: Body::Verdict(Err(blamed.clone())),
    };
    for noticed in [Noticed::ByAsking, Noticed::BySending] {
        let bootstrap = Leaving {
            noticed,
            word: Mutex::new(Some(word.encode().unwrap())),
            left: Mutex::new(false),
        };
        let deadline = Deadline::after(Duration::from_secs(20));
        let mut gate = Gate::new(&bootstrap, 0, deadline).unwrap();
        assert_eq!(gate.pass("first", Ok(())), Err(blamed.clone()));
    }
}
