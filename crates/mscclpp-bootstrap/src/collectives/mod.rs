// SPDX-License-Identifier: MIT
//! Collectives of O(log world) steps on top of `send` and `recv`.
//!
//! All-gather doubles what each rank holds in every step and moves each byte
//! once to each rank; the others go up and down a binomial tree. All collectives
//! of the world share one tag, each group has its own. Every message carries
//! which collective it belongs to, so that ranks that disagree find out.

mod envelope;
pub(crate) mod tree;
pub(crate) mod turns;

use sha2::{Digest, Sha256};

use self::envelope::{Envelope, Kind};
pub use self::turns::Turns;
use self::turns::{Turn, UNCOUNTED};
use crate::failure::{FailureKind, PeerFailure};
use crate::{Bootstrap, BootstrapError, Deadline, ReduceOp, Tag};

/// What a rank does in a step.
const SENDING: &str = "sending to";
const WAITING: &str = "waiting for";

/// One collective of one rank, under way.
struct Round<'a, B: ?Sized> {
    bootstrap: &'a B,
    kind: Kind,
    tag: Tag,
    members: Option<&'a [usize]>,
    deadline: Deadline,
    number: u64,
    /// Held so that no other thread of this rank enters the same stream.
    _turn: Option<Turn<'a>>,
    _span: tracing::span::EnteredSpan,
}

impl<'a, B: Bootstrap + ?Sized> Round<'a, B> {
    fn enter(
        bootstrap: &'a B,
        kind: Kind,
        tag: Tag,
        members: Option<&'a [usize]>,
        deadline: Deadline,
    ) -> Result<Self, BootstrapError> {
        let (rank, kind_name) = (bootstrap.rank(), tracing::field::display(kind));
        let span = tracing::debug_span!("collective", rank, kind = kind_name).entered();
        let turn = match bootstrap.turns() {
            None => None,
            Some(turns) => {
                Some(
                    turns
                        .enter(tag, deadline)
                        .ok_or_else(|| BootstrapError::Timeout {
                            rank: bootstrap.rank(),
                            operation: format!("{kind}, before its first step"),
                            waiting_for: Vec::new(),
                            waited: deadline.budget(),
                            hint: "another thread of this rank was in a collective all the time"
                                .into(),
                        })?,
                )
            }
        };
        Ok(Self {
            bootstrap,
            kind,
            tag,
            members,
            deadline,
            number: turn.as_ref().map_or(UNCOUNTED, |turn| turn.number),
            _turn: turn,
            _span: span,
        })
    }

    fn envelope(&self, step: u32) -> Envelope {
        Envelope {
            kind: self.kind,
            step,
            number: self.number,
        }
    }

    fn send(&self, peer: usize, step: u32, body: &[u8]) -> Result<(), BootstrapError> {
        let message = self.envelope(step).wrap(body);
        self.bootstrap
            .send(peer, self.tag, &message, self.deadline)
            .map_err(|error| self.named(error, peer, step, SENDING))
    }

    fn recv(&self, peer: usize, step: u32) -> Result<Vec<u8>, BootstrapError> {
        loop {
            let mut message = self
                .bootstrap
                .recv_in_collective(peer, self.tag, self.members, self.deadline)
                .map_err(|error| self.named(error, peer, step, WAITING))?;
            let mine = self.envelope(step);
            let theirs = Envelope::unwrap(&mut message).map_err(|error| sent_by(peer, error))?;
            if theirs == mine {
                return Ok(message);
            }
            // Left over from a collective that failed here and not there. A bad peer has no end of them.
            if self.number != UNCOUNTED && theirs.number < self.number {
                if self.deadline.expired() {
                    return Err(self.timeout(peer, step));
                }
                continue;
            }
            return Err(BootstrapError::CollectiveMismatch {
                rank: self.bootstrap.rank(),
                peer,
                ours: mine.to_string(),
                theirs: theirs.to_string(),
            });
        }
    }

    /// That only what belongs to earlier collectives has come in time.
    fn timeout(&self, peer: usize, step: u32) -> BootstrapError {
        BootstrapError::Timeout {
            rank: self.bootstrap.rank(),
            operation: self.envelope(step).to_string(),
            waiting_for: vec![peer],
            waited: self.deadline.budget(),
            hint: "what has come from it is of earlier collectives".into(),
        }
    }

