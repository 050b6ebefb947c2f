// SPDX-License-Identifier: MIT
//! Everything may be dropped in any order while kernels of the peer post.

use std::any::Any;
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_port::{Access, Error, Status};

use crate::local::Local;

use crate::support::{At, Call, eventually, start};
use crate::world::{End, assert_empty, communicator, gpu, ib, nics, pair_on, soon};

/// What one rank owns, piece by piece.
const PIECES: [&str; 7] = [
    "service",
    "channel",
    "semaphore",
    "connection",
    "memory",
    "buffer",
    "communicator",
];

fn pieces(end: End) -> [Option<Box<dyn Any>>; 7] {
    let semaphore = end.service.semaphore(end.semaphore).unwrap();
    // Memory that no service holds, so that dropping it ends its registration.
    let extra = (end.communicator)
        .register_memory_with(&end.buffer, 0..64, ib(Access::FULL))
        .unwrap();
    [
        Some(Box::new(end.service)),
        Some(Box::new(end.channel)),
        Some(Box::new(semaphore)),
        Some(Box::new(end.connection)),
        Some(Box::new((end.local, end.remote, extra))),
        Some(Box::new(end.buffer)),
        Some(Box::new(end.communicator)),
    ]
}

/// Drops one rank's things in an order while a kernel of the other posts to it.
fn drop_in_order(order: &[usize]) {
    let devices = nics();
    let [victim, peer] = pair_on(&devices, 1 << 14, gpu());
    let kernel = start(
        peer.handle(),
        Call::PutForever,
        At::both(0, 4096),
        (2, u64::MAX),
    );
    let mut pieces = pieces(victim);
    let names: Vec<_> = order.iter().map(|index| PIECES[*index]).collect();
    for index in order {
        let begun = Instant::now();
        drop(pieces[*index].take());
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(5), "{names:?}: {took:?}");
    }
    for status in kernel.end() {
        assert!(
            matches!(status, Status::PeerDown | Status::QueueError),
            "{names:?}: {status:?}"
        );
    }
    eventually("the host notices", || peer.connection.status().is_some());
    drop(peer);
    devices.iter().for_each(assert_empty);
}

/// A different order of the rest for each seed.
fn shuffle(order: &mut [usize], mut seed: u64) {
    for i in (1..order.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        order.swap(i, (seed >> 33) as usize % (i + 1));
    }
}

#[test]
fn gpunetio_any_two_things_may_go_first_while_the_peer_posts() {
    for first in 0..PIECES.len() {
        for second in (0..PIECES.len()).filter(|second| *second != first) {
            let rest = (0..PIECES.len()).filter(|i| *i != first && *i != second);
            let mut order: Vec<usize> = [first, second].into_iter().chain(rest).collect();
            shuffle(&mut order[2..], (first * 8 + second) as u64);
            drop_in_order(&order);
        }
    }
}

#[test]
fn gpunetio_either_end_may_go_while_they_come_up() {
    let devices = nics();
    for round in 0..40_u64 {
        let world = Local::world(2).0;
        let mut ranks: Vec<_> = (world.into_iter().zip(&devices))
            .map(|(bootstrap, device)| communicator(bootstrap, device))
            .collect();
        let pending: Vec<_> = (ranks.iter().zip([1, 0]))
            .map(|(rank, peer)| rank.connect(gpu(), peer, 0).unwrap())
            .collect();
        let mut made: Vec<_> = (pending.iter())
            .map(|pending| pending.get_by(soon()).unwrap())
            .collect();
        thread::sleep(Duration::from_micros(100 * round));
        let (gone, left) = (round as usize % 2, 1 - round as usize % 2);
        let begun = Instant::now();
        drop((pending, made.remove(gone), ranks.remove(gone)));
        assert!(begun.elapsed() < Duration::from_secs(5));
        let other = made.remove(0);
        eventually("the other end notices", || other.status().is_some());
        let error = other.status().unwrap();
        assert!(
            matches!(error, Error::PeerDown { rank, .. } if rank == Some(gone)),
            "{left}: {error}"
        );
        drop((other, ranks));
    }
    devices.iter().for_each(assert_empty);
}
