// SPDX-License-Identifier: MIT
//! Ranks of one process, to which the tests do what a network does.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::TcpBootstrap;
use super::node::Node;
use crate::failure::{FailureKind, PeerFailure};
use crate::{Bootstrap, TcpOptions};

pub(super) const SILENCE: Duration = Duration::from_secs(2);

/// A world on threads of this process, joined.
pub(super) fn world(size: usize) -> Vec<TcpBootstrap> {
    world_with(size, SILENCE)
}

pub(super) fn world_with(size: usize, silence: Duration) -> Vec<TcpBootstrap> {
    let options = || TcpOptions::new().silence(silence);
    let rank = |rank| TcpBootstrap::with_options(rank, size, options()).unwrap();
    let zero = rank(0);
    let id = zero
        .create_unique_id_at(IpAddr::V4(Ipv4Addr::LOCALHOST))
        .unwrap();
    let join = |bootstrap: TcpBootstrap| {
        bootstrap.initialize(&id, Duration::from_secs(20)).unwrap();
        bootstrap.barrier().unwrap();
        bootstrap
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..size)
            .map(|r| scope.spawn(move || join(rank(r))))
            .collect();
        let mut all = vec![join(zero)];
        all.extend(others.into_iter().map(|other| other.join().unwrap()));
        all
    })
}

pub(super) fn node(bootstrap: &TcpBootstrap) -> &Arc<Node> {
    &bootstrap.joined.get().unwrap().joined.0
}

pub(super) fn dead(bootstrap: &TcpBootstrap) -> Vec<usize> {
    let mut ranks: Vec<usize> = (node(bootstrap).failures.deaths().iter())
        .map(|failure| failure.rank)
        .collect();
    ranks.sort_unstable();
    ranks
}

pub(super) fn until(what: &str, most: Duration, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < most, "{what}: not within {most:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

pub(super) fn died(rank: usize, cause: &str) -> PeerFailure {
    PeerFailure::new(rank, FailureKind::Died, cause)
}
