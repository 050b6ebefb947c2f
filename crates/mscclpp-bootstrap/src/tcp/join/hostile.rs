// SPDX-License-Identifier: MIT
//! Somebody who has the secret and does not keep to the protocol, where ranks meet.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::meeting_key;
use super::wire::{MAX_RECORD, Visit};
use crate::tcp::node::Place;
use crate::{Bootstrap, BootstrapError, Deadline, TcpBootstrap, UniqueId, link, message};

const WORLD: usize = 3;

/// Proves itself as a rank does.
fn proven(id: &UniqueId) -> TcpStream {
    let (link_id, key) = meeting_key(&id.secret().unwrap());
    let soon = Deadline::after(Duration::from_secs(10));
    link::connect(id.address(), link_id, &key, soon).unwrap()
}

fn framed(record: &[u8]) -> Vec<u8> {
    [&(record.len() as u32).to_le_bytes(), record].concat()
}

fn visit(visit: &Visit) -> Vec<u8> {
    framed(&message::encode(visit).unwrap())
}

fn check_in(rank: u32, world: u32) -> Vec<u8> {
    let place = Place {
        address: (Ipv4Addr::LOCALHOST, 9).into(),
        host: 7,
    };
    visit(&Visit::CheckIn { rank, world, place })
}

/// A job that somebody visits who says `words` after a good proof, before ranks 1 and 2 come; what
/// became of the ranks, and how long they took.
fn visited(words: Vec<u8>) -> (Vec<Result<(), BootstrapError>>, Duration) {
    let zero = TcpBootstrap::new(0, WORLD).unwrap();
    let id = zero
        .create_unique_id_at(Ipv4Addr::LOCALHOST.into())
        .unwrap();
    let (came, told) = mpsc::channel();
    let ranks: Vec<_> = (0..WORLD)
        .zip([Some(zero), None, None])
        .map(|(rank, zero)| {
            let (id, bad, came) = (id.clone(), words.clone(), came.clone());
            thread::spawn(move || {
                let rank = zero.unwrap_or_else(|| TcpBootstrap::new(rank, WORLD).unwrap());
                let mut visitor = None;
                if rank.rank() == 1 {
                    let mut stream = proven(&id);
                    stream.write_all(&bad).unwrap();
                    // It is read, or the connection closed, before the others come.
                    stream
                        .set_read_timeout(Some(Duration::from_millis(300)))
                        .unwrap();
                    let _ = stream.read(&mut [0; 64]);
                    visitor = Some(stream);
                }
                let start = Instant::now();
                let outcome = rank.initialize(&id, Duration::from_secs(20));
                if outcome.is_ok() {
                    rank.barrier().unwrap();
                }
                drop(visitor);
                came.send((rank.rank(), outcome, start.elapsed())).unwrap();
            })
        })
        .collect();
    let mut outcomes: Vec<_> = (0..WORLD)
        .map(|_| told.recv_timeout(Duration::from_secs(40)).unwrap())
        .collect();
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
    outcomes.sort_by_key(|(rank, ..)| *rank);
    let longest = outcomes.iter().map(|(.., took)| *took).max().unwrap();
    let outcomes = outcomes.into_iter().map(|(_, outcome, _)| outcome);
    (outcomes.collect(), longest)
}

#[test]
fn who_has_the_secret_and_talks_nonsense_holds_nobody_up() {
    let mut other_version = message::encode(&Visit::Ready).unwrap();
    other_version[0] += 1;
    for (what, words) in [
        ("nothing", Vec::new()),
        ("ready without checking in", visit(&Visit::Ready)),
        ("a sign of life alone", visit(&Visit::Here)),
        ("an excuse alone", visit(&Visit::GaveUp)),
        ("no record", framed(&[0xc1; 40])),
        ("an empty record", framed(&[])),
        ("another version", framed(&other_version)),
        (
            "a record that is too long",
            framed(&vec![0; MAX_RECORD + 1]),
        ),
        ("half a length", vec![1, 0]),
        ("half a record", check_in(2, 3)[..9].to_vec()),
    ] {
        let (outcomes, took) = visited(words);
        assert!(outcomes.iter().all(Result::is_ok), "{what}: {outcomes:?}");
        assert!(took < Duration::from_secs(5), "{what}: {took:?}");
    }
}

#[test]
fn who_checks_in_wrongly_is_named_to_all() {
    type Named = fn(&BootstrapError) -> bool;
    let cases: [(&str, Vec<u8>, Named); 5] = [
        ("rank 0 once more", check_in(0, 3), |error| {
            matches!(error, BootstrapError::DuplicateRank { rank: 0, .. })
        }),
        ("the number of a rank that comes", check_in(2, 3), |error| {
            matches!(error, BootstrapError::DuplicateRank { rank: 2, .. })
        }),
        (
            "a rank that does not exist",
            check_in(u32::MAX, 3),
            |error| matches!(error, BootstrapError::JoinFailed { by, .. } if *by == u32::MAX as usize),
        ),
        ("another world", check_in(2, u32::MAX), |error| {
            matches!(error, BootstrapError::WorldMismatch { rank: 2, .. })
        }),
        (
            "two ranks on one connection",
            [check_in(1, 3), check_in(2, 3)].concat(),
            |error| matches!(error, BootstrapError::JoinFailed { by: 1, .. }),
        ),
    ];
    for (what, words, named) in cases {
        let (outcomes, took) = visited(words);
        for outcome in outcomes {
            let error = outcome.expect_err(what);
            assert!(named(&error), "{what}: {error}");
        }
        assert!(took < Duration::from_secs(5), "{what}: {took:?}");
    }
}
