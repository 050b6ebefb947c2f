// SPDX-License-Identifier: MIT
//! Ranks that fall silent without a closed connection, and what becomes of them.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{Bootstrap, BootstrapError, Deadline, Tag, TcpBootstrap, TcpOptions};
use rustix::io::Errno;
use rustix::net::{Shutdown, getpeername, shutdown};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open,
};

use crate::body::{run_joined_with, secs};
use crate::processes::{Rank, Told, joining, world};

/// Silence of the default and the time to see it and to tell all.
const SEEN: Duration = Duration::from_millis(6500);
/// Connections that all break within this are judged as one loss.
const TOGETHER: Duration = Duration::from_millis(120);

/// Says of whose death it is told, whenever it is; ends when it is told of its own, or by its parent.
pub(crate) fn rank(b: &TcpBootstrap) {
    let told = Arc::new(Told::default());
    b.observe_failures(Arc::downgrade(&told) as _);
    b.barrier().unwrap();
    println!("\nready");
    let mut known = 0;
    loop {
        let failures = told.wait_for(known + 1, secs(60));
        if failures.len() == known {
            // Nobody waits for this process any more.
            return;
        }
        for failure in &failures[known..] {
            println!("\ntold {failure}");
            if failure.rank != b.rank() {
                continue;
            }
            // Taken for dead: nothing goes on here.
            let soon = || Deadline::after(secs(20));
            let begun = Instant::now();
            let sent = b.send((b.rank() + 1) % 4, Tag::user(0), &[1], soon());
            let got = b.recv((b.rank() + 2) % 4, Tag::user(0), soon());
            let met = b.barrier();
            assert!(begun.elapsed() < secs(2), "{:?}", begun.elapsed());
            for error in [sent, got.map(drop), met].map(Result::unwrap_err) {
                println!("\nerror {error}");
            }
            return;
        }
        known = failures.len();
    }
}

fn signal(rank: &Rank, signal: Signal) {
    kill_process(Pid::from_child(&rank.child), signal).unwrap();
}

fn silence(size: usize) -> (Vec<Rank>, tempfile::TempDir) {
    let (mut ranks, directory) = world("silence", size);
    for rank in &mut ranks {
        rank.says("ready");
    }
    (ranks, directory)
}

#[test]
fn a_stopped_process_is_named_to_all_and_not_taken_back() {
    let (mut ranks, _directory) = silence(5);
    let stopped = Instant::now();
    signal(&ranks[2], Signal::STOP);
    for r in [0, 1, 3, 4] {
        let told = ranks[r].says("told ");
        assert!(told.starts_with("rank 2 died: "), "rank {r}: {told}");
        assert!(told.contains("heard nothing"), "rank {r}: {told}");
        assert!(told.contains("MSCCLPP_SILENCE_TIMEOUT"), "rank {r}: {told}");
    }
    let took = stopped.elapsed();
    println!("all ranks knew of the silence after {took:?}");
    assert!(took > secs(4) && took < SEEN, "{took:?}");
    signal(&ranks[2], Signal::CONT);
    let told = ranks[2].says("told ");
    assert!(told.starts_with("rank 2 died: "), "{told}");
    for _ in 0..3 {
        let error = ranks[2].says("error ");
        assert!(error.contains("take rank 2, this one, for dead"), "{error}");
    }
    ranks[2].says("done");
    assert!(ranks[2].child.wait().unwrap().success());
}

#[test]
fn a_process_that_is_stopped_while_joining_is_named_to_all() {
    for victim in [0, 2] {
        let (mut ranks, _directory) = joining("silence");
        let stopped = Instant::now();
        signal(&ranks[victim], Signal::STOP);
        for r in (0..3).filter(|r| *r != victim) {
            let error = ranks[r].says("failed ");
            let named = format!("rank {victim} has died");
            assert!(error.contains(&named), "rank {r}: {error}");
            assert!(error.contains("heard"), "rank {r}: {error}");
        }
        let took = stopped.elapsed();
        println!("rank {victim} was stopped while joining: all knew after {took:?}");
        assert!(took > secs(4) && took < SEEN, "{took:?}");
    }
}

