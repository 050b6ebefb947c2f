// SPDX-License-Identifier: MIT
//! What a service without room for one more semaphore leaves as it was.

use super::*;
use crate::endpoint::EndpointConfig;
use crate::testing::Local;

/// Does the same on two ranks at once.
fn both<T: Send>(
    ranks: &[Communicator; 2],
    act: impl Fn(&Communicator, usize) -> T + Sync,
) -> [T; 2] {
    let [a, b] = ranks;
    thread::scope(|scope| {
        let other = scope.spawn(|| act(b, 0));
        [act(a, 1), other.join().unwrap()]
    })
}

fn connect(ranks: &[Communicator; 2], tag: u32) -> [Connection; 2] {
    both(ranks, |rank, peer| {
        let endpoint = EndpointConfig::new(TransportKind::Ethernet);
        let pending = rank.connect(endpoint, peer, tag).unwrap();
        pending.get_by(soon()).unwrap()
    })
}

fn ranks() -> [Communicator; 2] {
    let world = Local::world(2).0.into_iter();
    let ranks: Vec<_> = world.map(|rank| Communicator::new(rank).unwrap()).collect();
    ranks.try_into().unwrap()
}

/// A service whose semaphores are all of one connection, between others.
fn full_service() -> ProxyService {
    let Bench {
        service,
        connections,
        ..
    } = Bench::new(1);
    let shared = device_semaphore(&connections[0]);
    for _ in 1..MAX_SEMAPHORES {
        let added = service.add_host2device_semaphore(Arc::clone(&shared));
        added.unwrap();
    }
    service
}

#[track_caller]
fn assert_full(result: Result<SemaphoreId>) {
    assert!(
        matches!(result, Err(Error::TooMany { limit: 1024, .. })),
        "{result:?}"
    );
}

#[test]
fn the_connection_of_a_refused_semaphore_ends_when_its_user_drops_it() {
    let service = full_service();
    let ranks = ranks();
    let [here, there] = connect(&ranks, 0);
    let pending = ranks[0].build_semaphore(&here, 1, 0).unwrap();
    let _theirs = ranks[1].build_semaphore(&there, 0, 0).unwrap();
    let semaphore = pending.get_by(soon()).unwrap();
    for _ in 0..2 {
        assert_full(service.add_semaphore(semaphore.clone()));
    }
    assert!(there.status().is_none());
    drop((here, pending, semaphore));
    eventually("the peer's goodbye", || there.status().is_some());
    let error = there.status().unwrap();
    assert!(
        matches!(error, Error::PeerDown { rank: Some(0), .. }),
        "{error}"
    );
}

/// The peer, which has room, then meets the call on another service.
#[test]
fn a_full_service_asks_the_peer_for_no_semaphore() {
    let full = full_service();
    let ranks = ranks();
    let connections = connect(&ranks, 0);
    let added = both(&ranks, |rank, peer| {
        let connection = &connections[1 - peer];
        if peer == 1 {
            assert_full(full.build_and_add_semaphore(rank, connection));
        }
        let service = ProxyService::new(4).unwrap();
        service.build_and_add_semaphore(rank, connection)
    });
    for added in added {
        assert_eq!(added.unwrap(), SemaphoreId(0));
    }
}
