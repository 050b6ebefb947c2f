// SPDX-License-Identifier: MIT
//! What happens to a rank.

use std::fmt;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use rustix::net::{Shutdown, getpeername, shutdown};

/// After how long without a sign of life a rank counts as dead in these jobs. By default it is 5 s.
pub(super) const SILENCE: Duration = Duration::from_secs(1);
/// How long the others have to learn of a death, and to end what waits for it.
const SEEN: Duration = Duration::from_secs(2);

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

/// Shuts down every connection of this process, under those who use them.
pub(super) fn close_sockets() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    for entry in open.flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        let number = entry.file_name().to_string_lossy().parse::<RawFd>();
        if let (Ok(number), true) = (number, target.to_string_lossy().starts_with("socket:")) {
            // SAFETY: it is not closed here. Whoever owns it may close it meanwhile; then the calls
            // fail, or meet another descriptor of this process, which they do not close either.
            let socket = unsafe { BorrowedFd::borrow_raw(number) };
            // Listeners have no peer, and stay.
            if getpeername(socket).is_ok() {
                let _ = shutdown(socket, Shutdown::Both);
            }
        }
    }
}