/// The connections of rank 0 break, and it comes to look for the others only when these have noticed.
#[test]
fn rank_0_that_loses_its_connections_while_joining_blames_nobody_who_lives() {
    const LINGERS: Duration = Duration::from_millis(300);
    let begun = Instant::now();
    loop {
        let (mut ranks, _directory) = joining("silence");
        signal(&ranks[0], Signal::STOP);
        let broke = Instant::now();
        close_sockets(&ranks[0], false);
        thread::sleep(Duration::from_millis(60));
        signal(&ranks[0], Signal::CONT);
        let error = ranks[0].says("failed ");
        if error.contains("has died") && broke.elapsed() > LINGERS {
            // It had no time to look while they could be found.
            assert!(begun.elapsed() < secs(20), "never in time: {error}");
            continue;
        }
        assert!(error.contains("rank 0 is to blame"), "{error}");
        for rank in &mut ranks[1..] {
            let error = rank.says("failed ");
            assert!(error.contains("rank 0 has died"), "{error}");
        }
        return;
    }
}

#[test]
fn those_whose_neighbours_died_hear_of_all_deaths() {
    let (mut ranks, _directory) = silence(8);
    let killed = Instant::now();
    // In the tree 0-1, 0-2-3, 0-4-5, 4-6-7 this leaves 1, 3, 5 and {6, 7} without each other.
    for dead in [0, 2, 4] {
        ranks[dead].child.kill().unwrap();
    }
    for r in [1, 3, 5, 6, 7] {
        let mut told: Vec<String> = (0..3).map(|_| ranks[r].says("told ")).collect();
        told.sort();
        for (told, dead) in told.iter().zip([0, 2, 4]) {
            assert!(
                told.starts_with(&format!("rank {dead} died")),
                "rank {r}: {told}"
            );
        }
    }
    let took = killed.elapsed();
    println!("all ranks knew of three deaths after {took:?}");
    assert!(took < secs(2), "{took:?}");
}

#[test]
fn a_death_is_told_across_the_gap_of_an_earlier_one() {
    let (mut ranks, _directory) = silence(8);
    for dead in [0, 4, 6, 1] {
        let alive: Vec<usize> = [5, 7, 3, 2].to_vec();
        let killed = Instant::now();
        ranks[dead].child.kill().unwrap();
        for r in alive {
            let told = ranks[r].says("told ");
            assert!(
                told.starts_with(&format!("rank {dead} died")),
                "rank {r}: {told}"
            );
        }
        assert!(killed.elapsed() < secs(2), "{:?}", killed.elapsed());
        // Those who were below it find others.
        thread::sleep(secs(1));
    }
}

/// Shuts the sockets of a process down, one after the other, from the highest or the lowest; how long
/// it took from the first to the last.
fn close_sockets(rank: &Rank, downwards: bool) -> Duration {
    let pid = Pid::from_child(&rank.child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let open = std::fs::read_dir(format!("/proc/{}/fd", rank.child.id())).unwrap();
    let mut numbers: Vec<i32> = open
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| name.parse().unwrap())
        .collect();
    numbers.sort_unstable();
    if downwards {
        numbers.reverse();
    }
    let mut closed: Vec<Instant> = Vec::new();
    for number in numbers {
        let Ok(copy) = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        // Neither files nor listeners have a peer.
        if getpeername(&copy).is_ok() {
            if !closed.is_empty() {
                thread::sleep(Duration::from_millis(20));
            }
            match shutdown(&copy, Shutdown::Both) {
                // Its peer was faster.
                Ok(()) | Err(Errno::NOTCONN) => {}
                Err(error) => panic!("{error}"),
            }
            closed.push(Instant::now());
        }
    }
    *closed.last().unwrap() - closed[0]
}

