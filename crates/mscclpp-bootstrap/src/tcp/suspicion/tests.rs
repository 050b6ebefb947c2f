// SPDX-License-Identifier: MIT
//! Connections that break between ranks that live.

use std::time::{Duration, Instant};

use super::super::peers;
use super::super::tests::{dead, died, node, until, world};
use super::*;
use crate::tcp::TcpBootstrap;

const PATIENCE: Duration = Duration::from_secs(20);

/// Lets a rank find that its connection to another broke, and waits for the verdict.
fn judges(rank: &TcpBootstrap, lost: usize) {
    let (done, judged) = std::sync::mpsc::channel();
    let suspecting = std::sync::Arc::clone(node(rank));
    node(rank).runtime.spawn(async move {
        suspect(&suspecting, lost, "a test says so".into()).await;
        let _ = done.send(());
    });
    judged.recv_timeout(PATIENCE).unwrap();
}

/// Rank 0 loses one connection and says that the peer died, and then the other.
#[test]
fn a_rank_that_loses_another_after_its_verdict_is_out() {
    let begun = Instant::now();
    loop {
        let ranks = world(3);
        let first = Instant::now();
        judges(&ranks[0], 1);
        assert_eq!(dead(&ranks[0]), [1]);
        judges(&ranks[0], 2);
        if first.elapsed() >= TOGETHER {
            // For another reason, by the time that a busy machine took.
            assert!(begun.elapsed() < PATIENCE, "never within {TOGETHER:?}");
            continue;
        }
        assert_eq!(dead(&ranks[0]), [0, 1]);
        until("the news", PATIENCE, || dead(&ranks[2]) == [0, 1]);
        return;
    }
}

/// Rank 2 has died for rank 1 alone, and then rank 1 is out; it meets rank 3, which knows of neither.
#[test]
fn one_that_is_out_tells_whom_it_meets_of_itself_only() {
    let ranks = world(4);
    let one = node(&ranks[1]);
    one.failures.record(died(2, "a test says so"));
    one.failures.record(died(1, "a test says so"));
    peers::ensure_link(one, 3, &one.peer(3));
    until("the news", PATIENCE, || !dead(&ranks[3]).is_empty());
    for rank in [0, 3] {
        until("the news", PATIENCE, || dead(&ranks[rank]) == [1]);
    }
}

/// The connection of ranks 0 and 1 broke, and rank 0 has said so first, although nobody has told
/// rank 1.
#[test]
fn the_higher_rank_hears_what_the_lower_says_of_it() {
    let ranks = world(3);
    (node(&ranks[0]).failures).record(died(1, "a test says so"));
    judges(&ranks[1], 0);
    assert_eq!(dead(&ranks[1]), [1]);
    assert_eq!(dead(&ranks[2]), [0; 0]);
}
