// SPDX-License-Identifier: MIT
//! How many queues each rank wants to each other, and whether all agree.
//!
//! A [`Plan`] is one rank's: 0 to 64 queues to each peer, none to itself. Both
//! ends of an edge must ask for the same number; [`Plan::agree`] finds out
//! collectively, at a [`Gate`].
//!
//! # What it costs
//!
//! The ranks add up a hash of every edge, which its lower rank counts as positive
//! and its higher rank as negative: zero is agreement (two ranks that disagree get
//! through with a chance of 2^-128). That is one gate with a value of 128 bytes,
//! whatever the plans are: O(log world) messages a rank, no list of ranks or
//! edges anywhere. Only when the sum is not zero do further gates narrow it down,
//! an eighth of the ranks at a time, to the lowest edge that does not fit, and
//! fetch its two counts.

mod check;
mod fault;

use std::fmt;

pub(crate) use self::check::{Check, Next};
pub use self::fault::PlanFault;
use crate::gate::{Gate, Reason, SetupError};

/// The most queues between two ranks.
pub const MAX_QUEUES: u32 = 64;

/// The name of the phase in which plans are compared.
pub const PHASE: &str = "plan";

/// One rank's valid plan: how many queues to which peers.
#[derive(Clone, PartialEq, Eq)]
pub struct Plan {
    rank: usize,
    world: usize,
    /// Peers with at least one queue, in order, each with the sum of the counts
    /// before it.
    edges: Vec<Edge>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Edge {
    peer: usize,
    count: u32,
    before: usize,
}

impl Plan {
    /// A plan of pairs of peer and count, in any order; peers that are not named
    /// get no queue.
    ///
    /// # Errors
    /// A [`PlanFault`] that names the peer, and the count where that is wrong.
    pub fn sparse(rank: usize, world: usize, counts: &[(usize, u32)]) -> Result<Self, PlanFault> {
        let mut sorted = counts.to_vec();
        sorted.sort_by_key(|(peer, _)| *peer);
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(PlanFault::PeerTwice { peer: pair[0].0 });
        }
        let counts = sorted
            .iter()
            .map(|(peer, count)| (*peer, i64::from(*count)));
        Self::checked(rank, world, counts)
    }

    /// A plan of one count for each rank of the world, by rank; 0 for the own.
    ///
    /// # Errors
    /// A [`PlanFault`] that names the peer and the count.
    pub fn dense(rank: usize, world: usize, counts: &[i32]) -> Result<Self, PlanFault> {
        if counts.len() != world {
            return Err(PlanFault::Length {
                given: counts.len(),
                world,
            });
        }
        let counts = counts.iter().map(|count| i64::from(*count)).enumerate();
        Self::checked(rank, world, counts)
    }

    /// The same count to every other rank.
    ///
    /// # Errors
    /// A [`PlanFault`] that names the count.
    pub fn uniform(rank: usize, world: usize, count: i32) -> Result<Self, PlanFault> {
        let peers = (0..world).filter(|peer| *peer != rank);
        Self::checked(rank, world, peers.map(|peer| (peer, i64::from(count))))
    }

    fn checked(
        rank: usize,
        world: usize,
        counts: impl Iterator<Item = (usize, i64)>,
    ) -> Result<Self, PlanFault> {
        let mut edges = Vec::new();
        let mut before = 0;
        for (peer, count) in counts {
            if peer >= world {
                return Err(PlanFault::PeerOutOfRange { peer, world });
            }
            if peer == rank && count != 0 {
                return Err(PlanFault::SelfCount { count });
            }
            match u32::try_from(count) {
                Ok(0) => {}
                Ok(count) if count <= MAX_QUEUES => {
                    edges.push(Edge {
                        peer,
                        count,
                        before,
                    });
                    before += count as usize;
                }
                _ => return Err(PlanFault::Count { peer, count }),
            }
        }
        Ok(Self { rank, world, edges })
    }

    /// Compares this rank's plan with all others', collectively, in the phase
    /// [`PHASE`]. Every rank calls it, those without queues too, and those whose
    /// plan is not valid, so that all hear of it.
    ///
    /// # Errors
    /// The same on all ranks: [`Reason::Plan`] with the lowest rank whose plan is
    /// not valid, or else the lowest edge whose ends disagree and both counts;
    /// otherwise as [`Gate::pass`].
    pub fn agree(local: Result<Self, PlanFault>, gate: &mut Gate<'_>) -> Result<Self, SetupError> {
        let local = local.and_then(|plan| match (plan.rank, plan.world) {
            here if here == (gate.rank(), gate.world_size()) => Ok(plan),
            (rank, world) => Err(PlanFault::OtherRank { rank, world }),
        });
        let mut check = Check::new(gate.world_size());
        let plan = match local {
            Ok(plan) => plan,
            Err(fault) => {
                // No rank passes, so the first gate gives the error.
                gate.agree(PHASE, Err(Reason::Plan(fault.clone())))?;
                return Err(SetupError::new(PHASE, gate.rank(), Reason::Plan(fault)));
            }
        };
        loop {
            let sums = gate.agree(PHASE, Ok(check.contribution(&plan)))?;
            match check.next(&sums) {
                Next::Agreed => return Ok(plan),
                Next::Narrowed => {}
                Next::Mismatch(error) => return Err(gate.stop(error)),
            }
        }
    }

