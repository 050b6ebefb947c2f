// SPDX-License-Identifier: MIT
//! The protocol on many simulated ranks.

use std::time::Duration;

use proptest::prelude::*;

use super::error::{Cause, Reason, SetupError};
use super::simulation::{Random, Simulation, TIME, millis};
use super::wire::{Body, Message};

/// The most messages that a rank sends at a gate when nothing is wrong.
pub(super) fn log_bound(world: usize) -> u64 {
    u64::from(usize::BITS - (world - 1).leading_zeros()).max(1)
}

fn failed(phase: usize, rank: usize, cause: &str) -> SetupError {
    let reason = Reason::Failed(Cause::new(cause));
    SetupError::new(&format!("phase {phase}"), rank, reason)
}

pub(super) fn assert_all(sim: &Simulation, expected: &Result<(), SetupError>) {
    for (rank, r) in sim.ranks.iter().enumerate() {
        assert_eq!(r.result.as_ref(), Some(expected), "rank {rank}");
    }
}

/// Every survivor has ended by its deadline; all succeeded or name one of the
/// lost; and they are at most one gate apart.
pub(super) fn assert_survivors(sim: &Simulation, lost: &[usize], what: &str) {
    let survivors = || {
        (sim.ranks.iter().enumerate())
            .filter(|(rank, r)| !r.dead && !lost.contains(rank))
            .map(|(rank, r)| (rank, r, r.result.as_ref()))
    };
    for (rank, r, result) in survivors() {
        let result = result.unwrap_or_else(|| panic!("{what}: rank {rank} did not end"));
        assert!(r.ended_at <= r.begins + r.time, "{what}: rank {rank} late");
        if let Err(error) = result {
            let named = error.lost_rank();
            assert!(
                named.is_some_and(|named| lost.contains(&named)),
                "{what}: rank {rank}: {error}"
            );
        }
    }
    let passed = || survivors().map(|(_, r, _)| r.passed);
    let (least, most) = (passed().min().unwrap(), passed().max().unwrap());
    assert!(most - least <= 1, "{what}: {least} to {most} gates passed");
}

#[test]
fn all_pass_with_a_logarithmic_number_of_messages() {
    for world in [1, 2, 3, 4, 7, 8, 64, 100, 512, 600] {
        let mut sim = Simulation::of_phases(world as u64, world, 3);
        sim.run();
        assert_all(&sim, &Ok(()));
        for r in &sim.ranks {
            assert!(r.most_sent_at_a_gate <= log_bound(world), "world {world}");
        }
        let sent: u64 = sim.ranks.iter().map(|r| r.sent).sum();
        assert_eq!(
            sent,
            3 * 2 * (world as u64 - 1),
            "one report and one verdict each"
        );
    }
}

#[test]
fn a_failure_at_any_phase_of_any_rank_is_the_same_on_all() {
    const PHASES: usize = 4;
    for world in [1, 2, 4, 5, 8, 13] {
        for phase in 0..PHASES {
            for rank in 0..world {
                let seed = (world * 100 + phase * 20 + rank) as u64;
                let mut sim = Simulation::of_phases(seed, world, PHASES);
                sim.fails(rank, phase, "no room");
                sim.run();
                assert_all(&sim, &Err(failed(phase, rank, "no room")));
                assert!(sim.ranks.iter().all(|r| r.passed == phase));
            }
        }
    }
}

#[test]
fn a_failure_of_any_of_512_ranks_is_the_same_on_all() {
    for rank in [0, 1, 255, 256, 510, 511] {
        let mut sim = Simulation::of_phases(rank as u64, 512, 2);
        sim.fails(rank, 1, "no room");
        sim.run();
        assert_all(&sim, &Err(failed(1, rank, "no room")));
        for r in &sim.ranks {
            assert!(r.most_sent_at_a_gate <= log_bound(512) + 1);
        }
    }
}

