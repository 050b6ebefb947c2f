// SPDX-License-Identifier: MIT
//! Process trees: each started process leads a session of its own, and a
//! session can be signalled as a whole, member by member.
//!
//! A session holds more than a process group: `mpirun` puts every rank into a
//! group of its own, and the ranks stay in its session. A program that leaves
//! its session and is orphaned (a daemon) is not found.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, kill_process, pidfd_open, pidfd_send_signal,
    set_parent_process_death_signal, setsid,
};

/// How long [`kill_tree`] goes on looking for members that are still there.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// Starts `command` as the leader of a new session. It gets the signal `orphaned`
/// when the calling thread ends, however it ends.
///
/// The calling thread must outlive the child: Linux ties the parent's death
/// signal to the thread that made the child.
///
/// # Errors
///
/// What [`Command::spawn`] returns.
pub fn spawn(command: &mut Command, orphaned: Signal) -> io::Result<Child> {
    let parent = getpid();
    let lead = move || {
        setsid()?;
        set_parent_process_death_signal(Some(orphaned))?;
        // The parent may have died before the signal was asked for.
        if getppid() != Some(parent) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made (setsid, prctl,
    // getppid); nothing allocates, locks or touches memory of other threads.
    unsafe { command.pre_exec(lead) };
    command.spawn()
}

/// One line of the process table.
#[derive(Clone, Copy)]
struct Entry {
    pid: i32,
    parent: i32,
    session: i32,
    dead: bool,
}

fn parse_stat(stat: &str) -> Option<Entry> {
    // "pid (name) state ppid pgrp session ..."; the name may hold anything.
    let (head, tail) = stat.rsplit_once(')')?;
    let pid = head.split(' ').next()?.parse().ok()?;
    let mut fields = tail.split_whitespace();
    let dead = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(Entry {
        pid,
        parent,
        session,
        dead,
    })
}

fn process_table() -> Vec<Entry> {
    let Ok(directory) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    directory
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
        })
        .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
        .filter_map(|stat| parse_stat(&stat))
        .collect()
}

/// Members of the session of `leader` and their descendants that still run.
pub fn members(leader: u32) -> Vec<u32> {
    let Ok(leader) = i32::try_from(leader) else {
        return Vec::new();
    };
    let table = process_table();
    let mut found: HashSet<i32> = HashSet::new();
    loop {
        let before = found.len();
        for entry in &table {
            if entry.session == leader || found.contains(&entry.parent) {
                found.insert(entry.pid);
            }
        }
        if found.len() == before {
            break;
        }
    }
    table
        .iter()
        .filter(|entry| found.contains(&entry.pid) && !entry.dead)
        .filter_map(|entry| u32::try_from(entry.pid).ok())
        .collect()
}

/// Sends `signal` to each process of the tree that `leader` leads.
pub fn signal_tree(leader: u32, signal: Signal) {
    for member in members(leader) {
        if let Some(pid) = i32::try_from(member).ok().and_then(Pid::from_raw) {
            signal_process(pid, signal);
        }
    }
}

/// Signals one process. A process that is gone by now is what was wanted.
fn signal_process(pid: Pid, signal: Signal) {
    // A pidfd keeps naming the same process when the number is used again.
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => drop(pidfd_send_signal(fd, signal)),
        Err(rustix::io::Errno::NOSYS) => drop(kill_process(pid, signal)),
        Err(_) => {}
    }
}

/// Kills the tree that `leader` leads, processes that appear meanwhile too.
///
/// Returns whether nothing of it is left. Bounded by a few seconds.
pub fn kill_tree(leader: u32) -> bool {
    let until = Instant::now() + KILL_PATIENCE;
    loop {
        if members(leader).is_empty() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        signal_tree(leader, Signal::KILL);
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_parsed() {
        let entry = parse_stat("12 (a) (b c)) S 3 4 5 0 -1").unwrap();
        assert_eq!((entry.pid, entry.parent, entry.session), (12, 3, 5));
        assert!(!entry.dead);
        assert!(parse_stat("12 (a) Z 3 4 5").unwrap().dead);
        assert!(parse_stat("12 (a) S 3").is_none());
        assert!(parse_stat("").is_none());
    }

    #[test]
    fn a_tree_is_killed_with_its_grandchildren_of_other_groups() {
        // `timeout` moves into a process group of its own.
        let mut child = spawn(
            Command::new("/bin/sh").args(["-c", "timeout 400 sleep 300 & wait"]),
            Signal::KILL,
        )
        .unwrap();
        let leader = child.id();
        let until = Instant::now() + Duration::from_secs(10);
        while members(leader).len() < 3 {
            assert!(Instant::now() < until, "the grandchildren did not appear");
            thread::sleep(Duration::from_millis(5));
        }
        assert!(kill_tree(leader));
        assert!(!child.wait().unwrap().success());
        assert!(members(leader).is_empty());
    }
}
