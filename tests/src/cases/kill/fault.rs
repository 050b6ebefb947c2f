// SPDX-License-Identifier: MIT
//! What happens to a rank.

use std::fmt;
use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::ensure;
use mscclpp_bootstrap::Deadline;
use rustix::net::{Shutdown, getpeername, shutdown};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open,
};

/// After how long without a sign of life a rank counts as dead in these jobs. By default it is 5 s.
pub(super) const SILENCE: Duration = Duration::from_secs(1);
/// How long the others have to learn of a death, and to end what waits for it.
const SEEN: Duration = Duration::from_secs(2);

/// How long a process may take to stop.
const STOPS: Duration = Duration::from_secs(10);

/// What happens to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGSTOP; after the others have ended, SIGCONT.
    Stop,
    /// All its connections are shut down under it.
    Close,
    /// Its packets are dropped, and those to it.
    Cut,
}

impl Fault {
    pub(super) const ALL: [Self; 4] = [Self::Kill, Self::Stop, Self::Close, Self::Cut];

    /// How long the others may take to learn of it and to tell.
    pub(super) fn seen_within(self) -> Duration {
        match self {
            Self::Kill | Self::Close => SEEN,
            Self::Stop | Self::Cut => SILENCE + SEEN,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "SIGKILL",
            Self::Stop => "SIGSTOP",
            Self::Close => "closed sockets",
            Self::Cut => "cut link",
        })
    }
}

/// Shuts down every connection of a process, under those who use them, one right after the other.
pub(super) fn close_sockets(process: Pid) -> anyhow::Result<()> {
    let pidfd = pidfd_open(process, PidfdFlags::empty())?;
    let entries = fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero()))?;
    let copies = entries.flatten().filter_map(|entry| {
        let number = entry.file_name().to_string_lossy().parse().ok()?;
        // What is closed meanwhile cannot be copied; files and listeners have no peer, and stay.
        let copy = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()).ok()?;
        getpeername(&copy).is_ok().then_some(copy)
    });
    let copies: Vec<_> = copies.collect();
    for copy in copies {
        // It may have been shut down by its owner.
        let _ = shutdown(&copy, Shutdown::Both);
    }
    Ok(())
}

/// Stops a process. On a busy machine its threads may go on for a while after the signal was sent.
pub(super) fn stop(process: Pid) -> anyhow::Result<()> {
    kill_process(process, Signal::STOP)?;
    let deadline = Deadline::after(STOPS);
    while !stands(process)? {
        ensure!(!deadline.expired(), "the process does not stop");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Whether no thread of a process runs any more.
fn stands(process: Pid) -> anyhow::Result<bool> {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()))?;
    Ok(tasks.flatten().all(|task| {
        let status = fs::read_to_string(task.path().join("status"));
        let stopped = |line: &str| line.starts_with("State:\tT");
        // One that is not there any more has ended.
        status.map_or(true, |status| status.lines().any(stopped))
    }))
}
