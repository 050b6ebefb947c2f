// SPDX-License-Identifier: MIT
//! What goes wrong is told, to whom it concerns, by name; and nothing else is harmed.

mod common;

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use common::{LOCALHOST, Memory, connect, context, eventually, failure, pair, patience};
use mscclpp_bootstrap::{Deadline, JobKey};
use mscclpp_port::{
    Access, Buffer, Context, ContextConfig, Device, EndpointConfig, Error, ErrorCode, Hca,
    Operation, Refusal, RegisteredMemory, TransportKind,
};

/// The refusal that both ends of a connection got.
fn refusal(a_to_b: &mscclpp_port::Connection, b_to_a: &mscclpp_port::Connection) -> Refusal {
    let at_a = failure(a_to_b);
    let at_b = failure(b_to_a);
    let Error::Refused {
        rank: Some(1),
        refused,
    } = at_a
    else {
        panic!("rank 0 got: {at_a}");
    };
    assert!(
        matches!(at_b, Error::RefusedPeer { rank: Some(0), refused: theirs } if theirs == refused),
        "rank 1 got: {at_b}"
    );
    assert_eq!(at_a_code(a_to_b), ErrorCode::RemoteError);
    refused.reason
}

fn at_a_code(connection: &mscclpp_port::Connection) -> ErrorCode {
    connection.status().unwrap().code()
}

/// A third rank exchanges with rank 1 while the connection from rank 0 goes down, so nothing else
/// of rank 1 is harmed.
#[test]
fn a_write_to_dropped_memory_is_refused_and_harms_nobody_else() {
    let pair = pair(4096);
    let other = context(2);
    let (other_to_b, _kept) = connect(&other, &pair.b);
    let shared = Memory::new(&pair.b, 4096);
    let from_other = shared.seen_by(&other);
    let source = Memory::new(&other, 4096);

    let Memory { buffer, local } = pair.at_b;
    drop(local);
    pair.a_to_b
        .write(&pair.b_from_a, 0, &pair.at_a.local, 0, 64)
        .unwrap();
    assert_eq!(refusal(&pair.a_to_b, &pair.b_to_a), Refusal::UnknownKey);
    let text = pair.a_to_b.status().unwrap().to_string();
    assert!(
        text.contains("rank 1") && text.contains("write of 64 bytes"),
        "{text}"
    );
    let mut bytes = [0; 64];
    buffer.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 64]);
    // Sticky: everything later fails with the same.
    let again = pair.a_to_b.flush(patience()).unwrap_err();
    assert!(matches!(again, Error::Refused { .. }), "{again}");
    let token = pair.a_to_b.signal(&pair.b_from_a, 0).unwrap_err();
    assert!(matches!(token, Error::Refused { .. }), "{token}");

    source.buffer.store_u64(8, 5).unwrap();
    other_to_b
        .write(&from_other, 8, &source.local, 8, 8)
        .unwrap();
    other_to_b.flush(patience()).unwrap();
    assert_eq!(shared.buffer.load_u64(8).unwrap(), 5);
    // And a new connection between the two works.
    let (again, _kept) = connect(&pair.a, &pair.b);
    again.signal(&shared.seen_by(&pair.a), 16).unwrap();
    again.flush(patience()).unwrap();
}

#[test]
fn access_that_was_not_given_is_refused() {
    let (a, b) = (context(0), context(1));
    let read_only = Access {
        remote_write: false,
        remote_atomic: true,
        ..Access::FULL
    };
    let no_atomics = Access {
        remote_write: true,
        remote_atomic: false,
        ..Access::FULL
    };
    let source = Memory::new(&a, 64);
    for (access, operation) in [
        (read_only, Operation::Write),
        (no_atomics, Operation::Signal),
        (no_atomics, Operation::Accumulate),
    ] {
        let (a_to_b, b_to_a) = connect(&a, &b);
        let remote = Memory::with(&b, 64, access);
        let seen = remote.seen_by(&a);
        match operation {
            Operation::Write => a_to_b.write(&seen, 0, &source.local, 0, 8),
            Operation::Signal => a_to_b.signal(&seen, 0),
            _ => a_to_b.accumulate(&seen, 0, 2),
        }
        .unwrap();
        assert_eq!(
            refusal(&a_to_b, &b_to_a),
            Refusal::AccessDenied,
            "{operation}"
        );
        assert_eq!(remote.buffer.load_u64(0).unwrap(), 0);
    }
}

