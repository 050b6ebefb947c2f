// SPDX-License-Identifier: MIT
//! What happens to a rank.

use std::fmt;
use std::fs;
use std::time::Duration;

use rustix::net::{Shutdown, getpeername, shutdown};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open,
};

use crate::harness::is_guest;

/// How long the others have to learn of a death, and to end what waits for it.
const SEEN: Duration = Duration::from_secs(2);

/// After how long without a sign of life a rank counts as dead in these jobs. By default it is 5 s.
pub(super) fn silence() -> Duration {
    on_these_cores(Duration::from_secs(1))
}

/// What a time for real cores is on these, which may be emulated: then a rank that lives may be silent
/// for longer than real ones are, and hears of a death as late.
pub(super) fn on_these_cores(time: Duration) -> Duration {
    if is_guest() { 3 * time } else { time }
}

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
            Self::Kill | Self::Close => on_these_cores(SEEN),
            Self::Stop | Self::Cut => silence() + on_these_cores(SEEN),
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

/// Shuts down every connection of a process, under those who use them. It is stopped meanwhile, so that to
/// it they all break at once, however long this takes.
pub(super) fn close_sockets(process: Pid) -> anyhow::Result<()> {
    kill_process(process, Signal::STOP)?;
    let closed = close_all(process);
    kill_process(process, Signal::CONT)?;
    closed
}

fn close_all(process: Pid) -> anyhow::Result<()> {
    let pidfd = pidfd_open(process, PidfdFlags::empty())?;
    for entry in fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero()))?.flatten() {
        let Ok(number) = entry.file_name().to_string_lossy().parse() else {
            continue;
        };
        // What is closed meanwhile cannot be copied; files and listeners have no peer, and stay.
        if let Ok(copy) = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty())
            && getpeername(&copy).is_ok()
        {
            // It may have been shut down by its owner.
            let _ = shutdown(&copy, Shutdown::Both);
        }
    }
    Ok(())
}