    /// The rank whose plan it is.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.world
    }

    /// The peers with at least one queue, in order, each with its count.
    pub fn peers(&self) -> impl ExactSizeIterator<Item = (usize, u32)> + '_ {
        self.edges.iter().map(|edge| (edge.peer, edge.count))
    }

    /// The number of queues to `peer`; 0 when it is not in the plan.
    #[must_use]
    pub fn count(&self, peer: usize) -> u32 {
        self.edge(peer).map_or(0, |edge| edge.count)
    }

    /// The number of queues to all peers.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.edges
            .last()
            .map_or(0, |edge| edge.before + edge.count as usize)
    }

    /// The place of queue `index` to `peer` in a list of all queues that is
    /// ordered by peer and then by index; `None` when it is not in the plan.
    #[must_use]
    pub fn slot(&self, peer: usize, index: u32) -> Option<usize> {
        let edge = self.edge(peer)?;
        (index < edge.count).then(|| edge.before + index as usize)
    }

    fn edge(&self, peer: usize) -> Option<&Edge> {
        let at = self
            .edges
            .binary_search_by_key(&peer, |edge| edge.peer)
            .ok()?;
        self.edges.get(at)
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plan of rank {} of {}: ", self.rank, self.world)?;
        f.debug_map().entries(self.peers()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_give_the_same_plan() {
        let sparse = Plan::sparse(1, 4, &[(3, 64), (0, 2), (2, 0)]).unwrap();
        assert_eq!(Plan::dense(1, 4, &[2, 0, 0, 64]).unwrap(), sparse);
        assert_eq!(sparse.peers().collect::<Vec<_>>(), [(0, 2), (3, 64)]);
        assert_eq!(
            (sparse.count(3), sparse.count(2), sparse.count(9)),
            (64, 0, 0)
        );
        assert_eq!(sparse.queues(), 66);
        let uniform = Plan::uniform(1, 3, 5).unwrap();
        assert_eq!(uniform, Plan::sparse(1, 3, &[(0, 5), (2, 5)]).unwrap());
        let idle = Plan::sparse(0, 1, &[]).unwrap();
        assert_eq!((idle.queues(), idle.peers().len()), (0, 0));
    }

    #[test]
    fn slots_are_dense_and_in_order() {
        let plan = Plan::sparse(1, 9, &[(3, 2), (0, 3), (8, 1)]).unwrap();
        let slots: Vec<_> = [(0, 0), (0, 2), (3, 0), (3, 1), (8, 0)]
            .map(|(peer, index)| plan.slot(peer, index).unwrap())
            .into();
        assert_eq!(slots, [0, 2, 3, 4, 5]);
        assert_eq!(plan.queues(), 6);
        for (peer, index) in [(0, 3), (3, 2), (1, 0), (2, 0), (8, u32::MAX), (9, 0)] {
            assert_eq!(plan.slot(peer, index), None);
        }
    }

    #[test]
    fn what_is_not_valid_is_named() {
        use PlanFault::*;
        let sparse = |counts: &[(usize, u32)]| Plan::sparse(1, 4, counts).unwrap_err();
        assert_eq!(sparse(&[(3, 65)]), Count { peer: 3, count: 65 });
        assert_eq!(sparse(&[(1, 1)]), SelfCount { count: 1 });
        assert_eq!(sparse(&[(4, 1)]), PeerOutOfRange { peer: 4, world: 4 });
        assert_eq!(sparse(&[(2, 1), (0, 1), (2, 1)]), PeerTwice { peer: 2 });
        assert!(Plan::sparse(1, 4, &[(1, 0), (3, 0)]).is_ok());
        let dense = |counts: &[i32]| Plan::dense(1, 4, counts).unwrap_err();
        assert_eq!(dense(&[0, 0, -1, 0]), Count { peer: 2, count: -1 });
        assert_eq!(dense(&[0, -1, 0, 0]), SelfCount { count: -1 });
        assert_eq!(dense(&[0; 3]), Length { given: 3, world: 4 });
        let uniform = Plan::uniform(0, 2, 65).unwrap_err();
        assert_eq!(uniform, Count { peer: 1, count: 65 });
    }
}