#[test]
fn a_death_between_any_two_messages_is_named_by_all_survivors() {
    const PHASES: usize = 3;
    for world in [2, 3, 4, 8, 11] {
        for noticed in [true, false] {
            for rank in 0..world {
                for at in 0.. {
                    let mut sim = Simulation::of_phases((rank * 50) as u64 + at, world, PHASES);
                    sim.noticed = noticed;
                    sim.ranks[rank].dies_before_message = Some(at);
                    sim.run();
                    let what = format!("{rank} of {world} before message {at}, noticed {noticed}");
                    if !sim.ranks[rank].dead {
                        // It has no more messages to send.
                        assert_all(&sim, &Ok(()));
                        break;
                    }
                    assert_survivors(&sim, &[rank], &what);
                    // None waits for a deadline when the bootstrap sees the death.
                    let limit = if noticed { millis(1000) } else { TIME };
                    let slowest = sim.ranks.iter().map(|r| r.ended_at).max();
                    assert!(slowest <= Some(limit), "{what}: {slowest:?}");
                }
            }
        }
    }
}

#[test]
fn one_that_hangs_is_named_by_all_others() {
    for world in [2, 4, 8, 23, 512] {
        for rank in [0, 1, world / 2, world - 1] {
            for phase in 0..2 {
                let mut sim = Simulation::of_phases((world + rank) as u64, world, 2);
                sim.takes(rank, phase, Duration::from_secs(3600));
                sim.run();
                let expected = SetupError::new(&format!("phase {phase}"), rank, Reason::Silent);
                // It comes too late, and hears the same.
                assert_all(&sim, &Err(expected));
                // Every slot, each neighbour is told who is waited for.
                let log = log_bound(world);
                let most = sim.ranks.iter().map(|r| r.most_sent_at_a_gate).max();
                assert!(most <= Some(3 * (log + 2) * (log + 2)), "{world}: {most:?}");
            }
        }
    }
}

#[test]
fn one_that_hangs_is_named_though_the_others_begin_at_different_times() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let world = 2 + random.below(40) as usize;
        let hung = random.below(world as u64) as usize;
        let mut sim = Simulation::of_phases(seed, world, 2);
        for r in &mut sim.ranks {
            r.begins = millis(random.below(20_000));
        }
        sim.ranks[hung].hangs_at = Some(Duration::ZERO);
        sim.run();
        assert_survivors(&sim, &[hung], &format!("seed {seed}"));
        for (rank, r) in sim.ranks.iter().enumerate() {
            assert!(rank == hung || r.result.as_ref().is_some_and(Result::is_err));
        }
    }
}

#[test]
fn late_ranks_are_waited_for() {
    let mut sim = Simulation::of_phases(1, 64, 2);
    sim.takes(63, 0, Duration::from_secs(20));
    sim.takes(0, 1, Duration::from_secs(3));
    sim.ranks[7].begins = Duration::from_secs(15);
    sim.run();
    assert_all(&sim, &Ok(()));
}

#[test]
fn the_first_to_give_up_ends_it_for_all() {
    for early in [0, 5, 15] {
        let mut sim = Simulation::of_phases(2, 16, 1);
        sim.ranks[early].time = Duration::from_secs(10);
        sim.takes(12, 0, Duration::from_secs(20));
        sim.run();
        assert_all(&sim, &Err(SetupError::new("phase 0", 12, Reason::Silent)));
        for (rank, r) in sim.ranks.iter().enumerate() {
            // With rank 12 away, 13 is alone and 14 and 15 are among themselves.
            let with_early = match early {
                15 => (14..16).contains(&rank),
                _ => !(12..16).contains(&rank),
            };
            let limit = Duration::from_secs(if with_early { 10 } else { 30 });
            assert!(r.ended_at <= limit, "rank {rank} at {:?}", r.ended_at);
        }
    }
}

