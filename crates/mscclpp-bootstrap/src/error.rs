// SPDX-License-Identifier: MIT
//! Everything that can go wrong while ranks meet and talk.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::failure::{FailureKind, PeerFailure};
use crate::gate::SetupError;

/// Everything that can go wrong while ranks meet and talk. The texts name the
/// rank, what it was doing and, where it is known, what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// A world of this many ranks can not be made.
    #[error("a world of {world} ranks can not be made: give 1 to {max}")]
    WorldSize {
        /// The number that was asked for.
        world: usize,
        /// The largest that is possible.
        max: usize,
    },

    /// A rank that does not exist.
    #[error("{what} {rank} does not exist: the world has {world} ranks, numbered from 0")]
    RankOutOfRange {
        /// Whose rank it is: the caller's, a peer's, a root's.
        what: &'static str,
        /// The number given.
        rank: usize,
        /// The size of the world.
        world: usize,
    },

    /// A list of ranks that is no group.
    #[error("rank {rank} can not form a group of {members:?}: {reason}")]
    BadGroup {
        /// The caller.
        rank: usize,
        /// The list as given.
        members: Vec<usize>,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// The object has been initialized before.
    #[error("rank {rank} is initialized already: a second job needs a new object on every rank")]
    AlreadyInitialized {
        /// The rank of the object.
        rank: usize,
    },

    /// The object has not been initialized.
    #[error("rank {rank} has not joined yet: call initialize first")]
    NotInitialized {
        /// The rank of the object.
        rank: usize,
    },

    /// An earlier attempt to initialize the object failed.
    #[error("rank {rank} failed to join before ({cause}): make a new object to try again")]
    FailedBefore {
        /// The rank of the object.
        rank: usize,
        /// What went wrong then.
        cause: String,
    },

    /// The time is up.
    #[error(
        "rank {rank} gave up after {waited:?} in {operation}{}{}",
        WaitingFor(.waiting_for), Hint(.hint)
    )]
    Timeout {
        /// The rank that waited.
        rank: usize,
        /// What it was doing, with the step.
        operation: String,
        /// The ranks that did not do their part, as far as is known.
        waiting_for: Vec<usize>,
        /// How long it waited.
        waited: Duration,
        /// What else was seen; may be empty.
        hint: String,
    },

    /// The time was up while a message was on its way: it may still arrive. After another timeout of
    /// a send it does not.
    #[error(
        "rank {rank} gave up after {waited:?} in {operation}, waiting for rank {peer}: the message is \
         on its way and may still arrive"
    )]
    Underway {
        /// The rank that sent it.
        rank: usize,
        /// The rank that has not taken it.
        peer: usize,
        /// What was being sent.
        operation: String,
        /// How long it waited.
        waited: Duration,
    },

    /// A connection was not made in time.
    #[error("no proven connection {with} within {waited:?}{}", Hint(.hint))]
    LinkTimeout {
        /// To or from whom, with the address.
        with: String,
        /// How long was waited.
        waited: Duration,
        /// What the last attempt met; may be empty.
        hint: String,
    },

    /// A rank died: its connection broke without a goodbye.
    #[error("rank {rank} has died ({cause}); seen by rank {observer} in {operation}")]
    PeerFailed {
        /// The rank that died.
        rank: usize,
        /// The rank that reports it.
        observer: usize,
        /// What the reporting rank was doing.
        operation: String,
        /// What was seen, and by whom.
        cause: String,
    },

    /// A rank has left in good order and takes no part any more.
    #[error(
        "rank {rank} has left; rank {observer} still wanted it for {operation}. \
         Let all ranks finish, for example in a barrier, before one drops its bootstrap"
    )]
    PeerLeft {
        /// The rank that left.
        rank: usize,
        /// The rank that reports it.
        observer: usize,
        /// What the reporting rank was doing.
        operation: String,
    },

    /// The other ranks take this one for dead: they heard nothing from it for too long, or its
    /// connections broke. They do not wait for it any more, nor let it in again.
    #[error(
        "the other ranks take rank {rank}, this one, for dead ({cause}); it can not go on with \
         {operation}: end the process. If it was only stopped or slow, raise \
         MSCCLPP_SILENCE_TIMEOUT on all ranks"
    )]
    Excluded {
        /// This rank.
        rank: usize,
        /// What it was doing.
        operation: String,
        /// What the others saw, and who.
        cause: String,
    },

    /// Another rank could not join, so nobody can.
    #[error("rank {rank} can not join because of rank {by}: {cause}")]
    JoinFailed {
        /// The rank that reports it.
        rank: usize,
        /// The rank that is the reason.
        by: usize,
        /// What went wrong there.
        cause: String,
    },

    /// Two processes say that they are the same rank.
    #[error(
        "two processes are rank {rank}: one at {first}, one at {second}; give each its own rank"
    )]
    DuplicateRank {
        /// The rank that both claim.
        rank: usize,
        /// Where the first one listens.
        first: String,
        /// Where the second one listens.
        second: String,
    },

    /// Two ranks disagree about the size of the world.
    #[error(
        "rank {rank} counts {theirs} ranks and rank 0 counts {ours}; start all with the same number"
    )]
    WorldMismatch {
        /// The rank that differs from rank 0.
        rank: usize,
        /// Its number.
        theirs: usize,
        /// The number of rank 0.
        ours: usize,
    },

    /// Two ranks are not in the same collective.
    #[error(
        "rank {rank} is in {ours} and got a message of {theirs} from rank {peer}: \
         all ranks must call the same collectives in the same order"
    )]
    CollectiveMismatch {
        /// The rank that reports it.
        rank: usize,
        /// The other rank.
        peer: usize,
        /// Where this rank is.
        ours: String,
        /// Where the other one is.
        theirs: String,
    },

    /// The other end does not accept our proof, or we not its.
    #[error(
        "{with}: the proof of the shared secret failed; give all ranks the same unique id, \
         MSCCLPP_SECRET or MSCCLPP_SECRET_FILE"
    )]
    ProofRefused {
        /// To or from whom, with the address.
        with: String,
    },

    /// The other end proved itself and then declined.
    #[error("{with}: the connection was declined: {reason}")]
    Declined {
        /// To or from whom, with the address.
        with: String,
        /// Its reason.
        reason: String,
    },

    /// The other end speaks another version.
    #[error(
        "{with} speaks version {theirs} and this build {ours}; run the same build on all ranks"
    )]
    Version {
        /// The other end.
        with: String,
        /// Its version.
        theirs: u16,
        /// Ours.
        ours: u16,
    },

    /// Strangers could join.
    #[error(
        "joining at {address} needs a secret, because others than this machine can reach it: set \
         MSCCLPP_SECRET or MSCCLPP_SECRET_FILE to the same value on all ranks, or use a unique id"
    )]
    SecretRequired {
        /// Where the ranks meet.
        address: SocketAddr,
    },

    /// A secret that can not be used.
    #[error("{source_name} can not be used: {reason}")]
    BadSecret {
        /// Where the secret came from.
        source_name: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The operating system gave no random bytes.
    #[error("the operating system gave no random bytes: {cause}")]
    Random {
        /// Its reason.
        cause: String,
    },

    /// Bytes that are no unique id.
    #[error("this is no unique id: {reason}")]
    BadUniqueId {
        /// What is wrong with them.
        reason: &'static str,
    },

    /// A text that is no address.
    #[error("\"{text}\" is no address ({reason}): write ip:port, [ipv6]:port or interface:ip:port")]
    BadAddress {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: String,
    },

    /// No local address fits.
    #[error("no usable network address: {reason}; there are: {available}")]
    NoInterface {
        /// Which rule found none.
        reason: String,
        /// What there is.
        available: String,
    },

    /// The launcher's environment makes no sense.
    #[error("{variable}={value}: {reason}")]
    BadEnvironment {
        /// The variable.
        variable: String,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The process was not started by a launcher that is known.
    #[error(
        "no launcher found: start the ranks with mpirun, srun, torchrun or cargo xtask, or set \
         MSCCLPP_RANK and MSCCLPP_WORLD_SIZE"
    )]
    NoLauncher,

    /// The launcher does not say where the ranks meet.
    #[error(
        "{launcher} does not say where the ranks meet: set MSCCLPP_ROOT to ip:port or \
         interface:ip:port of rank 0, or to file:PATH on a file system that all ranks share"
    )]
    NoRoot {
        /// The launcher that was found.
        launcher: String,
    },

    /// A record that can not be read or written.
    #[error("malformed message: {reason}")]
    BadMessage {
        /// What is wrong with it.
        reason: String,
    },

    /// A message above the limit.
    #[error("a message of {bytes} bytes is larger than the limit of {max}")]
    MessageTooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        max: u64,
    },

    /// A setup of all ranks failed on all of them.
    #[error(transparent)]
    Setup(#[from] SetupError),

    /// The acceptor behind an expectation is gone.
    #[error("the acceptor was dropped, or something else claimed the same link id")]
    AcceptorGone,

    /// The operating system refused something.
    #[error("{operation} failed: {source}{}", Hint(.hint))]
    Io {
        /// What was tried, with the address.
        operation: String,
        /// What to do about it; may be empty.
        hint: String,
        /// The reason of the operating system.
        source: io::Error,
    },
}

