// SPDX-License-Identifier: MIT
//! What a service made owns what it stands on: everything may go in any order.

use std::any::Any;
use std::time::{Duration, Instant};

use mscclpp_port::{GpuNetIoService, Status};

use crate::ranks::{End, two};
use crate::support::{At, Call, eventually, start};
use crate::world::assert_empty;

const PIECES: usize = 5;

/// What a rank has of a queue, piece by piece: the service, the connection, memory, buffer, channel.
fn pieces(service: GpuNetIoService, peer: usize, end: End) -> [Option<Box<dyn Any>>; PIECES] {
    let connection = service.connect(peer, 0).unwrap();
    [
        Some(Box::new(service)),
        Some(Box::new(connection)),
        Some(Box::new((end.local, end.remote))),
        Some(Box::new(end.buffer)),
        Some(Box::new(end.channel)),
    ]
}

fn permutations(of: &[usize]) -> Vec<Vec<usize>> {
    let Some((first, rest)) = of.split_first() else {
        return vec![vec![]];
    };
    let mut all = Vec::new();
    for shorter in permutations(rest) {
        for place in 0..=shorter.len() {
            let mut order = shorter.clone();
            order.insert(place, *first);
            all.push(order);
        }
    }
    all
}

#[test]
fn gpunetio_service_what_it_made_may_go_in_any_order_while_the_peer_posts() {
    let orders = permutations(&[0, 1, 2, 3, 4]);
    assert_eq!(orders.len(), 120);
    for order in orders {
        let (nics, mut ranks) = two(1);
        let (posts, drops) = (ranks.pop().unwrap(), ranks.pop().unwrap());
        let handle = posts.1[0].channel.device_handle();
        let kernel = start(handle, Call::PutForever, At::both(0, 512), (2, u64::MAX));
        let (service, mut ends) = drops;
        let mut pieces = pieces(service, 1, ends.swap_remove(0));
        for index in &order {
            let begun = Instant::now();
            drop(pieces[*index].take());
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(5), "{order:?}: {took:?}");
        }
        for status in kernel.end() {
            assert!(
                matches!(status, Status::PeerDown | Status::QueueError),
                "{order:?}: {status:?}"
            );
        }
        let connection = posts.1[0].channel.connection();
        eventually("the host notices", || connection.status().is_some());
        drop(posts);
        nics.iter().for_each(assert_empty);
    }
}
