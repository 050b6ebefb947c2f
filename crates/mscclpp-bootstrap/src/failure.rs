// SPDX-License-Identifier: MIT
//! Who has died, and who wants to know.

use std::fmt;

/// How a rank went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// Its connection broke without a goodbye, or nothing was heard from it for too
    /// long: the process died or stopped, or the network to it did.
    Died,
    /// It dropped its bootstrap in good order while somebody still wanted
    /// something from it.
    Left,
}

/// A rank that is gone. Made by bootstraps; told to every [`FailureObserver`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerFailure {
    /// The rank that is gone.
    pub rank: usize,
    /// Whether it died or left.
    pub kind: FailureKind,
    /// What was seen, and by whom.
    pub cause: String,
}

impl PeerFailure {
    /// A record that `rank` is gone, for bootstraps of your own.
    pub fn new(rank: usize, kind: FailureKind, cause: impl Into<String>) -> Self {
        Self {
            rank,
            kind,
            cause: cause.into(),
        }
    }
}

impl fmt::Display for PeerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.kind {
            FailureKind::Died => "died",
            FailureKind::Left => "left",
        };
        write!(f, "rank {} {verb}: {}", self.rank, self.cause)
    }
}

/// Wants to know which ranks are gone.
pub trait FailureObserver: Send + Sync {
    /// Called once for each rank that is gone, this one included if the others take
    /// it for dead, on a thread of the bootstrap (for those already gone: on the
    /// thread that registers) and with none of its locks held. All observers are
    /// told in the same order, each by one call at a time and apart from the others.
    /// One that takes its time or calls back hears of the next rank later; one that
    /// panics is warned of, and hears of the next rank, too.
    fn peer_failed(&self, failure: &PeerFailure);
}
