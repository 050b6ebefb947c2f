// SPDX-License-Identifier: MIT
//! What every bootstrap can do.

use std::net::IpAddr;
use std::sync::Weak;
use std::time::Duration;

use crate::collectives::{self, Turns};
use crate::failure::{FailureObserver, PeerFailure};
use crate::{BootstrapError, Deadline, Deadlines, JobKey, Tag};

/// How [`Bootstrap::all_reduce`] combines values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The sum modulo 2^64.
    Sum,
    /// The bits that all have.
    And,
    /// The bits that any has.
    Or,
}

/// How the ranks of a job talk to each other before they have channels.
///
/// A bootstrap of your own implements the first four methods; the rest is built
/// on them. What they must do: messages of one (sender, receiver, tag) arrive
/// whole and in order, independent of those of other tags; a rank can send to
/// itself; `send` does not wait for the receiver to call `recv` (it may wait for
/// room); both end by the deadline. All methods may be called from several
/// threads at once.
///
/// Collectives (`all_gather`, `broadcast`, `all_reduce`, `barrier`, the first
/// `ranks_per_node`) are called by all ranks in the same order; each takes
/// O(log world) steps, ends within [`Bootstrap::timeout`], and its error names
/// the step and the rank that it waited for. After a failed collective the ranks
/// may disagree on its outcome.
///
/// A job of one rank, whose messages are to itself:
///
/// ```
/// use std::sync::Mutex;
/// use mscclpp_bootstrap::{Bootstrap, BootstrapError, Deadline, ReduceOp, Tag};
///
/// #[derive(Default)]
/// struct Alone(Mutex<Vec<(Tag, Vec<u8>)>>);
///
/// impl Bootstrap for Alone {
///     fn rank(&self) -> usize {
///         0
///     }
///
///     fn world_size(&self) -> usize {
///         1
///     }
///
///     fn send(&self, _: usize, tag: Tag, data: &[u8], _: Deadline) -> Result<(), BootstrapError> {
///         self.0.lock().unwrap().push((tag, data.to_vec()));
///         Ok(())
///     }
///
///     fn recv(&self, peer: usize, tag: Tag, _: Deadline) -> Result<Vec<u8>, BootstrapError> {
///         let mut waiting = self.0.lock().unwrap();
///         match waiting.iter().position(|(of, _)| *of == tag) {
///             Some(at) => Ok(waiting.remove(at).1),
///             // Nobody else could send it meanwhile.
///             None => Err(BootstrapError::Timeout {
///                 rank: 0,
///                 operation: "a receive".into(),
///                 waiting_for: vec![peer],
///                 waited: Default::default(),
///                 hint: String::new(),
///             }),
///         }
///     }
/// }
///
/// # fn main() -> Result<(), BootstrapError> {
/// let alone = Alone::default();
/// alone.send(0, Tag::user(7), b"note", Deadline::default())?;
/// assert_eq!(alone.recv(0, Tag::user(7), Deadline::default())?, b"note");
/// assert_eq!(alone.all_reduce(40, ReduceOp::Sum)?, 40);
/// # Ok(())
/// # }
/// ```
pub trait Bootstrap: Send + Sync {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks, at least 1.
    fn world_size(&self) -> usize;

    /// Sends one message of any length, empty ones too.
    ///
    /// # Errors
    /// When the peer does not exist, is gone, or is not reached in time. After
    /// [`BootstrapError::Underway`] the message may still arrive, after others it
    /// does not.
    fn send(
        &self,
        peer: usize,
        tag: Tag,
        data: &[u8],
        deadline: Deadline,
    ) -> Result<(), BootstrapError>;

    /// Takes the next message that `peer` sent with `tag`, waiting for it.
    /// Messages that arrived before the peer was gone can still be taken, and so
    /// can those that are there when the deadline has passed already.
    ///
    /// # Errors
    /// When the peer does not exist, is gone, or sent nothing in time.
    fn recv(&self, peer: usize, tag: Tag, deadline: Deadline) -> Result<Vec<u8>, BootstrapError>;

