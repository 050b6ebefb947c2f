// SPDX-License-Identifier: MIT
//! Messages between two ranks.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{Bootstrap, BootstrapError, Deadline, Tag};

use crate::body::{run_joined, secs, soon};

#[test]
fn large_messages_that_all_send_first_arrive() {
    const BYTES: usize = 64 << 20;
    run_joined(3, |b| {
        let mine = vec![b.rank() as u8; BYTES];
        for peer in 0..3 {
            b.send(peer, Tag::user(0), &mine, soon()).unwrap();
        }
        for peer in 0..3 {
            let theirs = b.recv(peer, Tag::user(0), soon()).unwrap();
            assert_eq!(theirs.len(), BYTES);
            assert!(theirs.iter().all(|byte| *byte == peer as u8));
        }
    });
}

#[test]
fn two_ranks_share_one_connection_whoever_begins() {
    for _ in 0..20 {
        let held = run_joined(4, |b| {
            // Ranks 1 and 2, 1 and 3 are no neighbours; both begin at once.
            let peers: &[usize] = match b.rank() {
                1 => &[2, 3],
                2 | 3 => &[1],
                _ => &[],
            };
            for tag in 0..8 {
                for peer in peers {
                    b.send(*peer, Tag::user(tag), &[tag as u8], soon()).unwrap();
                }
            }
            for tag in (0..8).rev() {
                for peer in peers {
                    let got = b.recv(*peer, Tag::user(tag), soon()).unwrap();
                    assert_eq!(got, [tag as u8]);
                }
            }
            b.barrier().unwrap();
            let held = b.connections();
            b.barrier().unwrap();
            held
        });
        // The tree is 0-1, 0-2, 2-3.
        assert_eq!(held, [2, 3, 3, 2]);
    }
}

#[test]
fn messages_of_a_tag_keep_their_order_among_many_threads() {
    const MESSAGES: u32 = 500;
    run_joined(2, |b| {
        let b = Arc::new(b);
        let peer = 1 - b.rank();
        let mut threads = Vec::new();
        for tag in 0..6 {
            let sender = Arc::clone(&b);
            threads.push(thread::spawn(move || {
                for i in 0..MESSAGES {
                    // Some longer than a piece, some empty.
                    let length = if i % 100 == 7 {
                        3 << 19
                    } else {
                        (i % 5) as usize
                    };
                    let mut data = i.to_le_bytes().to_vec();
                    data.resize(4 + length, tag as u8);
                    sender.send(peer, Tag::user(tag), &data, soon()).unwrap();
                }
            }));
            let receiver = Arc::clone(&b);
            threads.push(thread::spawn(move || {
                for i in 0..MESSAGES {
                    let data = receiver.recv(peer, Tag::user(tag), soon()).unwrap();
                    assert_eq!(data[..4], i.to_le_bytes());
                    assert!(data[4..].iter().all(|byte| *byte == tag as u8));
                }
            }));
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
        b.barrier().unwrap();
    });
}

#[test]
fn a_receive_ends_at_its_deadline_and_names_the_rank() {
    run_joined(2, |b| {
        let peer = 1 - b.rank();
        let start = Instant::now();
        let deadline = Deadline::after(Duration::from_millis(300));
        let error = b.recv(peer, Tag::user(9), deadline).unwrap_err();
        let took = start.elapsed();
        assert!(
            took >= Duration::from_millis(300) && took < secs(1),
            "{took:?}"
        );
        let BootstrapError::Timeout { waiting_for, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(waiting_for, &[peer]);
        assert!(error.to_string().contains("tag 9"), "{error}");
        b.barrier().unwrap();
    });
}

#[test]
fn ranks_that_do_not_exist_are_refused() {
    run_joined(2, |b| {
        assert!(matches!(
            b.send(2, Tag::user(0), &[], soon()),
            Err(BootstrapError::RankOutOfRange { rank: 2, .. })
        ));
        assert!(matches!(
            b.recv(usize::MAX, Tag::user(0), soon()),
            Err(BootstrapError::RankOutOfRange { .. })
        ));
    });
}

#[test]
fn messages_sent_before_the_goodbye_can_still_be_received() {
    run_joined(2, |b| {
        if b.rank() == 0 {
            let large = vec![7; 8 << 20];
            b.send(1, Tag::user(0), &large, soon()).unwrap();
            b.send(1, Tag::user(1), b"last", soon()).unwrap();
            return;
        }
        // Rank 0 has left when this is read.
        thread::sleep(Duration::from_millis(300));
        assert_eq!(b.recv(0, Tag::user(0), soon()).unwrap().len(), 8 << 20);
        assert_eq!(b.recv(0, Tag::user(1), soon()).unwrap(), b"last");
        let start = Instant::now();
        let error = b.recv(0, Tag::user(2), soon()).unwrap_err();
        assert!(
            matches!(error, BootstrapError::PeerLeft { rank: 0, .. }),
            "{error}"
        );
        let error = b.send(0, Tag::user(2), &[], soon()).unwrap_err();
        assert!(
            matches!(error, BootstrapError::PeerLeft { rank: 0, .. }),
            "{error}"
        );
        assert!(start.elapsed() < secs(1));
        assert!(b.known_failure().is_none(), "leaving is no failure");
    });
}

#[test]
fn messages_to_oneself_arrive() {
    run_joined(2, |b| {
        let me = b.rank();
        b.send(me, Tag::user(3), &[1, 2], soon()).unwrap();
        b.send(me, Tag::user(3), &[], soon()).unwrap();
        assert_eq!(b.recv(me, Tag::user(3), soon()).unwrap(), [1, 2]);
        assert!(b.recv(me, Tag::user(3), soon()).unwrap().is_empty());
    });
}
