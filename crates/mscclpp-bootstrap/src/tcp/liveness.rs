// SPDX-License-Identifier: MIT
//! Who is silent: signs of life along the tree in which ranks joined.
//!
//! Every rank gives its neighbours in the tree a sign of life now and then, and asks
//! those for one from which nothing came for a while; whoever is asked answers. One
//! that stays silent for long is dead, as one whose connection breaks is, and the death is
//! told along the tree.
//!
//! A sign of life counts whichever way it comes. Behind a link that was cut for some
//! seconds TCP waits longer and longer before it sends again, so that what was on its way
//! comes long after the link is back. So one that is silent for half the time is asked
//! on new connections, too, until it answers on one ([`Look::call`]). A connection that stays
//! silent for [`LOST`] times as long is of no use all the same, and counts.
//!
//! Who hears nothing from a neighbour may be the one that is cut off. So it accuses only
//! with a *witness*: a rank, the accused or any other, whose machine answers when it is called,
//! whether or not the process there does. It has to be another machine than this rank's, unless
//! the accused is on the same. If nothing answers, this rank takes itself out, half a silence
//! later, and accuses nobody. A network that falls into two halves still makes each half take the
//! other for dead; and of two ranks alone each accuses the other, because neither can know.
//!
//! What a rank says of others is believed. All have proven to be members, and a member may write to
//! the memory of all; what it does not need is the lie that another is dead. Two rules keep
//! a member that is merely mistaken from doing harm: who is out has nothing to say any more,
//! but of itself (`connection`); and whoever is accused and lives is told, and is out
//! everywhere, so that no two ranks believe different things for long.
//!
//! When a rank is gone, its neighbours find each other: what was below it belongs
//! to the next rank above it, and without any, to the lowest rank that is left. So
//! news still reach everybody, connections stay O(log world) a rank, and one that
//! nobody can reach is somebody's neighbour and is noticed. All ranks come to the
//! same tree, because it follows from who is gone.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use super::node::{Node, Peer, Spread};
use super::peers;
use crate::Deadline;
use crate::collectives::tree;
use crate::failure::{FailureKind, PeerFailure};
use crate::link::{CallError, connect_async};

/// How often in the time of a silence a rank looks at its neighbours.
const LOOKS: u32 = 10;
/// Deaths leave gaps in the tree that are closed as soon as this, however long a
/// silence may be.
const LONGEST_LOOK: Duration = Duration::from_millis(500);
/// A connection that is silent for so many silences is lost, whatever comes on others.
const LOST: u32 = 3;
/// Possible witnesses that are asked at each look: enough to find one that answers before the time
/// is up, and few, because a whole job may be looking.
const WITNESSES: usize = 3;

/// When something last came from a peer.
#[derive(Debug, Default)]
pub(crate) struct Heard(Mutex<Times>);

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// On its connection to this rank.
    here: Option<Instant>,
    /// On any other.
    elsewhere: Option<Instant>,
    /// When its machine last answered a call.
    reached: Option<Instant>,
    /// When it was last called.
    called: Option<Instant>,
}

impl Heard {
    pub(crate) fn now(&self) {
        self.lock().here = Some(Instant::now());
    }

