// SPDX-License-Identifier: MIT
//! Descriptors that wake a parked thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use rustix::event::{EventfdFlags, eventfd};

/// An event: readable from a ring until it is cleared.
pub(crate) struct Event {
    fd: OwnedFd,
    /// Somebody may be parked; without, a ring costs no system call.
    armed: AtomicBool,
    /// The descriptor was rung and not yet cleared.
    rung: AtomicBool,
}

impl Event {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            fd,
            armed: AtomicBool::new(false),
            rung: AtomicBool::new(false),
        })
    }

    /// Says that the caller is about to park. What it waits for must be looked at once more between
    /// this and the park.
    pub(crate) fn arm(&self) {
        self.armed.store(true, SeqCst);
    }

    /// Wakes whoever armed the event.
    pub(crate) fn ring_if_armed(&self) {
        if self.armed.swap(false, SeqCst) {
            self.ring();
        }
    }

    pub(crate) fn ring(&self) {
        // A full counter is readable too; nothing else can fail.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        // After the write: a clear in between leaves the descriptor readable for one wake too many
        // and the next clear finds it.
        self.rung.store(true, SeqCst);
    }

    /// Makes the descriptor unreadable; cheap when it was not rung.
    pub(crate) fn clear(&self) {
        if self.rung.swap(false, SeqCst) {
            let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
