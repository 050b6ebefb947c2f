// SPDX-License-Identifier: MIT
//! Why a setup failed, in a form that travels.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::PlanFault;

/// What a cause is cut to, in bytes.
pub(crate) const MAX_CAUSE: usize = 1024;
/// What the name of a phase is cut to, in bytes.
pub(crate) const MAX_PHASE: usize = 32;
/// Ends a text that was cut.
const CUT: &str = "[cut]";

/// The text within `max` bytes; one that is longer is cut and ends with a mark.
pub(crate) fn fit(mut text: String, max: usize) -> String {
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max - CUT.len()));
        text.push_str(CUT);
    }
    text
}

/// Why the step of a rank failed: a text of at most 1024 bytes. A longer one is
/// cut and ends with `[cut]`.
///
/// Every error converts into it, so that `?` works in a step.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cause(String);

impl Cause {
    /// The text of `cause`.
    pub fn new(cause: impl fmt::Display) -> Self {
        Self(fit(cause.to_string(), MAX_CAUSE))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<E: std::error::Error> From<E> for Cause {
    fn from(error: E) -> Self {
        Self::new(error)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// What a rank did that made a setup fail.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Reason {
    /// Its step of the phase failed.
    Failed(Cause),
    /// Its plan is not valid, or does not fit another rank's.
    Plan(PlanFault),
    /// It is in another phase, or sent what makes no sense there.
    OutOfStep(Cause),
    /// It did not answer in time.
    Silent,
    /// Messages to or from it failed.
    Unreachable(Cause),
    /// It left the job in good order.
    Left,
    /// It died.
    Died(Cause),
}

impl Reason {
    /// Which reason counts when there are several: the smallest. Who is gone is
    /// named before who failed, and who is silent may be gone.
    fn order(&self) -> u8 {
        match self {
            Self::Died(_) => 0,
            Self::Left => 1,
            Self::Unreachable(_) => 2,
            Self::Silent => 3,
            Self::OutOfStep(_) => 4,
            Self::Plan(_) | Self::Failed(_) => 5,
        }
    }

    /// Whether the texts in it are as short as those that are made here.
    pub(crate) fn fits(&self) -> bool {
        match self {
            Self::Failed(cause)
            | Self::OutOfStep(cause)
            | Self::Unreachable(cause)
            | Self::Died(cause) => cause.0.len() <= MAX_CAUSE,
            Self::Plan(_) | Self::Silent | Self::Left => true,
        }
    }

    /// Whether the ranks that it blames, beside the one that has it, are some of `world`.
    pub(crate) fn is_of(&self, world: usize) -> bool {
        match self {
            Self::Plan(PlanFault::Mismatch { lower, higher, .. }) => lower.max(higher) < &world,
            _ => true,
        }
    }
}

/// Why no rank passed a gate: the phase, the rank to blame and what it did. While
/// all ranks live and answer, it is the same on all of them.
///
/// When several ranks are to blame, those that are gone come before those that are
/// silent, and these before those whose step failed; among equals it is the lowest
/// rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SetupError {
    /// The name of the phase, at most 32 bytes of it.
    pub phase: String,
    /// The rank to blame. Of a plan that two ranks disagree about, the lower one.
    pub rank: usize,
    /// What it did.
    pub reason: Reason,
}

impl SetupError {
    /// An error of the phase.
    pub(crate) fn new(phase: &str, rank: usize, reason: Reason) -> Self {
        Self {
            phase: phase.to_owned(),
            rank,
            reason,
        }
    }

    /// The one of two that is returned.
    pub(crate) fn worse(self, other: Self) -> Self {
        let order = |error: &Self| (error.reason.order(), error.rank);
        if order(&other) < order(&self) {
            other
        } else {
            self
        }
    }

    /// The rank that is gone or does not answer, when that is the reason.
    #[must_use]
    pub fn lost_rank(&self) -> Option<usize> {
        match self.reason {
            Reason::Died(_) | Reason::Left | Reason::Unreachable(_) | Reason::Silent => {
                Some(self.rank)
            }
            _ => None,
        }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rank = self.rank;
        write!(f, "the setup failed on all ranks in phase {}: ", self.phase)?;
        match &self.reason {
            Reason::Failed(cause) => write!(f, "rank {rank} failed: {cause}"),
            Reason::Plan(fault @ PlanFault::Mismatch { .. }) => write!(f, "{fault}"),
            Reason::Plan(fault) => write!(f, "the plan of rank {rank} is not valid: {fault}"),
            Reason::OutOfStep(cause) => write!(f, "rank {rank} is out of step: {cause}"),
            Reason::Silent => write!(
                f,
                "rank {rank} did not answer in time; see what it does, or allow more time"
            ),
            Reason::Unreachable(cause) => write!(f, "rank {rank} is not reached: {cause}"),
            Reason::Left => write!(f, "rank {rank} has left the job"),
            Reason::Died(cause) => write!(f, "rank {rank} has died: {cause}"),
        }
    }
}

impl std::error::Error for SetupError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_cause_is_cut_between_characters_and_marked() {
        let cause = Cause::new("ä".repeat(2000));
        assert!(cause.as_str().len() <= MAX_CAUSE);
        assert!(cause.as_str().ends_with("ä[cut]"));
        let whole = "x".repeat(MAX_CAUSE);
        assert_eq!(Cause::new(&whole).as_str(), whole);
        assert_eq!(fit("exchange".into(), MAX_PHASE), "exchange");
    }

    #[test]
    fn the_gone_come_before_the_silent_and_the_lowest_rank_among_equals() {
        let error = |rank, reason| SetupError::new("x", rank, reason);
        let failed = |rank| error(rank, Reason::Failed(Cause::new("no")));
        let silent = error(5, Reason::Silent);
        let died = error(7, Reason::Died(Cause::new("gone")));
        assert_eq!(failed(3).worse(failed(2)).rank, 2);
        assert_eq!(failed(2).worse(failed(3)).rank, 2);
        assert_eq!(failed(2).worse(silent.clone()), silent);
        assert_eq!(died.clone().worse(silent), died);
    }

    #[test]
    fn the_text_names_phase_rank_and_cause() {
        let error = SetupError::new("rtr", 3, Reason::Failed(Cause::new("no path")));
        assert_eq!(
            error.to_string(),
            "the setup failed on all ranks in phase rtr: rank 3 failed: no path"
        );
    }
}