impl BootstrapError {
    pub(crate) fn io(operation: impl Into<String>, source: io::Error) -> Self {
        Self::Io {
            operation: operation.into(),
            hint: String::new(),
            source,
        }
    }

    /// The error of a rank that waits for one that is gone.
    pub fn from_failure(failure: &PeerFailure, observer: usize, operation: String) -> Self {
        match failure.kind {
            FailureKind::Died => Self::PeerFailed {
                rank: failure.rank,
                observer,
                operation,
                cause: failure.cause.clone(),
            },
            FailureKind::Left => Self::PeerLeft {
                rank: failure.rank,
                observer,
                operation,
            },
        }
    }

    /// Whether a time limit ended the operation.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(
            self,
            Self::Timeout { .. } | Self::Underway { .. } | Self::LinkTimeout { .. }
        )
    }

    /// The rank that is gone, when that is the reason.
    #[must_use]
    pub fn gone_rank(&self) -> Option<usize> {
        match self {
            Self::PeerFailed { rank, .. } | Self::PeerLeft { rank, .. } => Some(*rank),
            _ => None,
        }
    }
}

/// ", waiting for ranks 1, 2 and 5 more".
struct WaitingFor<'a>(&'a [usize]);

impl fmt::Display for WaitingFor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 16;
        let (first, rest) = match self.0 {
            [] => return Ok(()),
            [one] => return write!(f, ", waiting for rank {one}"),
            [first, rest @ ..] => (first, rest),
        };
        write!(f, ", waiting for ranks {first}")?;
        for rank in rest.iter().take(SHOWN) {
            write!(f, ", {rank}")?;
        }
        match rest.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// "; text" unless the text is empty.
struct Hint<'a>(&'a str);

impl fmt::Display for Hint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, "; {}", self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout(waiting_for: Vec<usize>, hint: &str) -> String {
        BootstrapError::Timeout {
            rank: 2,
            operation: "joining".into(),
            waiting_for,
            waited: Duration::from_secs(1),
            hint: hint.into(),
        }
        .to_string()
    }

    #[test]
    fn a_timeout_names_the_ranks_waited_for() {
        assert_eq!(
            timeout(vec![3], ""),
            "rank 2 gave up after 1s in joining, waiting for rank 3"
        );
        assert_eq!(
            timeout(vec![1, 3], "look"),
            "rank 2 gave up after 1s in joining, waiting for ranks 1, 3; look"
        );
        assert!(timeout((0..100).collect(), "").ends_with(", 16 and 83 more"));
        assert_eq!(timeout(vec![], ""), "rank 2 gave up after 1s in joining");
    }
}
