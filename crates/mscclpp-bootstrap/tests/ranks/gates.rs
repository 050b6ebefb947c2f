// SPDX-License-Identifier: MIT
//! Gates and plans over real bootstraps.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::gate::{Cause, Reason};
use mscclpp_bootstrap::plan::PlanFault;
use mscclpp_bootstrap::{
    Bootstrap, BootstrapError, Deadline, FailureKind, Gate, Plan, Recording, SetupError, Tag,
};

use crate::body::{run, run_joined, secs, soon};
use crate::local::local_world;

const PHASES: [&str; 4] = ["capability", "allocate", "exchange", "rts"];

/// Passes all phases; `fault` is the outcome of a phase on this rank.
fn setup(
    b: &dyn Bootstrap,
    tag: u32,
    deadline: Deadline,
    fault: impl Fn(usize) -> Result<(), Cause>,
) -> Result<(), SetupError> {
    let mut gate = Gate::new(b, tag, deadline).unwrap();
    for (number, phase) in PHASES.iter().enumerate() {
        gate.pass(phase, fault(number))?;
    }
    gate.finish();
    Ok(())
}

fn fine(_: usize) -> Result<(), Cause> {
    Ok(())
}

#[test]
fn a_failure_at_each_phase_and_rank_is_the_same_on_all_and_the_next_setup_works() {
    for world in [1, 4, 8] {
        run_joined(world, move |b| {
            for (phase, name) in PHASES.into_iter().enumerate() {
                for rank in 0..world {
                    let fault = |at| match (at, b.rank()) {
                        here if here == (phase, rank) => Err(Cause::new("no room")),
                        _ => Ok(()),
                    };
                    let error = setup(&b, 3, soon(), fault).unwrap_err();
                    assert_eq!((&*error.phase, error.rank), (name, rank));
                    assert_eq!(error.reason, Reason::Failed(Cause::new("no room")));
                }
            }
            setup(&b, 3, soon(), fine).unwrap();
            b.barrier().unwrap();
        });
    }
}

#[test]
fn what_a_step_made_is_returned_and_every_later_call_fails_as_the_first() {
    run_joined(4, |b| {
        let mut gate = Gate::new(&b, 0, soon()).unwrap();
        assert_eq!(gate.pass("make", Ok(b.rank())).unwrap(), b.rank());
        let fault = if b.rank() == 1 {
            Err("x".parse::<u32>())
        } else {
            Ok(())
        };
        let step = || -> Result<(), Cause> {
            if let Err(parsed) = &fault {
                parsed.clone()?;
            }
            Ok(())
        };
        let error = gate.pass("parse", step()).unwrap_err();
        assert!(
            error.to_string().contains("rank 1 failed: invalid digit"),
            "{error}"
        );
        assert_eq!(gate.pass("later", Ok(())).unwrap_err(), error);
        b.barrier().unwrap();
    });
}

#[test]
fn a_users_bootstrap_gets_gates_and_names_who_does_not_come() {
    for world in [1, 2, 5, 9] {
        let make = crate::user_defined::in_memory(world);
        run(world, move |rank| {
            let b = make(rank);
            setup(&b, 0, soon(), fine).unwrap();
            let fault = |phase| match phase == 2 && rank == world - 1 {
                true => Err(Cause::new("no")),
                false => Ok(()),
            };
            let error = setup(&b, 1, soon(), fault).unwrap_err();
            assert_eq!((&*error.phase, error.rank), ("exchange", world - 1));
            if world > 1 && rank != world / 2 {
                let error = setup(&b, 2, Deadline::after(secs(4)), fine).unwrap_err();
                assert_eq!((error.rank, error.reason), (world / 2, Reason::Silent));
            }
        });
    }
}

#[test]
fn setups_of_two_tags_at_once_do_not_meet() {
    run_joined(4, |b| {
        let b = Arc::new(b);
        let setups: Vec<_> = [7, 8]
            .map(|tag| {
                let b = Arc::clone(&b);
                thread::spawn(move || {
                    for round in 0..20 {
                        let failing = tag == 8 && round % 3 == 1;
                        let fault = |phase| match failing && phase == 2 && b.rank() == 3 {
                            true => Err(Cause::new(format!("round {round}"))),
                            false => Ok(()),
                        };
                        let result = setup(&*b, tag, soon(), fault);
                        match failing {
                            false => result.unwrap(),
                            true => assert_eq!(
                                result.unwrap_err().reason,
                                Reason::Failed(Cause::new(format!("round {round}")))
                            ),
                        }
                    }
                })
            })
            .into();
        setups.into_iter().for_each(|s| s.join().unwrap());
        b.barrier().unwrap();
    });
}

