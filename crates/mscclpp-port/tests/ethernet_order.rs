// SPDX-License-Identifier: MIT
//! Order, signals, flushes and accumulates.

mod common;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use common::{Memory, connect, connect_with, context, eventually, pair, patience, pattern};
use mscclpp_bootstrap::Deadline;
use mscclpp_port::{EndpointConfig, Error, TransportKind};

/// Writes alternate between sizes that take different ways through the receiver, each followed by
/// its signal, into a ring of slots; whoever sees the n-th signal must see all of the n-th write.
#[test]
fn a_signal_is_seen_only_after_the_write_before_it() {
    const SLOT: u64 = 300 << 10;
    const SLOTS: u64 = 4;
    const ROUNDS: u64 = 2000;
    let pair = pair(SLOT * SLOTS + 16);
    let token = SLOT * SLOTS;
    let size = |round: u64| [8, 1000, 70_000, 290_000, 64, 17][(round % 6) as usize];
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                let slot = round % SLOTS;
                if round >= SLOTS {
                    // Rank 1 gives each slot back.
                    let free = round - SLOTS + 1;
                    eventually("a free slot", || {
                        pair.at_a.buffer.load_u64(token + 8).unwrap() >= free
                    });
                }
                let bytes = pattern(round, size(round));
                pair.at_a.buffer.write(slot * SLOT, &bytes).unwrap();
                let (from, len) = (slot * SLOT, size(round) as u64);
                pair.a_to_b
                    .write(&pair.b_from_a, from, &pair.at_a.local, from, len)
                    .unwrap();
                pair.a_to_b.signal(&pair.b_from_a, token).unwrap();
            }
        });
        for round in 0..ROUNDS {
            eventually("the signal", || {
                pair.at_b.buffer.load_u64(token).unwrap() > round
            });
            let slot = round % SLOTS;
            let there = pair.at_b.bytes(slot * SLOT, size(round));
            assert!(there == pattern(round, size(round)), "round {round}");
            pair.b_to_a.signal(&pair.a_from_b, token + 8).unwrap();
        }
    });
    assert_eq!(pair.at_b.buffer.load_u64(token).unwrap(), ROUNDS);
}

#[test]
fn after_a_flush_everything_before_it_is_at_the_peer() {
    let pair = pair(1 << 20);
    for round in 1..=200u64 {
        for slot in 0..10 {
            pair.at_a.buffer.store_u64(slot * 8, round).unwrap();
            pair.a_to_b
                .write(&pair.b_from_a, slot * 8, &pair.at_a.local, slot * 8, 8)
                .unwrap();
        }
        pair.a_to_b.signal(&pair.b_from_a, 1000).unwrap();
        pair.a_to_b.accumulate(&pair.b_from_a, 1008, 3).unwrap();
        pair.a_to_b.flush(patience()).unwrap();
        for slot in 0..10 {
            assert_eq!(pair.at_b.buffer.load_u64(slot * 8).unwrap(), round);
        }
        assert_eq!(pair.at_b.buffer.load_u64(1000).unwrap(), round);
        assert_eq!(pair.at_b.buffer.load_u64(1008).unwrap(), 3 * round);
    }
}

/// Another thread keeps the connection busy without a pause; flushes end all the same.
#[test]
fn a_flush_is_not_starved_by_the_posts_of_others() {
    let (a, b) = (context(0), context(1));
    let config = EndpointConfig {
        max_write_queue_size: Some(16),
        ..EndpointConfig::new(TransportKind::Ethernet)
    };
    let (a_to_b, _b_to_a) = connect_with(&a, &b, config);
    let (source, target) = (Memory::new(&a, 1 << 17), Memory::new(&b, 1 << 17));
    let remote = target.seen_by(&a);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                a_to_b.write(&remote, 8, &source.local, 8, 100_000).unwrap();
            }
        });
        let flushed = (0..50).try_for_each(|_| {
            a_to_b.signal(&remote, 0)?;
            a_to_b.flush(patience())
        });
        stop.store(true, SeqCst);
        flushed.unwrap();
    });
    assert_eq!(target.buffer.load_u64(0).unwrap(), 50);
}

#[test]
fn flushes_of_many_threads_each_end() {
    let pair = pair(4096);
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let pair = &pair;
            scope.spawn(move || {
                for round in 1..=100 {
                    pair.at_a.buffer.store_u64(thread * 8, round).unwrap();
                    pair.a_to_b
                        .write(&pair.b_from_a, thread * 8, &pair.at_a.local, thread * 8, 8)
                        .unwrap();
                    pair.a_to_b.flush(patience()).unwrap();
                    assert_eq!(pair.at_b.buffer.load_u64(thread * 8).unwrap(), round);
                }
            });
        }
    });
}

