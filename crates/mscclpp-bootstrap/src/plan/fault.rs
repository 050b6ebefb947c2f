// SPDX-License-Identifier: MIT
//! What can be wrong with a plan.

use serde::{Deserialize, Serialize};

/// What is wrong with a plan: with one rank's alone, or between two ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFault {
    /// A dense plan has not one count for each rank.
    #[error("it has {given} counts and the world has {world} ranks")]
    Length {
        /// How many counts were given.
        given: usize,
        /// How many ranks there are.
        world: usize,
    },

    /// A peer that does not exist.
    #[error("it names rank {peer}, and the world has {world} ranks, numbered from 0")]
    PeerOutOfRange {
        /// The number given.
        peer: usize,
        /// How many ranks there are.
        world: usize,
    },

    /// A peer is named twice.
    #[error("it names rank {peer} twice")]
    PeerTwice {
        /// The peer.
        peer: usize,
    },

    /// A number of queues that is negative or too large.
    #[error("it asks for {count} queues to rank {peer}: give 0 to {max}", max = super::MAX_QUEUES)]
    Count {
        /// The peer.
        peer: usize,
        /// The number given.
        count: i64,
    },

    /// Queues of a rank to itself.
    #[error("it asks for {count} queues of the rank to itself: give 0")]
    SelfCount {
        /// The number given.
        count: i64,
    },

    /// The plan was made for another rank, or for a world of another size.
    #[error("it was made for rank {rank} of {world}")]
    OtherRank {
        /// The rank that it was made for.
        rank: usize,
        /// The size of the world that it was made for.
        world: usize,
    },

    /// The two ends of an edge ask for different numbers of queues.
    #[error(
        "rank {lower} asks for {lower_count} queues to rank {higher}, which asks for \
         {higher_count} queues back: both must ask for the same number"
    )]
    Mismatch {
        /// The lower rank of the edge.
        lower: usize,
        /// The higher rank.
        higher: usize,
        /// What the lower rank asks for.
        lower_count: u32,
        /// What the higher rank asks for.
        higher_count: u32,
    },
}
