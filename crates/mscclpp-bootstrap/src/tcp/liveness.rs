// SPDX-License-Identifier: MIT
//! Who is silent: signs of life along the tree in which ranks joined.
//!
//! Every rank gives its neighbours in the tree a sign of life now and then, and asks
//! those for one from which nothing came for a while; whoever is asked answers. One
//! that stays silent for long is dead, as one whose connection breaks is, and the death is
//! told along the tree.
//!
//! When a rank is gone, its neighbours find each other: what was below it belongs
//! to the next rank above it, and without any, to the lowest rank that is left. So
//! news still reach everybody, connections stay O(log world) a rank, and one that
//! nobody can reach is somebody's neighbour and is noticed. All ranks come to the
//! same tree, because it follows from who is gone.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::node::{Node, Spread};
use super::peers;
use crate::collectives::tree;
use crate::failure::{FailureKind, PeerFailure};

/// How often in the time of a silence a rank looks at its neighbours.
const LOOKS: u32 = 10;
/// Deaths leave gaps in the tree that are closed as soon as this, however long a
/// silence may be.
const LONGEST_LOOK: Duration = Duration::from_millis(500);

/// When something last came from a peer.
#[derive(Debug)]
pub(crate) struct Heard(Mutex<Instant>);

impl Default for Heard {
    fn default() -> Self {
        Self(Mutex::new(Instant::now()))
    }
}

impl Heard {
    pub(crate) fn now(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn at(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins to look, now that the rank is connected to its neighbours.
pub(crate) fn start(node: &Arc<Node>) {
    let (node, silence) = (Arc::clone(node), node.silence);
    let look = Look {
        every: (silence / LOOKS).min(LONGEST_LOOK),
        silence,
        since: HashMap::new(),
    };
    node.runtime.clone().spawn(look.run(node));
}

struct Look {
    every: Duration,
    silence: Duration,
    /// Since when a sign of life is expected of each neighbour, at the earliest.
    since: HashMap<usize, Instant>,
}

impl Look {
    async fn run(mut self, node: Arc<Node>) {
        let mut last = Instant::now();
        while !node.leaving.load(Ordering::Acquire) && !node.is_excluded() {
            let now = Instant::now();
            if now - last > self.silence / 2 {
                // This process did not run, so it can not tell who was silent.
                tracing::debug!(pause = ?(now - last), "this rank did not run for some time");
                self.since.clear();
            }
            last = now;
            self.look(&node, now);
            tokio::time::sleep(self.every).await;
        }
    }

    fn look(&mut self, node: &Arc<Node>, now: Instant) {
        let gone = |rank| node.failures.of(rank).is_some();
        let neighbours = neighbours(node.rank, node.world, gone);
        self.since.retain(|rank, _| neighbours.contains(rank));
        for rank in neighbours {
            let peer = node.peer(rank);
            peers::ensure_link(node, rank, &peer);
            let since = *self.since.entry(rank).or_insert(now);
            let silent = now.saturating_duration_since(since.max(peer.heard.at()));
            if silent > self.silence {
                let cause = format!("rank {} heard nothing from it for {silent:.1?}", node.rank);
                let failure = PeerFailure::new(rank, FailureKind::Died, cause);
                node.gone(failure, Spread::Everybody);
            } else {
                // Unasked, too: one that sends much may take long to get its question through.
                peer.outgoing.beat(silent > self.every / 2);
            }
        }
    }
}

/// Whether a rank that nobody listens for any more is this one's to report. Those that it was connected
/// to since it joined know whether it has left; it is a neighbour of this one only since they died.
pub(super) fn inherited(node: &Node, rank: usize) -> bool {
    let died = |rank| (node.failures.of(rank)).is_some_and(|f| f.kind == FailureKind::Died);
    is_inherited(node.rank, rank, node.world, died)
}

fn is_inherited(own: usize, rank: usize, world: usize, died: impl Fn(usize) -> bool) -> bool {
    let known_to = neighbours(rank, world, |_| false);
    known_to.into_iter().all(&died) && neighbours(own, world, died).contains(&rank)
}

/// The neighbours of a rank that is not gone, in the tree of those that are not.
fn neighbours(rank: usize, world: usize, gone: impl Fn(usize) -> bool) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    below(rank, world, &gone, &mut found);
    let mut above = tree::parent(rank);
    while let Some(ancestor) = above {
        if !gone(ancestor) {
            found.insert(ancestor);
            return found;
        }
        above = tree::parent(ancestor);
    }
    // Only the first rank, or one all of whose ancestors are gone, comes here.
    match (0..rank).find(|other| !gone(*other)) {
        Some(lowest) => drop(found.insert(lowest)),
        None if rank > 0 => {
            below(0, world, &gone, &mut found);
            found.remove(&rank);
        }
        None => {}
    }
    found
}

/// Adds the ranks below `rank` that have no other below it and above them.
fn below(rank: usize, world: usize, gone: &impl Fn(usize) -> bool, found: &mut BTreeSet<usize>) {
    for child in tree::children(rank, world) {
        if gone(child) {
            below(child, world, gone, found);
        } else {
            found.insert(child);
        }
    }
}

#[cfg(test)]
mod tests {
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
}