#[test]
fn a_rank_whose_step_outlasts_its_own_deadline_names_itself_to_all() {
    for slow in [0, 1, 6, 15] {
        let mut sim = Simulation::of_phases(slow as u64, 16, 2);
        sim.ranks[slow].time = Duration::from_secs(5);
        sim.takes(slow, 1, Duration::from_secs(8));
        sim.run();
        assert_all(&sim, &Err(SetupError::new("phase 1", slow, Reason::Silent)));
    }
}

#[test]
fn one_that_is_stopped_and_goes_on_hears_what_the_others_know() {
    for seed in 0..120 {
        let mut random = Random::new(seed);
        let world = 2 + random.below(30) as usize;
        let victim = random.below(world as u64) as usize;
        let mut sim = Simulation::of_phases(seed, world, 4);
        for rank in 0..world {
            let time = millis(random.below(30));
            sim.takes(rank, 2, time);
        }
        // In the midst of the phases.
        let from = Duration::from_micros(random.below(120_000));
        let brief = seed % 3 == 0;
        let length = Duration::from_secs(if brief { 15 } else { 40 });
        sim.ranks[victim].stopped = Some((from, from + length));
        sim.run();
        let results: Vec<_> = sim
            .ranks
            .iter()
            .map(|r| r.result.clone().unwrap())
            .collect();
        if brief || sim.ranks[victim].ended_at < from {
            assert_all(&sim, &Ok(()));
            continue;
        }
        for (rank, r) in sim.ranks.iter().enumerate() {
            let what = format!("seed {seed}: rank {rank}, {victim} was stopped: {results:?}");
            // Stopped with the last verdict, it may have been passed by others.
            let Err(error) = r.result.as_ref().unwrap() else {
                assert!(r.passed == 4, "{what}");
                continue;
            };
            assert_eq!(
                (error.rank, &error.reason),
                (victim, &Reason::Silent),
                "{what}"
            );
        }
        let passed = || sim.ranks.iter().map(|r| r.passed);
        assert!(passed().max().unwrap() - passed().min().unwrap() <= 1);
    }
}

#[test]
fn ranks_that_come_about_the_deadline_end_and_are_at_most_one_gate_apart() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let world = 1 + random.below(40) as usize;
        let mut sim = Simulation::of_phases(seed, world, 3);
        for rank in 0..world {
            sim.ranks[rank].begins = millis(random.below(2000));
            let phase = random.below(3) as usize;
            let time = millis(23_000 + random.below(8000));
            sim.takes(rank, phase, time);
        }
        sim.run();
        let passed = || sim.ranks.iter().map(|r| r.passed);
        assert!(passed().max().unwrap() - passed().min().unwrap() <= 1);
        for (rank, r) in sim.ranks.iter().enumerate() {
            let result = r.result.as_ref().unwrap();
            let silent = |error: &SetupError| error.reason == Reason::Silent;
            assert!(
                result.as_ref().err().is_none_or(silent),
                "{rank}: {result:?}"
            );
        }
    }
}

#[test]
fn a_death_at_any_moment_is_named_by_all_survivors() {
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let world = 2 + random.below(20) as usize;
        let victim = random.below(world as u64) as usize;
        let mut sim = Simulation::of_phases(seed, world, 4);
        sim.noticed = seed % 4 != 0;
        for rank in 0..world {
            for phase in 0..4 {
                let time = millis(random.below(30));
                sim.takes(rank, phase, time);
            }
        }
        sim.ranks[victim].dies_at = Some(millis(random.below(250)));
        sim.run();
        let what = format!("seed {seed}: rank {victim} of {world}");
        assert_survivors(&sim, &[victim], &what);
        // It came to so many gates: nobody passed one without it.
        let most = sim.ranks.iter().map(|r| r.passed).max().unwrap();
        assert!(most <= sim.ranks[victim].passed + 1, "{what}");
    }
}

