// SPDX-License-Identifier: MIT
//! Ranks of one process whose connections are held up, or that say what is not so.

use std::thread;
use std::time::{Duration, Instant};

use super::super::TcpBootstrap;
use super::super::node::Spread;
use super::super::outgoing::News;
use super::super::tests::{SILENCE, dead, died, node, until, world, world_with};
use crate::{Bootstrap, Deadline, Tag};

/// No sign of life goes out on the connection of two ranks, as while TCP waits longer and longer
/// before it sends again what a link has lost.
fn hold_up(one: &TcpBootstrap, other: &TcpBootstrap) {
    // Repeated, because what waits to be written ends a hold.
    for _ in 0..10 {
        hold(one, other);
        hold(other, one);
        thread::sleep(Duration::from_millis(10));
    }
}

fn hold(from: &TcpBootstrap, to: &TcpBootstrap) {
    node(from).peer(to.rank()).outgoing.hold_beats();
}

#[test]
fn a_rank_that_answers_on_another_connection_is_not_silent() {
    let ranks = world(3);
    hold_up(&ranks[0], &ranks[1]);
    thread::sleep(SILENCE * 2);
    for rank in &ranks {
        assert_eq!(dead(rank), [0; 0], "told to rank {}", rank.rank());
    }
    // A connection that stays so is of no use: one of its ends is out.
    until("a connection that is lost", SILENCE * 3, || {
        let named = dead(&ranks[2]);
        named == [0] || named == [1]
    });
}

#[test]
fn a_rank_that_is_accused_and_lives_is_told_and_nobody_else_is_out() {
    let ranks = world(4);
    node(&ranks[3]).gone(died(1, "a test says so"), Spread::Everybody);
    for rank in &ranks {
        let who = rank.rank();
        until("the news", Duration::from_secs(2), || {
            !dead(rank).is_empty()
        });
        assert_eq!(dead(rank), [1], "told to rank {who}");
    }
    let error = ranks[1].barrier().unwrap_err().to_string();
    assert!(error.contains("take rank 1, this one, for dead"), "{error}");
}

#[test]
fn one_that_is_out_accuses_nobody_but_itself() {
    let ranks = world(3);
    // Rank 0 knows it already, and rank 2 does not yet; their connection still stands.
    node(&ranks[0]).failures.record(died(2, "a test says so"));
    let accuse = |rank: usize| {
        let cause = "what one that is out says".to_owned();
        node(&ranks[2])
            .peer(0)
            .outgoing
            .tell(News::Death { rank, cause });
    };
    accuse(1);
    thread::sleep(SILENCE / 4);
    assert_eq!(dead(&ranks[0]), [2]);
    assert_eq!(dead(&ranks[1]), [0; 0]);
    // Nor is the accusation that this rank is dead itself heard from there.
    accuse(0);
    thread::sleep(SILENCE / 4);
    assert_eq!(dead(&ranks[0]), [2]);
}

/// Nothing but the messages goes from rank 0 to rank 1, for longer than a silence, and rank 1 does not
/// call.
#[test]
fn a_large_message_keeps_both_ends_alive() {
    const LARGE: usize = 64 << 20;
    // As long as the default: a busy machine may stop one of the threads for a while.
    let silence = Duration::from_secs(5);
    let ranks = world_with(2, silence);
    let soon = || Deadline::after(Duration::from_secs(60));
    let begun = Instant::now();
    node(&ranks[1]).peer(0).heard.lock().called = Some(begun + Duration::from_secs(3600));
    thread::scope(|scope| {
        scope.spawn(|| {
            let message = vec![7; LARGE];
            while begun.elapsed() < silence + silence / 2 {
                // Again and again, because what waits to be written ends a hold.
                hold(&ranks[0], &ranks[1]);
                ranks[0].send(1, Tag::user(0), &message, soon()).unwrap();
            }
            ranks[0].send(1, Tag::user(0), &[], soon()).unwrap();
        });
        while !(ranks[1].recv(0, Tag::user(0), soon()).unwrap()).is_empty() {}
    });
    for rank in &ranks {
        assert_eq!(dead(rank), [0; 0], "told to rank {}", rank.rank());
    }
}
