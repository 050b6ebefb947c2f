// SPDX-License-Identifier: MIT
//! Collectives.

use std::sync::Arc;
use std::thread;

use mscclpp_bootstrap::{Bootstrap, BootstrapError, ReduceOp, Tag, TcpOptions};

use crate::body::{run_joined, run_joined_with, secs, soon};

pub(crate) fn all_collectives_give_the_right_results(b: &dyn Bootstrap) {
    let (rank, world) = (b.rank(), b.world_size());
    // Slices of different lengths, empty ones among them.
    let slice = |r: usize| vec![r as u8; (r * 7) % 5 * 1000];
    let all = b.all_gather(&slice(rank)).unwrap();
    assert_eq!(all, (0..world).map(slice).collect::<Vec<_>>());
    for root in 0..world {
        let data = if rank == root {
            vec![root as u8; 33]
        } else {
            vec![]
        };
        assert_eq!(b.broadcast(&data, root).unwrap(), vec![root as u8; 33]);
    }
    let value = |r: usize| (r as u64 + 3) * 0x0101_0101_0101_0101;
    let values = || (0..world).map(value);
    for (op, expected) in [
        (ReduceOp::Min, values().min().unwrap()),
        (ReduceOp::Max, values().max().unwrap()),
        (ReduceOp::Sum, values().fold(0, u64::wrapping_add)),
        (ReduceOp::And, values().fold(u64::MAX, |a, b| a & b)),
        (ReduceOp::Or, values().fold(0, |a, b| a | b)),
    ] {
        assert_eq!(b.all_reduce(value(rank), op).unwrap(), expected, "{op:?}");
    }
    b.barrier().unwrap();
    let odd: Vec<usize> = (0..world).rev().filter(|r| r % 2 == 1).collect();
    let even: Vec<usize> = (0..world).filter(|r| r % 2 == 0).collect();
    for _ in 0..5 {
        b.group_barrier(if rank % 2 == 1 { &odd } else { &even })
            .unwrap();
    }
    b.group_barrier(&[rank]).unwrap();
    assert!(matches!(
        b.broadcast(&[], world),
        Err(BootstrapError::RankOutOfRange { .. })
    ));
    assert!(matches!(
        b.group_barrier(&[rank, rank]),
        Err(BootstrapError::BadGroup { .. })
    ));
    assert!(matches!(
        b.group_barrier(&[rank, world]),
        Err(BootstrapError::RankOutOfRange { .. })
    ));
    assert!(matches!(
        b.group_barrier(&[]),
        Err(BootstrapError::BadGroup { .. })
    ));
    b.barrier().unwrap();
}

#[test]
fn collectives_over_tcp_give_the_right_results() {
    for world in [1, 2, 3, 5, 8] {
        run_joined(world, |b| all_collectives_give_the_right_results(&b));
    }
}

#[test]
fn large_slices_do_not_deadlock() {
    const SLICE: usize = 64 << 20;
    run_joined(2, |b| {
        let mine = vec![b.rank() as u8 + 1; SLICE];
        let all = b.all_gather(&mine).unwrap();
        for (r, slice) in all.iter().enumerate() {
            assert_eq!(slice.len(), SLICE);
            assert!(slice.iter().all(|byte| *byte == r as u8 + 1));
        }
    });
}

#[test]
fn several_threads_may_be_in_collectives_at_once() {
    run_joined(3, |b| {
        let b = Arc::new(b);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let b = Arc::clone(&b);
                thread::spawn(move || {
                    for _ in 0..20 {
                        b.barrier().unwrap();
                    }
                    b.group_barrier(&[0, 1, 2]).unwrap();
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn ranks_in_different_collectives_are_told_so() {
    let texts = run_joined_with(2, TcpOptions::new().timeout(secs(5)), |b| {
        let error = match b.rank() {
            0 => b.barrier().unwrap_err(),
            _ => b.all_reduce(1, ReduceOp::Max).unwrap_err(),
        };
        error.to_string()
    });
    assert!(
        texts
            .iter()
            .any(|text| text.contains("barrier") && text.contains("all-reduce (Max)")),
        "{texts:?}"
    );
}

#[test]
fn a_failed_collective_leaves_nothing_behind_for_the_next() {
    let options = TcpOptions::new().timeout(secs(2));
    run_joined_with(2, options, |b| {
        // Rank 1 comes too late for the first barrier, which fails on both.
        let peer = 1 - b.rank();
        if b.rank() == 1 {
            b.recv(peer, Tag::user(0), soon()).unwrap();
        }
        let error = b.barrier().unwrap_err();
        assert!(error.is_timeout(), "{error}");
        if b.rank() == 0 {
            b.send(peer, Tag::user(0), &[], soon()).unwrap();
            b.recv(peer, Tag::user(0), soon()).unwrap();
        } else {
            b.send(peer, Tag::user(0), &[], soon()).unwrap();
        }
        assert_eq!(b.all_reduce(1, ReduceOp::Sum).unwrap(), 2);
    });
}

#[test]
fn connections_stay_few() {
    for (world, most) in [(16, 4), (33, 6)] {
        let held = run_joined(world, move |b| {
            b.barrier().unwrap();
            let held = b.connections();
            b.barrier().unwrap();
            held
        });
        assert_eq!(held.iter().sum::<usize>(), 2 * (world - 1), "a tree");
        assert!(*held.iter().max().unwrap() <= most, "{held:?}");
    }
    // An all-gather adds two a step.
    let held = run_joined(16, |b| {
        b.all_gather(&[1]).unwrap();
        b.barrier().unwrap();
        let held = b.connections();
        b.barrier().unwrap();
        held
    });
    assert!(*held.iter().max().unwrap() <= 3 * 4, "{held:?}");
}