#[test]
fn doubled_messages_change_nothing() {
    for seed in 0..20 {
        let mut sim = Simulation::of_phases(seed, 37, 4);
        sim.doubled = true;
        if seed % 2 == 1 {
            sim.fails(seed as usize, 2, "no");
        }
        sim.run();
        match seed % 2 {
            1 => assert_all(&sim, &Err(failed(2, seed as usize, "no"))),
            _ => assert_all(&sim, &Ok(())),
        }
    }
}

#[test]
fn what_an_earlier_use_of_the_tag_left_behind_is_ignored() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let world = 2 + random.below(30) as usize;
        let hung = random.below(world as u64) as usize;
        let mut sim = Simulation::of_phases(seed, world, 3);
        sim.takes(hung, 1, Duration::from_secs(3600));
        sim.run();
        assert!(
            sim.ranks
                .iter()
                .all(|r| r.result.as_ref().unwrap().is_err())
        );
        sim.again(1, 3);
        // Out of nowhere, and of the earlier use.
        for (step, body) in [
            (1, Body::Report(Err(failed(0, 0, "old")))),
            (3, Body::Verdict(Err(failed(0, 0, "old")))),
            (1, Body::Verdict(Ok(vec![]))),
            (9, Body::hurry(Duration::ZERO)),
        ] {
            let old = Message {
                turn: 0,
                step,
                phase: "phase 0".into(),
                body,
            };
            for rank in 0..world {
                let other = random.below(world as u64) as usize;
                sim.leftover(rank, other, &old);
            }
        }
        sim.run();
        assert_all(&sim, &Ok(()));
    }
}

#[test]
fn ranks_in_different_phases_are_told_so() {
    // Rank 5 has one phase less than the others and begins a second setup.
    let mut sim = Simulation::of_phases(3, 8, 2);
    let ahead = Message {
        turn: 1,
        step: 1,
        phase: "phase 0".into(),
        body: Body::Report(Ok(vec![])),
    };
    sim.leftover(4, 5, &ahead);
    sim.run();
    for r in &sim.ranks {
        let error = r.result.clone().unwrap().unwrap_err();
        assert_eq!(error.rank, 5);
        assert!(matches!(error.reason, Reason::OutOfStep(_)), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn several_failures_give_the_lowest_rank_of_the_first_phase(
        seed: u64,
        world in 1..300_usize,
        failures in proptest::collection::vec((any::<prop::sample::Index>(), 0..5_usize), 1..6),
    ) {
        let mut sim = Simulation::of_phases(seed, world, 5);
        for (rank, phase) in &failures {
            sim.fails(rank.index(world), *phase, "no room");
        }
        for rank in 0..world {
            let time = millis(sim.random.below(2000));
            sim.takes(rank, seed as usize % 5, time);
        }
        sim.run();
        let (phase, rank) = failures.iter().map(|(r, p)| (*p, r.index(world))).min().unwrap();
        assert_all(&sim, &Err(failed(phase, rank, "no room")));
    }

    #[test]
    fn several_deaths_among_failures_leave_nobody_behind(
        seed: u64,
        world in 2..200_usize,
        noticed: bool,
        deaths in proptest::collection::vec((any::<prop::sample::Index>(), 0..30_u64), 1..5),
        late in 0..3000_u64,
    ) {
        let mut sim = Simulation::of_phases(seed, world, 4);
        sim.noticed = noticed;
        for rank in 0..world {
            let time = millis(sim.random.below(late + 1));
            sim.takes(rank, 1, time);
            sim.ranks[rank].begins = millis(sim.random.below(late + 1));
        }
        for (rank, at) in &deaths {
            sim.ranks[rank.index(world)].dies_before_message = Some(*at);
        }
        sim.run();
        let dead: Vec<usize> = (0..world).filter(|r| sim.ranks[*r].dead).collect();
        if dead.is_empty() {
            assert_all(&sim, &Ok(()));
        } else if dead.len() < world {
            assert_survivors(&sim, &dead, "several");
        }
    }
}
