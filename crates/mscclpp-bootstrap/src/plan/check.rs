// SPDX-License-Identifier: MIT
//! Whether the plans of all ranks fit, and which edge does not: pure, round by
//! round. In each round every rank contributes a value, the sum of which all ranks
//! get.

use std::ops::Range;

use sha2::{Digest, Sha256};

use super::{PHASE, Plan, PlanFault};
use crate::gate::{Reason, SetupError};

/// Into how many parts a round divides the ranks that remain.
const PARTS: usize = crate::gate::MAX_WORDS;

/// Where the comparison is; the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    world: usize,
    stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// The lower rank of the edge is among these.
    Lower(Range<usize>),
    /// The lower rank is known, the higher one is among these.
    Higher(usize, Range<usize>),
    /// Only the counts are to be fetched.
    Counts(usize, usize),
}

/// What a round has shown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// All plans fit.
    Agreed,
    /// They do not, and another round is needed.
    Narrowed,
    /// They do not, for this reason.
    Mismatch(SetupError),
}

impl Check {
    pub(crate) fn new(world: usize) -> Self {
        Self {
            world,
            stage: Stage::Lower(lowers(world)),
        }
    }

    /// What this rank adds to the sum of the round.
    pub(crate) fn contribution(&self, plan: &Plan) -> Vec<u128> {
        let mut sums = vec![0_u128; PARTS];
        if let Stage::Counts(lower, higher) = self.stage {
            if plan.rank() == lower {
                sums[0] = plan.count(higher).into();
            } else if plan.rank() == higher {
                sums[1] = plan.count(lower).into();
            }
            return sums;
        }
        for (peer, count) in plan.peers() {
            let (lower, higher) = (plan.rank().min(peer), plan.rank().max(peer));
            let Some(part) = self.part(lower, higher) else {
                continue;
            };
            let hash = hash(lower, higher, count);
            sums[part] = if plan.rank() == lower {
                sums[part].wrapping_add(hash)
            } else {
                sums[part].wrapping_sub(hash)
            };
        }
        sums
    }

    /// Goes on with the sum over all ranks.
    pub(crate) fn next(&mut self, sums: &[u128]) -> Next {
        let first = sums.iter().position(|sum| *sum != 0);
        self.stage = match &self.stage {
            Stage::Counts(lower, higher) => {
                let count = |at: usize| {
                    let sum = sums.get(at).copied().unwrap_or_default();
                    u32::try_from(sum).unwrap_or(u32::MAX)
                };
                let fault = PlanFault::Mismatch {
                    lower: *lower,
                    higher: *higher,
                    lower_count: count(0),
                    higher_count: count(1),
                };
                return Next::Mismatch(SetupError::new(PHASE, *lower, Reason::Plan(fault)));
            }
            Stage::Lower(range) if *range == lowers(self.world) && first.is_none() => {
                return Next::Agreed;
            }
            // The sums of the parts add up to that of the whole, which is not
            // zero, so one of them is not; unless a rank says something else in
            // each round, who then decides what is found.
            Stage::Lower(range) => match part_of(range, first.unwrap_or_default()) {
                one if one.len() <= 1 => Stage::Higher(one.start, one.start + 1..self.world),
                more => Stage::Lower(more),
            },
            Stage::Higher(lower, range) => match part_of(range, first.unwrap_or_default()) {
                one if one.len() <= 1 => Stage::Counts(*lower, one.start),
                more => Stage::Higher(*lower, more),
            },
        };
        Next::Narrowed
    }

    /// The part that an edge belongs to in this round.
    fn part(&self, lower: usize, higher: usize) -> Option<usize> {
        let (range, at) = match &self.stage {
            Stage::Lower(range) => (range, lower),
            Stage::Higher(of, range) if *of == lower => (range, higher),
            Stage::Higher(..) | Stage::Counts(..) => return None,
        };
        (range.contains(&at)).then(|| (at - range.start) / width(range))
    }
}

/// Every rank but the last can be the lower one of an edge.
fn lowers(world: usize) -> Range<usize> {
    0..world.saturating_sub(1)
}

fn width(range: &Range<usize>) -> usize {
    range.len().div_ceil(PARTS).max(1)
}

/// The ranks of a part, or of the last that has any.
fn part_of(range: &Range<usize>, part: usize) -> Range<usize> {
    let last = range.len().saturating_sub(1) / width(range);
    let start = range.start + part.min(last) * width(range);
    start..(start + width(range)).min(range.end)
}