    /// The time limits of this job, those of the layers above included: what the
    /// environment says.
    fn deadlines(&self) -> Deadlines {
        Deadlines::default()
    }

    /// The time limit of each collective: [`Deadlines::step`].
    fn timeout(&self) -> Duration {
        self.deadlines().step
    }

    /// Everybody's bytes, indexed by rank. The lengths may differ.
    ///
    /// # Errors
    /// As described for collectives at the trait.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        collectives::all_gather(self, mine, Deadline::after(self.timeout()))
    }

    /// The bytes of `root` on every rank; `data` counts on `root` only.
    ///
    /// # Errors
    /// As described for collectives at the trait; also when `root` does not
    /// exist.
    fn broadcast(&self, data: &[u8], root: usize) -> Result<Vec<u8>, BootstrapError> {
        collectives::broadcast(self, data, root, Deadline::after(self.timeout()))
    }

    /// All ranks' values combined, the same on every rank.
    ///
    /// # Errors
    /// As described for collectives at the trait.
    fn all_reduce(&self, value: u64, op: ReduceOp) -> Result<u64, BootstrapError> {
        collectives::all_reduce(self, value, op, Deadline::after(self.timeout()))
    }

    /// Returns once all ranks have called it.
    ///
    /// # Errors
    /// As described for collectives at the trait.
    fn barrier(&self) -> Result<(), BootstrapError> {
        collectives::barrier(self, Deadline::after(self.timeout()))
    }

    /// Returns once all ranks of the list have called it with the same list, in
    /// any order. The caller is one of them. Other ranks take no part; barriers
    /// of different groups do not meet, nor do they meet a user's tags.
    ///
    /// # Errors
    /// As described for collectives at the trait; also when a rank is missing,
    /// named twice, or the caller is not in the list.
    fn group_barrier(&self, ranks: &[usize]) -> Result<(), BootstrapError> {
        collectives::group_barrier(self, ranks, Deadline::after(self.timeout()))
    }

    /// How many ranks, this one included, run on this rank's machine
    /// ([`crate::host::id`]). Collective, unless an implementation says
    /// otherwise.
    ///
    /// # Errors
    /// As described for collectives at the trait.
    fn ranks_per_node(&self) -> Result<usize, BootstrapError> {
        let mine = crate::host::id().to_le_bytes();
        let all = self.all_gather(&mine)?;
        Ok(all.iter().filter(|host| host[..] == mine).count())
    }

    /// The address that other ranks reach this one at, where there is one.
    fn local_ip(&self) -> Option<IpAddr> {
        None
    }

    /// The key that this job's ranks share, where there is one. Connections
    /// beside the bootstrap prove themselves with it.
    fn job_key(&self) -> Option<JobKey> {
        None
    }

    /// Asks to be told of every rank that is gone, those included that are gone
    /// already. A bootstrap that notices nothing tells nothing.
    fn observe_failures(&self, observer: Weak<dyn FailureObserver>) {
        drop(observer);
    }

    /// The first rank known to have died.
    fn known_failure(&self) -> Option<PeerFailure> {
        None
    }

    /// What is known of the death of `rank`.
    fn failure_of(&self, rank: usize) -> Option<PeerFailure> {
        let _ = rank;
        None
    }

    /// As [`Bootstrap::recv`], in the midst of a collective of `members` (`None`:
    /// the whole world). A bootstrap that notices deaths ends the wait when any
    /// member has died, because the collective can not complete then.
    ///
    /// # Errors
    /// As [`Bootstrap::recv`].
    fn recv_in_collective(
        &self,
        peer: usize,
        tag: Tag,
        members: Option<&[usize]>,
        deadline: Deadline,
    ) -> Result<Vec<u8>, BootstrapError> {
        let _ = members;
        self.recv(peer, tag, deadline)
    }

    /// The counters that keep one collective apart from the next. A bootstrap
    /// that owns one may be used for collectives by several threads at once, and
    /// messages of a failed collective do not disturb the next; without one
    /// (the default) collectives are called by one thread at a time.
    fn turns(&self) -> Option<&Turns> {
        None
    }
}