    /// The death of a member, if one is known.
    fn death(&self) -> Option<PeerFailure> {
        let died = |failure: &PeerFailure| failure.kind == FailureKind::Died;
        match self.members {
            None => self.bootstrap.known_failure().filter(died),
            Some(members) => (members.iter())
                .filter_map(|rank| self.bootstrap.failure_of(*rank))
                .find(died),
        }
    }

    /// Says in which step of what a send or receive failed.
    fn named(&self, error: BootstrapError, peer: usize, step: u32, doing: &str) -> BootstrapError {
        let place = format!("{}, {doing} rank {peer}", self.envelope(step));
        // Whoever is waited for is in a timeout anyway.
        let step = match doing {
            WAITING => self.envelope(step).to_string(),
            _ => format!("{}, sending", self.envelope(step)),
        };
        match error {
            BootstrapError::Timeout { rank, hint, .. } => BootstrapError::Timeout {
                rank,
                operation: step,
                waiting_for: vec![peer],
                waited: self.deadline.budget(),
                hint,
            },
            BootstrapError::Underway { rank, .. } => BootstrapError::Timeout {
                rank,
                operation: step,
                waiting_for: vec![peer],
                waited: self.deadline.budget(),
                hint: "its message is on its way".into(),
            },
            BootstrapError::PeerFailed {
                rank,
                observer,
                cause,
                ..
            } => BootstrapError::PeerFailed {
                rank,
                observer,
                operation: place,
                cause,
            },
            // Whoever meets a death in a collective may leave at once: the death is the reason.
            BootstrapError::PeerLeft { rank, observer, .. } => match self.death() {
                Some(death) => BootstrapError::from_failure(&death, observer, place),
                None => BootstrapError::PeerLeft {
                    rank,
                    observer,
                    operation: place,
                },
            },
            other => other,
        }
    }
}

/// What makes no sense, with whose it is.
fn sent_by(peer: usize, error: BootstrapError) -> BootstrapError {
    match error {
        BootstrapError::BadMessage { reason } => BootstrapError::BadMessage {
            reason: format!("{reason}; rank {peer} sent it"),
        },
        other => other,
    }
}

pub(crate) fn all_gather<B: Bootstrap + ?Sized>(
    bootstrap: &B,
    mine: &[u8],
    deadline: Deadline,
) -> Result<Vec<Vec<u8>>, BootstrapError> {
    let (rank, world) = (bootstrap.rank(), bootstrap.world_size());
    let round = Round::enter(bootstrap, Kind::AllGather, Tag::WORLD, None, deadline)?;
    // `held[i]` is the slice of rank (rank + i) mod world.
    let mut held = vec![mine.to_vec()];
    let mut step = 0;
    while held.len() < world {
        let have = held.len();
        let count = have.min(world - have);
        let to = (rank + world - have) % world;
        let from = (rank + have) % world;
        round.send(to, step, &envelope::join(&held[..count]))?;
        let more = envelope::split(&round.recv(from, step)?, count)
            .map_err(|error| sent_by(from, error))?;
        held.extend(more);
        step += 1;
    }
    held.rotate_right(rank % world.max(1));
    Ok(held)
}

pub(crate) fn broadcast<B: Bootstrap + ?Sized>(
    bootstrap: &B,
    data: &[u8],
    root: usize,
    deadline: Deadline,
) -> Result<Vec<u8>, BootstrapError> {
    let (rank, world) = (bootstrap.rank(), bootstrap.world_size());
    if root >= world {
        return Err(BootstrapError::RankOutOfRange {
            what: "the root of a broadcast, rank",
            rank: root,
            world,
        });
    }
    let round = Round::enter(bootstrap, Kind::Broadcast, Tag::WORLD, None, deadline)?;
    // The tree is over ranks counted from the root.
    let node = (rank + world - root) % world;
    let rank_of = |node: usize| (node + root) % world;
    let data = match tree::parent(node) {
        None => data.to_vec(),
        Some(parent) => round.recv(rank_of(parent), tree::depth(node) - 1)?,
    };
    for child in tree::children(node, world) {
        round.send(rank_of(child), tree::depth(child) - 1, &data)?;
    }
    Ok(data)
}

