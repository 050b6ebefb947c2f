// SPDX-License-Identifier: MIT
//! Everything may be dropped in any order while the peer still posts.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_port::{Error, Status};

use crate::pair::{End, pair_of, soon, tcp_world};
use crate::support::{Call, call};

/// What one rank owns, piece by piece.
const PIECES: [&str; 8] = [
    "service",
    "channel",
    "semaphore",
    "connection",
    "memory",
    "buffer",
    "communicator",
    "bootstrap",
];

fn pieces(end: End) -> [Option<Box<dyn Any>>; 8] {
    let semaphore = end.service.semaphore(end.semaphore).unwrap();
    let bootstrap = end.communicator.bootstrap().clone();
    // Memory that the service's table does not hold, so that dropping it ends its registration.
    [
        Some(Box::new(end.service)),
        Some(Box::new(end.channel)),
        Some(Box::new(semaphore)),
        Some(Box::new(end.connection)),
        Some(Box::new((end.local, end.remote))),
        Some(Box::new(end.buffer)),
        Some(Box::new(end.communicator)),
        Some(Box::new(bootstrap)),
    ]
}

/// Drops one rank's things in an order while the other rank's host and kernel post to it.
fn drop_in_order(order: &[usize]) {
    let [victim, peer] = pair_of(tcp_world(), 1 << 16);
    // A connection that never came about would be tried until the deadline of connecting.
    peer.connection.wait_connected(soon()).unwrap();
    let kernel = call(peer.handle(), Call::PutForever, (0, 4096), 1);
    let (posts, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let names: Vec<_> = order.iter().map(|index| PIECES[*index]).collect();
    let (slowest, error) = thread::scope(|scope| {
        let posting = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let (remote, local) = (&peer.remote, &peer.local);
                let posted = peer
                    .connection
                    .write(remote, 8192, local, 8192, 4096)
                    .and_then(|()| peer.connection.accumulate(remote, 32768, 1));
                if let Err(error) = posted {
                    return Some(error);
                }
                posts.fetch_add(1, Ordering::Relaxed);
            }
            None
        });
        while posts.load(Ordering::Relaxed) < 3 && !posting.is_finished() {
            thread::yield_now();
        }
        let mut pieces = pieces(victim);
        let mut slowest = Duration::ZERO;
        for index in order {
            let begin = Instant::now();
            drop(pieces[*index].take());
            slowest = slowest.max(begin.elapsed());
        }
        let until = Instant::now() + Duration::from_secs(10);
        while !posting.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        (slowest, posting.join().unwrap())
    });
    // All is gone, so the peer was told: refused, or gone.
    let error = error.unwrap_or_else(|| panic!("{names:?}: the peer noticed nothing"));
    assert!(
        matches!(
            error,
            Error::PeerDown { rank: Some(0), .. } | Error::Refused { rank: Some(0), .. }
        ),
        "{names:?}: {error}"
    );
    assert!(slowest < Duration::from_secs(5), "{names:?}: {slowest:?}");
    let status = kernel.end();
    assert!(
        status == [Status::PeerDown]
            || status == [Status::QueueError]
            || status == [Status::Aborted],
        "{names:?}: {status:?}"
    );
}

/// A different order of the rest for each seed.
fn shuffle(order: &mut [usize], mut seed: u64) {
    for i in (1..order.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        order.swap(i, (seed >> 33) as usize % (i + 1));
    }
}

/// Orders in which each two things go first, with the rest shuffled.
fn orders(seed: u64) -> impl Iterator<Item = Vec<usize>> {
    let all = 0..PIECES.len();
    let pairs = all.clone().flat_map(move |first| {
        let others = (0..PIECES.len()).filter(move |second| *second != first);
        others.map(move |second| (first, second))
    });
    pairs.map(move |(first, second)| {
        let rest = all.clone().filter(|i| *i != first && *i != second);
        let mut order: Vec<usize> = [first, second].into_iter().chain(rest).collect();
        shuffle(&mut order[2..], seed + (first * 8 + second) as u64);
        order
    })
}

#[test]
fn any_two_things_may_go_first_while_the_peer_posts() {
    (0..3)
        .flat_map(|round| orders(round * 1000))
        .for_each(|order| drop_in_order(&order));
}

#[test]
#[ignore = "takes some minutes"]
fn any_order_is_safe_while_the_peer_posts() {
    fn all(order: &mut Vec<usize>, from: usize) {
        if from == order.len() {
            return drop_in_order(order);
        }
        for i in from..order.len() {
            order.swap(from, i);
            all(order, from + 1);
            order.swap(from, i);
        }
    }
    all(&mut (0..PIECES.len()).collect(), 0);
}
