// SPDX-License-Identifier: MIT
//! Who is whose neighbour, whoever is gone.

use proptest::prelude::*;

use super::*;

proptest! {
    /// Whoever is gone: the others are one tree, and both ends of an edge know of it.
    #[test]
    fn those_that_are_left_are_one_tree(
        world in 1usize..200,
        dead in proptest::collection::btree_set(0usize..200, 0..150),
    ) {
        let alive: Vec<usize> = (0..world).filter(|rank| !dead.contains(rank)).collect();
        let of = |rank| neighbours(rank, world, |rank| dead.contains(&rank));
        let mut edges = 0;
        for rank in &alive {
            for other in of(*rank) {
                prop_assert!(alive.contains(&other) && of(other).contains(rank));
                edges += 1;
            }
        }
        prop_assert_eq!(edges, 2 * alive.len().saturating_sub(1));
        let mut reached: BTreeSet<usize> = alive.first().copied().into_iter().collect();
        let mut next: Vec<usize> = reached.iter().copied().collect();
        while let Some(rank) = next.pop() {
            next.extend(of(rank).into_iter().filter(|other| reached.insert(*other)));
        }
        prop_assert_eq!(reached.len(), alive.len());
    }

    #[test]
    fn one_death_adds_no_more_neighbours_than_the_dead_had(
        world in 2usize..2000, rank in 0usize..2000, dead in 0usize..2000,
    ) {
        let (rank, dead) = (rank % world, dead % world);
        prop_assume!(rank != dead);
        let before = neighbours(rank, world, |_| false);
        let after = neighbours(rank, world, |other| other == dead);
        let of_dead = neighbours(dead, world, |_| false);
        prop_assert!(after.len() < before.len() + of_dead.len());
    }
}

#[test]
fn a_rank_that_others_know_is_not_reported_by_who_never_met_it() {
    let reports = |own, rank, dead: &[usize]| is_inherited(own, rank, 8, |r| dead.contains(&r));
    // 7 lost its way up and calls 4, which has left as 0 and 5 know.
    assert!(!reports(7, 4, &[6]));
    // Nobody is left who was connected to 6 or to 7.
    assert!(reports(0, 6, &[4, 7]) && reports(4, 7, &[6]));
    // A neighbour from the beginning is not inherited.
    assert!(!reports(0, 4, &[5, 6]));
}

#[test]
fn nobody_gone_leaves_the_tree_in_which_ranks_joined() {
    let of = |rank| {
        neighbours(rank, 8, |_| false)
            .into_iter()
            .collect::<Vec<_>>()
    };
    assert_eq!(of(0), [1, 2, 4]);
    assert_eq!(of(6), [4, 7]);
    let of = |rank| {
        neighbours(rank, 8, |r| [0, 4].contains(&r))
            .into_iter()
            .collect::<Vec<_>>()
    };
    assert_eq!(of(1), [2, 5, 6]);
    assert_eq!(of(6), [1, 7]);
}