#[test]
fn one_that_stops_answering_is_named_by_the_deadline() {
    for (world, hung) in [(4, 0), (4, 3), (8, 4), (8, 7)] {
        let over = Arc::new(Barrier::new(world));
        run_joined(world, move |b| {
            let deadline = Deadline::after(secs(6));
            let mut gate = Gate::new(&b, 1, deadline).unwrap();
            gate.pass("first", Ok(())).unwrap();
            if b.rank() == hung {
                // Alive, and in no gate.
                over.wait();
                let error = gate.pass("second", Ok(())).unwrap_err();
                assert_eq!((error.rank, error.reason), (hung, Reason::Silent));
            } else {
                let error = gate.pass("second", Ok(())).unwrap_err();
                let margin = Duration::from_millis(200);
                assert!(Instant::now() <= deadline.at() + margin, "too late");
                assert_eq!(
                    (error.rank, &error.reason),
                    (hung, &Reason::Silent),
                    "{error}"
                );
                over.wait();
            }
            drop(gate);
            b.barrier().unwrap();
            setup(&b, 1, soon(), fine).unwrap();
            b.barrier().unwrap();
        });
    }
}

#[test]
fn one_that_is_late_is_waited_for() {
    run_joined(4, |b| {
        let mut gate = Gate::new(&b, 0, soon()).unwrap();
        for (slow, phase) in PHASES.iter().enumerate() {
            if b.rank() == slow {
                thread::sleep(Duration::from_millis(100));
            }
            gate.pass(phase, Ok(())).unwrap();
        }
        gate.finish();
        b.barrier().unwrap();
    });
}

#[test]
fn one_that_leaves_the_job_is_named_at_once() {
    run_joined(8, |b| {
        if b.rank() == 6 {
            return;
        }
        let start = Instant::now();
        let error = setup(&b, 0, soon(), fine).unwrap_err();
        assert_eq!((error.rank, &error.reason), (6, &Reason::Left), "{error}");
        assert!(start.elapsed() < secs(3), "{:?}", start.elapsed());
        assert_eq!(
            b.failure_of(6).map(|f| f.kind),
            match b.rank() {
                4 | 7 => Some(FailureKind::Left),
                _ => b.failure_of(6).map(|f| f.kind),
            }
        );
        b.group_barrier(&[0, 1, 2, 3, 4, 5, 7]).unwrap();
    });
}

#[test]
fn one_that_drops_its_gate_early_fails_the_setup_of_all() {
    for quitter in [0, 1, 3] {
        run_joined(4, move |b| {
            let mut gate = Gate::new(&b, 0, soon()).unwrap();
            gate.pass("allocate", Ok(())).unwrap();
            if b.rank() == quitter {
                drop(gate);
            } else {
                let start = Instant::now();
                let error = gate.pass("exchange", Ok(())).unwrap_err();
                assert_eq!(error.rank, quitter);
                assert!(error.to_string().contains("abandoned"), "{error}");
                assert!(start.elapsed() < secs(3), "{:?}", start.elapsed());
                drop(gate);
            }
            setup(&b, 0, soon(), fine).unwrap();
            b.barrier().unwrap();
        });
    }
}

#[test]
fn a_tag_that_another_thread_has_is_refused_in_time() {
    run_joined(1, |b| {
        let first = Gate::new(&b, 5, soon()).unwrap();
        let brief = Deadline::after(Duration::from_millis(50));
        let second = Gate::new(&b, 5, brief).err().unwrap();
        assert!(second.is_timeout(), "{second}");
        drop(first);
        Gate::new(&b, 5, soon()).unwrap().finish();
    });
}

#[test]
fn a_job_that_was_not_joined_is_an_error_and_not_a_wait() {
    let b = mscclpp_bootstrap::TcpBootstrap::new(1, 2).unwrap();
    let start = Instant::now();
    let error = setup(&b, 0, soon(), fine).unwrap_err();
    assert!(
        error.to_string().contains("call initialize first"),
        "{error}"
    );
    assert!(start.elapsed() < secs(2));
}

#[test]
fn garbage_on_the_tag_of_a_gate_fails_it_and_names_who_sent_it() {
    run_joined(4, |b| {
        let gate_tag = Tag::from_value(4 << 56 | 9);
        if b.rank() == 3 {
            b.send(2, gate_tag, &[0xff; 40], soon()).unwrap();
        }
        let error = setup(&b, 9, soon(), fine).unwrap_err();
        assert_eq!(error.rank, 3, "{error}");
        assert!(matches!(error.reason, Reason::OutOfStep(_)), "{error}");
        b.barrier().unwrap();
    });
}

