// SPDX-License-Identifier: MIT
//! In which forms a rank says how many queues it wants.

use mscclpp_bootstrap::Plan;
use mscclpp_bootstrap::plan::PlanFault;

/// How many queues a rank asks for in a [setup](super::GpuNetIoService::setup): 0 to 64 to each peer,
/// none to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueCounts<'a> {
    /// One number for each rank of the world, in the order of ranks; 0 for the own.
    PerRank(&'a [i32]),
    /// Pairs of peer and number, in any order; none to other peers.
    Sparse(&'a [(usize, u32)]),
    /// The same number to every other rank.
    Uniform(i32),
}

impl QueueCounts<'_> {
    pub(super) fn plan(&self, rank: usize, world: usize) -> Result<Plan, PlanFault> {
        match *self {
            Self::PerRank(counts) => Plan::dense(rank, world, counts),
            Self::Sparse(counts) => Plan::sparse(rank, world, counts),
            Self::Uniform(count) => Plan::uniform(rank, world, count),
        }
    }
}

impl<'a> From<&'a [i32]> for QueueCounts<'a> {
    fn from(counts: &'a [i32]) -> Self {
        Self::PerRank(counts)
    }
}

impl<'a, const N: usize> From<&'a [i32; N]> for QueueCounts<'a> {
    fn from(counts: &'a [i32; N]) -> Self {
        Self::PerRank(counts)
    }
}

impl<'a> From<&'a Vec<i32>> for QueueCounts<'a> {
    fn from(counts: &'a Vec<i32>) -> Self {
        Self::PerRank(counts)
    }
}

impl<'a> From<&'a [(usize, u32)]> for QueueCounts<'a> {
    fn from(counts: &'a [(usize, u32)]) -> Self {
        Self::Sparse(counts)
    }
}

impl<'a, const N: usize> From<&'a [(usize, u32); N]> for QueueCounts<'a> {
    fn from(counts: &'a [(usize, u32); N]) -> Self {
        Self::Sparse(counts)
    }
}

impl<'a> From<&'a Vec<(usize, u32)>> for QueueCounts<'a> {
    fn from(counts: &'a Vec<(usize, u32)>) -> Self {
        Self::Sparse(counts)
    }
}