/// A world one of whose ranks has lost its connections, and when. They are lost together only where
/// all broke before the first is judged: with a machine that was too busy for that, begun anew.
fn without_connections(
    size: usize,
    victim: usize,
    downwards: bool,
) -> (Vec<Rank>, tempfile::TempDir, Instant) {
    let begun = Instant::now();
    loop {
        let (ranks, directory) = silence(size);
        let closed = Instant::now();
        let took = close_sockets(&ranks[victim], downwards);
        if took < TOGETHER {
            return (ranks, directory, closed);
        }
        assert!(begun.elapsed() < secs(20), "never within {TOGETHER:?}");
    }
}

#[test]
fn a_process_that_loses_its_connections_is_named_and_nobody_else() {
    for (size, victim) in [(4, 0), (4, 1), (4, 2), (4, 3), (8, 4), (8, 6)] {
        for downwards in [false, true] {
            let (mut ranks, _directory, closed) = without_connections(size, victim, downwards);
            for r in (0..size).filter(|r| *r != victim) {
                let told = ranks[r].says("told ");
                let named = format!("rank {victim} died: ");
                assert!(told.starts_with(&named), "rank {r}: {told}");
            }
            let took = closed.elapsed();
            assert!(took < secs(2), "{took:?}");
            // It finds that it is out, and the others hear of nobody else.
            while !ranks[victim]
                .says("told ")
                .starts_with(&format!("rank {victim} "))
            {}
            for _ in 0..3 {
                ranks[victim].says("error ");
            }
            let other = (victim + 1) % size;
            ranks[other].child.kill().unwrap();
            for r in (0..size).filter(|r| ![victim, other].contains(r)) {
                let told = ranks[r].says("told ");
                assert!(
                    told.starts_with(&format!("rank {other} died")),
                    "rank {r}: {told}"
                );
            }
        }
    }
}

#[test]
fn nobody_is_accused_while_all_is_quiet_or_some_leave() {
    let options = TcpOptions::new().timeout(secs(20)).silence(secs(1));
    run_joined_with(9, options, |b| {
        let told = Arc::new(Told::default());
        b.observe_failures(Arc::downgrade(&told) as _);
        b.barrier().unwrap();
        assert!(b.connections() <= 5, "{} connections", b.connections());
        thread::sleep(secs(3));
        assert_eq!(told.now(), []);
        assert!(b.connections() <= 5, "{} connections", b.connections());
        // The inner ones leave first, and what was below them goes on.
        match b.rank() {
            0 | 2 | 4 => return,
            1 => thread::sleep(secs(1)),
            _ => thread::sleep(secs(4)),
        }
        assert_eq!(told.now(), []);
        if ![1, 8].contains(&b.rank()) {
            b.group_barrier(&[3, 5, 6, 7]).unwrap();
        }
        assert_eq!(told.now(), []);
    });
}

#[test]
fn the_error_of_one_taken_for_dead_says_so() {
    let error = BootstrapError::Excluded {
        rank: 3,
        operation: "a barrier".into(),
        cause: "rank 2 heard nothing from it for 5 s".into(),
    };
    assert!(
        error
            .to_string()
            .contains("take rank 3, this one, for dead")
    );
}

/// In the tree 0-1, 0-2-3 rank 0 hears nothing from 1 and 2, and then nothing from 3; their machine
/// answers.
#[test]
fn a_rank_whose_neighbours_are_all_stopped_names_them() {
    let (mut ranks, _directory) = silence(4);
    for rank in &ranks[1..] {
        signal(rank, Signal::STOP);
    }
    let mut told: Vec<String> = (0..3).map(|_| ranks[0].says("told ")).collect();
    told.sort();
    for (told, dead) in told.iter().zip(1..4) {
        assert!(told.starts_with(&format!("rank {dead} died: ")), "{told}");
    }
}