#[test]
fn accumulates_of_four_peers_and_the_owner_add_up() {
    const TIMES: u64 = 500;
    let addend = 3 * (1 << 32) + 7;
    let owner = context(0);
    let target = Memory::new(&owner, 64);
    let peers: Vec<_> = (1..=4)
        .map(|rank| {
            let peer = context(rank);
            let (_there, here) = connect(&owner, &peer);
            (target.seen_by(&peer), _there, here, peer)
        })
        .collect();
    thread::scope(|scope| {
        for (remote, _, connection, _) in &peers {
            scope.spawn(move || {
                for _ in 0..TIMES {
                    connection.accumulate(remote, 56, addend).unwrap();
                }
                connection.accumulate(remote, 56, -addend).unwrap();
                connection.flush(patience()).unwrap();
            });
        }
        for _ in 0..TIMES {
            target.buffer.fetch_add_u64(56, 1).unwrap();
        }
    });
    let expected = addend as u64 * (TIMES - 1) * 4 + TIMES;
    assert_eq!(target.buffer.load_u64(56).unwrap(), expected);
}

#[test]
fn accumulate_wraps_and_refuses_bad_targets_by_name() {
    let (a, b) = (context(0), context(1));
    let (a_to_b, _b_to_a) = connect(&a, &b);
    let target = Memory::new(&b, 16);
    target.buffer.store_u64(0, u64::MAX).unwrap();
    let remote = target.seen_by(&a);
    a_to_b.accumulate(&remote, 0, 1).unwrap();
    a_to_b.flush(patience()).unwrap();
    assert_eq!(target.buffer.load_u64(0).unwrap(), 0);
    let small = Memory::new(&b, 7).seen_by(&a);
    for (memory, offset, text) in [
        (&small, 0, "out of bounds"),
        (&remote, 16, "out of bounds"),
        (&remote, 12, "out of bounds"),
        (&remote, u64::MAX - 3, "out of bounds"),
        (&remote, 1, "aligned"),
    ] {
        let error = a_to_b.accumulate(memory, offset, 1).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    // A word that is aligned in the registration and not in memory.
    let shifted = b.register_memory(&target.buffer, 4..16).unwrap();
    let record = shifted.serialize().unwrap();
    let shifted = mscclpp_port::RegisteredMemory::deserialize(&a, &record).unwrap();
    let error = a_to_b.signal(&shifted, 0).unwrap_err();
    assert!(matches!(error, Error::Misaligned { .. }), "{error}");
    a_to_b.signal(&shifted, 4).unwrap();
    a_to_b.flush(patience()).unwrap();
    assert_eq!(target.buffer.load_u64(8).unwrap(), 1);
}

/// The smallest queue there is: posts wait for room instead of failing, and all are executed.
#[test]
fn a_full_queue_holds_its_posters() {
    let (a, b) = (context(0), context(1));
    let config = EndpointConfig {
        max_write_queue_size: Some(3),
        ..EndpointConfig::new(TransportKind::Ethernet)
    };
    let (a_to_b, _b_to_a) = connect_with(&a, &b, config);
    assert_eq!(a_to_b.max_write_queue_size(), Some(3));
    let (source, target) = (Memory::new(&a, 8 << 20), Memory::new(&b, 8 << 20));
    let remote = target.seen_by(&a);
    for _ in 0..30 {
        a_to_b
            .write(&remote, 8, &source.local, 8, (8 << 20) - 8)
            .unwrap();
        a_to_b.signal(&remote, 0).unwrap();
    }
    a_to_b.flush(patience()).unwrap();
    assert_eq!(target.buffer.load_u64(0).unwrap(), 30);
}

/// The peer's end is made late: posts wait for it, and a flush can say that it has not come.
#[test]
fn posts_wait_for_the_connection() {
    let (a, b) = (context(0), context(1));
    let config = EndpointConfig::new(TransportKind::Ethernet);
    let (at_a, at_b) = (
        a.create_endpoint(config).unwrap(),
        b.create_endpoint(config).unwrap(),
    );
    let (of_a, of_b) = (at_a.serialize().unwrap(), at_b.serialize().unwrap());
    let target = Memory::new(&b, 64);
    let a_to_b = a.connect(at_a, &of_b, patience()).unwrap();
    a_to_b.signal(&target.seen_by(&a), 0).unwrap();
    let soon = Deadline::after(Duration::from_millis(50));
    let error = a_to_b.flush(soon).unwrap_err();
    assert!(
        matches!(error, Error::Timeout { rank: Some(1), .. }),
        "{error}"
    );
    assert_eq!(target.buffer.load_u64(0).unwrap(), 0);
    let b_to_a = b.connect(at_b, &of_a, patience()).unwrap();
    b_to_a.wait_connected(patience()).unwrap();
    a_to_b.flush(patience()).unwrap();
    assert_eq!(target.buffer.load_u64(0).unwrap(), 1);
}