#[test]
fn what_cannot_be_posted_is_an_error_of_the_call_alone() {
    let pair = pair(4096);
    let stranger = context(2);
    let strangers = Memory::new(&stranger, 4096).seen_by(&pair.a);
    let (local, remote) = (&pair.at_a.local, &pair.b_from_a);
    let empty = RegisteredMemory::default();
    let write = |dst, dst_off, src, src_off, len| {
        pair.a_to_b
            .write(dst, dst_off, src, src_off, len)
            .unwrap_err()
    };
    for error in [
        write(remote, 4090, local, 0, 7),
        write(remote, 0, local, 4096, 1),
        write(remote, u64::MAX, local, 0, 2),
        write(remote, 0, local, u64::MAX, u64::MAX),
    ] {
        assert!(
            matches!(error, Error::OutOfBounds { size: 4096, .. }),
            "{error}"
        );
        assert_eq!(error.code(), ErrorCode::InvalidUsage);
    }
    for (error, text) in [
        (write(local, 0, local, 0, 1), "not of this peer"),
        (write(&strangers, 0, local, 0, 1), "memory of rank 2"),
        (write(remote, 0, remote, 0, 1), "peer's memory"),
        (write(&empty, 0, local, 0, 1), "placeholder"),
        (write(remote, 0, &empty, 0, 1), "placeholder"),
    ] {
        assert!(matches!(error, Error::InvalidUsage { .. }), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    pair.a_to_b.write(remote, 4096, local, 4096, 0).unwrap();
    pair.a_to_b.flush(patience()).unwrap();
    assert!(pair.a_to_b.status().is_none());
    assert!(empty.serialize().is_err() && empty.sub_range(0, 1).is_err());
    assert_eq!(
        (empty.size(), empty.is_empty(), empty.data()),
        (0, true, None)
    );
}

#[test]
fn registrations_check_their_range() {
    let a = context(0);
    let buffer = Buffer::new(Device::cpu(), 100).unwrap();
    let out = |result| matches!(result, Err(Error::OutOfBounds { .. }));
    assert!(out(a.register_memory(&buffer, 0..101)));
    assert!(out(a.register_memory(&buffer, 50..=100)));
    assert!(out(a.register_memory(&buffer, 0..=u64::MAX)));
    for empty in [0..0, 50..50, 100..100] {
        let error = a.register_memory(&buffer, empty).unwrap_err();
        assert!(matches!(error, Error::InvalidUsage { .. }), "{error}");
    }
    assert_eq!(a.register_memory(&buffer, 99..).unwrap().size(), 1);
}

#[test]
fn records_of_memory_that_is_gone_or_broken_are_refused() {
    let (a, b) = (context(0), context(1));
    let memory = Memory::new(&a, 64);
    let record = memory.local.serialize().unwrap();
    for cut in 0..record.len() {
        assert!(RegisteredMemory::deserialize(&b, &record[..cut]).is_err());
    }
    drop(memory);
    let error = RegisteredMemory::deserialize(&a, &record).unwrap_err();
    assert!(matches!(error, Error::Record { .. }), "{error}");
}

#[test]
fn incompatible_endpoints_are_refused_on_both_ends() {
    let (a, b) = (context(0), context(1));
    let config = EndpointConfig::new(TransportKind::Ethernet);
    let mut with_hcas = ContextConfig::new(LOCALHOST);
    with_hcas.hca_devices = vec![Hca::named("soft0"); 3];
    let other = Context::with_config(with_hcas).unwrap();
    let other = other.create_endpoint(EndpointConfig::gpu_initiated(TransportKind::IB2));
    let record = other.unwrap().serialize().unwrap();
    let local = a.create_endpoint(config).unwrap();
    let error = a.connect(local, &record, patience()).unwrap_err();
    assert!(
        matches!(
            error,
            Error::IncompatibleTransports {
                local: TransportKind::Ethernet,
                remote: TransportKind::IB2,
                rank: None,
                tag: None,
            }
        ),
        "{error}"
    );
    // An endpoint of another context.
    let endpoint = b.create_endpoint(config).unwrap();
    assert!(a.connect(endpoint, &record, patience()).is_err());
    assert!(
        a.create_endpoint(EndpointConfig::new(TransportKind::IB0))
            .is_err()
    );
    assert!(Context::new(Ipv4Addr::UNSPECIFIED.into()).is_err());
}

/// Another job's key: the proof fails, nobody gets through, and both ends say so in time.
#[test]
fn ranks_of_different_jobs_do_not_connect() {
    let mut config = ContextConfig::new(LOCALHOST);
    config.job_key = Some(JobKey::from_bytes([8; 32]));
    let (a, b) = (context(0), Context::with_config(config).unwrap());
    let config = EndpointConfig::new(TransportKind::Ethernet);
    let (at_a, at_b) = (
        a.create_endpoint(config).unwrap(),
        b.create_endpoint(config).unwrap(),
    );
    let (of_a, of_b) = (at_a.serialize().unwrap(), at_b.serialize().unwrap());
    let soon = Deadline::after(Duration::from_millis(300));
    let a_to_b = a.connect(at_a, &of_b, soon).unwrap();
    let b_to_a = b.connect(at_b, &of_a, soon).unwrap();
    for connection in [a_to_b, b_to_a] {
        let error = connection.wait_connected(patience()).unwrap_err();
        let expected = matches!(error, Error::Bootstrap { .. } | Error::Timeout { .. });
        assert!(expected, "{error}");
    }
}

#[test]
fn a_peer_that_closes_is_named_and_its_posts_arrive_first() {
    let pair = pair(1 << 20);
    let memory = pair.at_b.local.size();
    pair.a_to_b
        .write(&pair.b_from_a, 0, &pair.at_a.local, 0, memory)
        .unwrap();
    pair.a_to_b.signal(&pair.b_from_a, 8).unwrap();
    drop(pair.a_to_b);
    let error = failure(&pair.b_to_a);
    assert!(
        matches!(error, Error::PeerDown { rank: Some(0), .. }),
        "{error}"
    );
    assert!(
        error.to_string().contains("the peer closed the connection"),
        "{error}"
    );
    assert_eq!(pair.at_b.buffer.load_u64(8).unwrap(), 1);
    let after = pair.b_to_a.signal(&pair.a_from_b, 0).unwrap_err();
    assert!(matches!(after, Error::PeerDown { .. }), "{after}");
}

/// Each object of rank 1 goes while rank 0 posts to it without a pause.
#[test]
fn anything_may_be_dropped_while_the_peer_posts() {
    for victim in 0..4 {
        let pair = pair(4 << 20);
        let posting = AtomicBool::new(false);
        let (a_to_b, target, source) = (&pair.a_to_b, &pair.b_from_a, &pair.at_a.local);
        let outcome = thread::scope(|scope| {
            let poster = scope.spawn(|| {
                loop {
                    let posted = a_to_b
                        .write(target, 0, source, 0, 4 << 20)
                        .and_then(|()| a_to_b.signal(target, 0));
                    if let Err(error) = posted {
                        break error;
                    }
                    posting.store(true, SeqCst);
                }
            });
            eventually("posts", || posting.load(SeqCst));
            let (b, b_to_a, at_b) = (pair.b, pair.b_to_a, pair.at_b);
            let started = Instant::now();
            match victim {
                0 => {
                    drop(at_b.buffer);
                    drop(at_b.local);
                    drop(b_to_a);
                    drop(b);
                }
                1 => {
                    drop(b);
                    drop(b_to_a);
                    drop(at_b);
                }
                2 => {
                    drop(at_b.local);
                    // Alive: refuses.
                    failure(&b_to_a);
                }
                _ => {
                    drop(b_to_a);
                    drop(b);
                    drop(at_b);
                }
            }
            assert!(started.elapsed() < Duration::from_secs(10));
            poster.join().unwrap()
        });
        let expected = matches!(
            outcome,
            Error::Refused { rank: Some(1), .. } | Error::PeerDown { rank: Some(1), .. }
        );
        assert!(expected, "victim {victim}: {outcome}");
    }
}

#[test]
fn the_poster_may_drop_everything_it_posted_from() {
    for order in 0..6 {
        let pair = pair(4 << 20);
        pair.at_a.buffer.store_u64(8, 99).unwrap();
        for _ in 0..4 {
            pair.a_to_b
                .write(&pair.b_from_a, 8, &pair.at_a.local, 8, (4 << 20) - 8)
                .unwrap();
        }
        pair.a_to_b.signal(&pair.b_from_a, 0).unwrap();
        let mut parts: Vec<Option<Box<dyn Send>>> = vec![
            Some(Box::new(pair.a_to_b)),
            Some(Box::new((pair.at_a, pair.b_from_a))),
            Some(Box::new(pair.a)),
        ];
        let orders = [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ];
        for index in orders[order] {
            drop(parts[index].take());
        }
        // What was posted before the goodbye has been executed.
        failure(&pair.b_to_a);
        assert_eq!(pair.at_b.buffer.load_u64(0).unwrap(), 1, "order {order}");
        assert_eq!(pair.at_b.buffer.load_u64(8).unwrap(), 99);
    }
}

/// Whoever is dead is no reason to wait: the deadline is the connection's.
#[test]
fn a_connection_that_is_never_made_fails_in_time_and_drops_soon() {
    let (a, b) = (context(0), context(1));
    let config = EndpointConfig::new(TransportKind::Ethernet);
    let connections: Vec<_> = (0..4)
        .map(|_| {
            let theirs = b.create_endpoint(config).unwrap().serialize().unwrap();
            let endpoint = a.create_endpoint(config).unwrap();
            let soon = Deadline::after(Duration::from_millis(200));
            a.connect(endpoint, &theirs, soon).unwrap()
        })
        .collect();
    for connection in &connections {
        let error = connection.wait_connected(patience()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Timeout, "{error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
    }
    let theirs = b.create_endpoint(config).unwrap().serialize().unwrap();
    let endpoint = a.create_endpoint(config).unwrap();
    let waiting = a.connect(endpoint, &theirs, patience()).unwrap();
    let started = Instant::now();
    drop(waiting);
    assert!(started.elapsed() < Duration::from_secs(5));
}
