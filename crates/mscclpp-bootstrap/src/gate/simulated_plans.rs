// SPDX-License-Identifier: MIT
//! Plans compared by many simulated ranks.

use proptest::prelude::*;

use super::error::{Reason, SetupError};
use super::simulated::{assert_all, assert_survivors, log_bound};
use super::simulation::{Random, Simulation};
use crate::plan::{Plan, PlanFault};

fn random_plans(world: usize, degree: usize, random: &mut Random) -> Vec<Vec<(usize, u32)>> {
    let mut plans = vec![Vec::new(); world];
    for _ in 0..world * degree / 2 {
        let a = random.below(world as u64) as usize;
        let b = random.below(world as u64) as usize;
        if a != b && !plans[a].iter().any(|(peer, _)| *peer == b) {
            let count = 1 + random.below(64) as u32;
            plans[a].push((b, count));
            plans[b].push((a, count));
        }
    }
    plans
}

fn valid(plans: &[Vec<(usize, u32)>]) -> Vec<Result<Plan, PlanFault>> {
    (plans.iter().enumerate())
        .map(|(rank, counts)| Plan::sparse(rank, plans.len(), counts))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_sparse_plans_of_512_ranks_are_agreed_on(
        seed: u64,
        degree in 1..=16_usize,
    ) {
        let mut random = Random::new(seed);
        let mut plans = random_plans(512, degree, &mut random);
        // Some ranks are idle.
        let idle = random.below(512) as usize;
        plans[idle].clear();
        plans.iter_mut().for_each(|counts| counts.retain(|(peer, _)| *peer != idle));
        let mut sim = Simulation::of_plans(seed, valid(&plans));
        sim.run();
        assert_all(&sim, &Ok(()));
        for r in &sim.ranks {
            prop_assert!(r.received_bytes <= 2 << 10, "{}", r.received_bytes);
            prop_assert!(r.sent <= log_bound(512));
        }
    }

    #[test]
    fn a_mismatch_among_512_ranks_is_named_by_all(
        seed: u64,
        degree in 1..=8_usize,
        one: prop::sample::Index,
        count in 0..=64_u32,
    ) {
        let mut random = Random::new(seed);
        let mut plans = random_plans(512, degree, &mut random);
        let rank = one.index(512);
        let Some((peer, right)) = plans[rank].first().copied() else { return Ok(()) };
        plans[rank][0].1 = count;
        let mut sim = Simulation::of_plans(seed, valid(&plans));
        sim.run();
        if count == right {
            assert_all(&sim, &Ok(()));
            return Ok(());
        }
        let (lower, higher) = (rank.min(peer), rank.max(peer));
        let (lower_count, higher_count) = if rank == lower { (count, right) } else { (right, count) };
        let fault = PlanFault::Mismatch { lower, higher, lower_count, higher_count };
        assert_all(&sim, &Err(SetupError::new("plan", lower, Reason::Plan(fault))));
        for r in &sim.ranks {
            prop_assert!(r.received_bytes <= 16 << 10, "{}", r.received_bytes);
        }
    }
}

#[test]
fn doubled_reports_count_once() {
    let counts = |rank| match rank {
        5 => vec![(11, 7)],
        11 => vec![(5, 9)],
        _ => vec![],
    };
    let plans = (0..16).map(|rank| Plan::sparse(rank, 16, &counts(rank)));
    let mut sim = Simulation::of_plans(1, plans.collect());
    sim.doubled = true;
    sim.run();
    let fault = PlanFault::Mismatch {
        lower: 5,
        higher: 11,
        lower_count: 7,
        higher_count: 9,
    };
    assert_all(&sim, &Err(SetupError::new("plan", 5, Reason::Plan(fault))));
}

#[test]
fn invalid_plans_give_that_of_the_lowest_rank() {
    let mut plans = valid(&vec![vec![]; 64]);
    plans[40] = Plan::sparse(40, 64, &[(3, 65)]);
    plans[23] = Plan::dense(23, 64, &[-1; 64]);
    plans[50] = Plan::sparse(50, 64, &[(1, 1)]);
    let mut sim = Simulation::of_plans(9, plans);
    sim.run();
    let fault = PlanFault::Count { peer: 0, count: -1 };
    assert_all(&sim, &Err(SetupError::new("plan", 23, Reason::Plan(fault))));
}

#[test]
fn a_death_while_plans_are_compared_is_named() {
    for (rank, at) in [
        (0, 0),
        (0, 3),
        (6, 0),
        (6, 1),
        (6, 2),
        (7, 0),
        (4, 1),
        (4, 4),
    ] {
        let plans =
            (0..8).map(|rank| Plan::sparse(rank, 8, if rank == 1 { &[(5, 1)] } else { &[] }));
        let mut sim = Simulation::of_plans(at, plans.collect());
        sim.ranks[rank].dies_before_message = Some(at);
        sim.run();
        assert!(sim.ranks[rank].dead);
        assert_survivors(&sim, &[rank], &format!("rank {rank} before message {at}"));
    }
}