/// The counts of rank `rank`: a ring with unequal counts, and the last rank idle.
fn ring(rank: usize, world: usize) -> Vec<(usize, u32)> {
    let ring = world - 1;
    if rank == ring {
        return vec![];
    }
    let count = |lower: usize| 1 + (lower as u32 * 7) % 64;
    let (next, previous) = ((rank + 1) % ring, (rank + ring - 1) % ring);
    vec![(next, count(rank)), (previous, count(previous))]
}

#[test]
fn plans_over_tcp_are_agreed_on_or_refused_by_all_alike() {
    run_joined(8, |b| {
        let (rank, world) = (b.rank(), b.world_size());
        let agree = |local| {
            let mut gate = Gate::new(&b, 2, soon()).unwrap();
            let agreed = Plan::agree(local, &mut gate)?;
            gate.pass("allocate", Ok(()))?;
            gate.finish();
            Ok::<_, BootstrapError>(agreed)
        };
        let good = || Plan::sparse(rank, world, &ring(rank, world));
        let plan = agree(good()).unwrap();
        assert_eq!(
            plan.queues(),
            ring(rank, world).iter().map(|c| c.1 as usize).sum()
        );

        // One end of one edge differs.
        let mut counts = ring(rank, world);
        if rank == 4 {
            counts[0].1 -= 1;
        }
        let error = agree(Plan::sparse(rank, world, &counts)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the setup failed on all ranks in phase plan: rank 4 asks for 28 queues to rank 5, \
             which asks for 29 queues back: both must ask for the same number"
        );

        // An edge that one end does not know of.
        let mut counts = ring(rank, world);
        if rank == 7 {
            counts.push((2, 3));
        }
        let error = agree(Plan::sparse(rank, world, &counts)).unwrap_err();
        let BootstrapError::Setup(error) = error else {
            panic!("{error}")
        };
        let fault = PlanFault::Mismatch {
            lower: 2,
            higher: 7,
            lower_count: 0,
            higher_count: 3,
        };
        assert_eq!((error.rank, error.reason), (2, Reason::Plan(fault)));

        // Two ranks with plans that are not valid, one of them made for another.
        let local = match rank {
            5 => Plan::dense(5, 8, &[0, 0, 0, 0, 0, 0, 0, -2]),
            6 => Plan::sparse(0, 8, &[]),
            _ => good(),
        };
        let BootstrapError::Setup(error) = agree(local).unwrap_err() else {
            panic!()
        };
        let fault = PlanFault::Count { peer: 7, count: -2 };
        assert_eq!((error.rank, error.reason), (5, Reason::Plan(fault)));

        agree(good()).unwrap();
        b.barrier().unwrap();
    });
}

#[test]
fn comparing_plans_stays_within_16_kib_a_rank_at_512_ranks() {
    for mismatch in [false, true] {
        let worlds: Vec<_> = local_world(512)
            .into_iter()
            .map(|b| Arc::new(Recording::new(Arc::new(b))))
            .collect();
        let results = run(512, move |rank| {
            let b = &worlds[rank];
            // To the ranks at distance 1 and 2.
            let mut counts: Vec<_> = [1, 2, 510, 511].map(|d| ((rank + d) % 512, 3)).into();
            if mismatch && rank == 300 {
                counts[0].1 = 4;
            }
            let mut gate = Gate::new(&**b, 0, Deadline::after(secs(50))).unwrap();
            let agreed = Plan::agree(Plan::sparse(rank, 512, &counts), &mut gate);
            if agreed.is_ok() {
                gate.finish();
            }
            (agreed.map(drop), b.total(), b.by_peer().len())
        });
        for (rank, (agreed, traffic, peers)) in results.iter().enumerate() {
            match agreed {
                Ok(()) => assert!(!mismatch),
                Err(error) => assert!(error.to_string().contains("rank 300 asks for 4"), "{error}"),
            }
            assert!(*peers <= 9, "rank {rank} talks to {peers}");
            assert!(
                traffic.received_bytes <= 16 << 10,
                "rank {rank}: {traffic:?}"
            );
            let gates = if mismatch { 7 } else { 1 };
            assert!(
                traffic.sent_messages <= 9 * gates,
                "rank {rank}: {traffic:?}"
            );
        }
    }
}