    fn lock(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins to look, now that the rank is connected to its neighbours.
pub(crate) fn start(node: &Arc<Node>) {
    let (node, silence) = (Arc::clone(node), node.deadlines.silence);
    let look = Look {
        every: (silence / LOOKS).min(LONGEST_LOOK),
        silence,
        since: HashMap::new(),
        next: node.rank,
    };
    node.runtime.clone().spawn(look.run(node));
}

struct Look {
    every: Duration,
    silence: Duration,
    /// Since when a sign of life is expected of each neighbour, at the earliest.
    since: HashMap<usize, Instant>,
    /// The rank that was last asked to be a witness.
    next: usize,
}

/// How long a neighbour has been silent.
#[derive(Clone, Copy)]
struct Silent {
    rank: usize,
    /// On its connection to this rank.
    here: Duration,
    /// On all of them.
    everywhere: Duration,
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
        let mut overdue = Vec::new();
        for rank in neighbours {
            let peer = node.peer(rank);
            peers::ensure_link(node, rank, &peer);
            let since = *self.since.entry(rank).or_insert(now);
            let Times {
                here, elsewhere, ..
            } = *peer.heard.lock();
            let silence = |heard: Option<Instant>| {
                now.saturating_duration_since(heard.map_or(since, |at| at.max(since)))
            };
            let silent = Silent {
                rank,
                here: silence(here),
                everywhere: silence(here.max(elsewhere)),
            };
            // Unasked, too: one that sends much may take long to get its question through.
            peer.outgoing.beat(silent.here > self.every / 2);
            if silent.here > self.silence / 2 {
                self.call(node, rank, true);
                if !self.has_witness(node, rank, now) {
                    self.ask_for_witnesses(node, rank);
                }
            }
            if silent.everywhere > self.silence || silent.here > self.silence * LOST {
                overdue.push(silent);
            }
        }
        for silent in overdue {
            self.accuse(node, silent, now);
        }
    }

    /// Says that a neighbour is dead, or that this rank is.
    fn accuse(&self, node: &Arc<Node>, silent: Silent, now: Instant) {
        let Silent {
            rank,
            here,
            everywhere,
        } = silent;
        let others = witnesses(node, rank).filter(|other| *other != rank).count();
        if others == 0 || self.has_witness(node, rank, now) {
            let only = if everywhere > self.silence {
                ""
            } else {
                " on their connection, although it answers on others"
            };
            let cause = format!(
                "rank {} heard nothing from it for {here:.1?}{only}; stopped, or slow? see \
                 MSCCLPP_SILENCE_TIMEOUT",
                node.rank
            );
            let failure = PeerFailure::new(rank, FailureKind::Died, cause);
            node.gone(failure, Spread::Everybody);
        } else if everywhere > self.silence + self.silence / 2 {
            node.excluded(format!(
                "it heard nothing from rank {rank} for {everywhere:.1?}, and can reach neither that \
                 rank's machine nor that of any of {others} others: it seems to be cut off itself"
            ));
        }
    }

    /// Whether this rank reaches one that is as far away as the accused.
    fn has_witness(&self, node: &Node, accused: usize, now: Instant) -> bool {
        witnesses(node, accused).any(|rank| {
            let Some(peer) = node.known_peer(rank) else {
                return false;
            };
            let Times {
                here,
                elsewhere,
                reached,
                ..
            } = *peer.heard.lock();
            let last = here.max(elsewhere).max(reached);
            last.is_some_and(|at| now.saturating_duration_since(at) < self.silence / 2)
        })
    }

    /// Calls the next few of those that could be witnesses.
    fn ask_for_witnesses(&mut self, node: &Arc<Node>, accused: usize) {
        let all: Vec<usize> = witnesses(node, accused).collect();
        let first = all.partition_point(|rank| *rank <= self.next);
        let (before, after) = all.split_at(first);
        for rank in after.iter().chain(before).take(WITNESSES) {
            self.next = *rank;
            self.call(node, *rank, false);
        }
    }

    /// Calls a rank on a connection of its own: whether its machine answers, and, if it is asked, the
    /// rank itself. Every now and then anew, since a call that gets lost is repeated late.
    fn call(&self, node: &Arc<Node>, rank: usize, ask: bool) {
        let peer = node.peer(rank);
        let mut times = peer.heard.lock();
        if times
            .called
            .is_some_and(|at| at.elapsed() < self.silence / 5)
        {
            return;
        }
        times.called = Some(Instant::now());
        drop(times);
        let (node, limit) = (Arc::clone(node), self.silence / 2);
        (node.runtime.clone()).spawn(async move {
            // Whoever takes longer is called again.
            let _ = tokio::time::timeout(limit, call(&node, rank, &peer, ask, limit)).await;
        });
    }
}

/// Those whose signs of life show that it is not this rank which is cut off from `accused`.
fn witnesses(node: &Node, accused: usize) -> impl Iterator<Item = usize> {
    let places = node.places.get().map_or(&[][..], Vec::as_slice);
    let host = |rank: usize| places.get(rank).map(|place| place.host);
    let own = host(node.rank);
    let any = host(accused) == own;
    (0..node.world).filter(move |rank| {
        *rank != node.rank && node.failures.of(*rank).is_none() && (any || host(*rank) != own)
    })
}

async fn call(node: &Arc<Node>, rank: usize, peer: &Peer, ask: bool, limit: Duration) {
    let place = node.places.get().and_then(|places| places.get(rank));
    let Some(call) = place.and_then(|place| peers::call(node, rank, place.address)) else {
        return;
    };
    match TcpStream::connect(call.address).await {
        Err(error) if error.kind() != io::ErrorKind::ConnectionRefused => return,
        Ok(_) | Err(_) => peer.heard.lock().reached = Some(Instant::now()),
    }
    if !ask {
        return;
    }
    // It proves itself, and says that it needs no second connection.
    match connect_async(&call, false, Deadline::after(limit)).await {
        Ok(_) | Err(CallError::Crossing) => peer.heard.lock().elsewhere = Some(Instant::now()),
        Err(CallError::Other(error)) => drop(peers::describe(node, rank, error)),
        Err(CallError::NobodyThere(_)) => {}
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
mod tests;
#[cfg(test)]
mod tree_tests;