pub(crate) fn all_reduce<B: Bootstrap + ?Sized>(
    bootstrap: &B,
    value: u64,
    op: ReduceOp,
    deadline: Deadline,
) -> Result<u64, BootstrapError> {
    let round = Round::enter(bootstrap, Kind::AllReduce(op), Tag::WORLD, None, deadline)?;
    reduce_over(
        &round,
        bootstrap.rank(),
        bootstrap.world_size(),
        |i| i,
        value,
        op,
    )
}

pub(crate) fn barrier<B: Bootstrap + ?Sized>(
    bootstrap: &B,
    deadline: Deadline,
) -> Result<(), BootstrapError> {
    let round = Round::enter(bootstrap, Kind::Barrier, Tag::WORLD, None, deadline)?;
    let (rank, world) = (bootstrap.rank(), bootstrap.world_size());
    reduce_over(&round, rank, world, |i| i, 0, ReduceOp::Or).map(drop)
}

pub(crate) fn group_barrier<B: Bootstrap + ?Sized>(
    bootstrap: &B,
    ranks: &[usize],
    deadline: Deadline,
) -> Result<(), BootstrapError> {
    let (rank, world) = (bootstrap.rank(), bootstrap.world_size());
    let mut members = ranks.to_vec();
    members.sort_unstable();
    let bad = |reason| BootstrapError::BadGroup {
        rank,
        members: ranks.to_vec(),
        reason,
    };
    if members.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(bad("a rank is named twice"));
    }
    if let Some(outside) = members.iter().find(|member| **member >= world) {
        return Err(BootstrapError::RankOutOfRange {
            what: "the group member, rank",
            rank: *outside,
            world,
        });
    }
    let node = members
        .binary_search(&rank)
        .map_err(|_| bad("the caller is not one of them"))?;
    let tag = Tag::group(digest(&members));
    let kind = Kind::GroupBarrier(members.len() as u32);
    let round = Round::enter(bootstrap, kind, tag, Some(&members), deadline)?;
    reduce_over(&round, node, members.len(), |i| members[i], 0, ReduceOp::Or).map(drop)
}

/// Up and down the tree over `size` nodes, of which this rank is `node`.
/// Steps count from the leaves to the root and on to the leaves.
fn reduce_over<B: Bootstrap + ?Sized>(
    round: &Round<'_, B>,
    node: usize,
    size: usize,
    rank_of: impl Fn(usize) -> usize,
    value: u64,
    op: ReduceOp,
) -> Result<u64, BootstrapError> {
    let height = size.max(1).ilog2() + 1;
    let up = |child: usize| height - tree::depth(child);
    let down = |child: usize| height + tree::depth(child) - 1;
    let children: Vec<usize> = tree::children(node, size).collect();
    let mut total = value;
    // Smallest subtrees first: they are done first.
    for child in children.iter().rev() {
        let theirs = word(&round.recv(rank_of(*child), up(*child))?)?;
        total = combine(op, total, theirs);
    }
    if let Some(parent) = tree::parent(node) {
        let parent = rank_of(parent);
        round.send(parent, up(node), &total.to_le_bytes())?;
        total = word(&round.recv(parent, down(node))?)?;
    }
    for child in children {
        round.send(rank_of(child), down(child), &total.to_le_bytes())?;
    }
    Ok(total)
}

fn combine(op: ReduceOp, a: u64, b: u64) -> u64 {
    match op {
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::Sum => a.wrapping_add(b),
        ReduceOp::And => a & b,
        ReduceOp::Or => a | b,
    }
}

fn word(body: &[u8]) -> Result<u64, BootstrapError> {
    let bytes = body.try_into().map_err(|_| BootstrapError::BadMessage {
        reason: format!("a reduced value has 8 bytes, not {}", body.len()),
    })?;
    Ok(u64::from_le_bytes(bytes))
}

/// 64 bits that stand for a member list; two lists that matter at the same time
/// share them with a chance of 2^-56.
fn digest(members: &[usize]) -> u64 {
    let mut hash = Sha256::new();
    for member in members {
        hash.update((*member as u64).to_le_bytes());
    }
    let bytes: [u8; 32] = hash.finalize().into();
    u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default())
}