/// Stands for one edge with its count.
fn hash(lower: usize, higher: usize, count: u32) -> u128 {
    let mut hash = Sha256::new();
    hash.update(b"mscclpp plan edge");
    hash.update((lower as u64).to_le_bytes());
    hash.update((higher as u64).to_le_bytes());
    hash.update(count.to_le_bytes());
    let bytes: [u8; 32] = hash.finalize().into();
    let mut half = [0; 16];
    half.copy_from_slice(&bytes[..16]);
    u128::from_le_bytes(half)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs the comparison over the plans; also how many rounds it took.
    fn compare(plans: &[Plan]) -> (Option<PlanFault>, usize) {
        let mut check = Check::new(plans.len());
        for round in 1.. {
            let mut sums = vec![0_u128; PARTS];
            for plan in plans {
                for (sum, word) in sums.iter_mut().zip(check.contribution(plan)) {
                    *sum = sum.wrapping_add(word);
                }
            }
            match check.next(&sums) {
                Next::Agreed => return (None, round),
                Next::Narrowed => {}
                Next::Mismatch(SetupError {
                    reason: Reason::Plan(fault),
                    ..
                }) => return (Some(fault), round),
                Next::Mismatch(other) => panic!("{other}"),
            }
        }
        unreachable!()
    }

    fn plans(counts: &[Vec<i32>]) -> Vec<Plan> {
        (counts.iter().enumerate())
            .map(|(rank, row)| Plan::dense(rank, counts.len(), row).unwrap())
            .collect()
    }

    fn edges(world: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..world).flat_map(move |a| (a + 1..world).map(move |b| (a, b)))
    }

    /// The lowest edge whose ends differ, found the simple way.
    fn lowest_mismatch(counts: &[Vec<i32>]) -> Option<PlanFault> {
        let world = counts.len();
        edges(world)
            .find(|(a, b)| counts[*a][*b] != counts[*b][*a])
            .map(|(a, b)| PlanFault::Mismatch {
                lower: a,
                higher: b,
                lower_count: counts[a][b] as u32,
                higher_count: counts[b][a] as u32,
            })
    }

    proptest! {
        #[test]
        fn the_lowest_edge_that_does_not_fit_is_found(
            world in 1..80_usize,
            seed: u64,
            density in 0..=100_u64,
            changes in 0..4_usize,
        ) {
            let mut state = seed | 1;
            let mut random = |below: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % below
            };
            let mut counts = vec![vec![0; world]; world];
            for (a, b) in edges(world) {
                if random(100) < density {
                    counts[a][b] = 1 + random(64) as i32;
                    counts[b][a] = counts[a][b];
                }
            }
            for _ in 0..changes {
                let (a, b) = (random(world as u64) as usize, random(world as u64) as usize);
                if a != b {
                    counts[a][b] = random(65) as i32;
                }
            }
            let (fault, rounds) = compare(&plans(&counts));
            prop_assert_eq!(&fault, &lowest_mismatch(&counts));
            let most = if fault.is_none() { 1 } else { 8 };
            prop_assert!(rounds <= most, "{} rounds", rounds);
        }
    }

    /// Each byte says which sums of a round are not zero, as if a rank said something else in every
    /// round: the comparison ends soon, and names ranks that exist.
    #[test]
    fn fuzz_plan_rounds() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let Some((world, rounds)) = bytes.split_first() else {
                return;
            };
            let world = 2 + usize::from(*world);
            let mut check = Check::new(world);
            let mut rounds = rounds.iter();
            for _ in 0..10 {
                let said = rounds.next().copied().unwrap_or_default();
                let sums: Vec<u128> = (0..PARTS).map(|at| (said >> at & 1).into()).collect();
                let plan = Plan::sparse(world - 1, world, &[(0, 1)]).unwrap();
                assert_eq!(check.contribution(&plan).len(), PARTS);
                match check.next(&sums[..PARTS - usize::from(said) % 3]) {
                    Next::Agreed => return,
                    Next::Narrowed => {}
                    Next::Mismatch(SetupError {
                        rank,
                        reason: Reason::Plan(PlanFault::Mismatch { lower, higher, .. }),
                        ..
                    }) => {
                        assert!(rank == lower && lower < higher && higher < world);
                        return;
                    }
                    Next::Mismatch(other) => panic!("{other}"),
                }
            }
            panic!("it goes on");
        });
    }

    #[test]
    fn one_sided_edges_are_found_wherever_they_are() {
        for world in [2, 3, 9, 65] {
            for (a, b) in [(0, 1), (world - 1, 0), (world - 2, world - 1)] {
                let mut counts = vec![vec![0; world]; world];
                counts[a][b] = 64;
                let (fault, _) = compare(&plans(&counts));
                assert_eq!(fault, lowest_mismatch(&counts), "{world} {a} {b}");
            }
        }
    }

    #[test]
    fn swapped_counts_of_two_edges_do_not_cancel() {
        let counts = [vec![0, 1, 2], vec![2, 0, 0], vec![1, 0, 0]];
        let (fault, _) = compare(&plans(&counts));
        assert_eq!(fault, lowest_mismatch(&counts));
    }
}
