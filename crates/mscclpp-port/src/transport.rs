// SPDX-License-Identifier: MIT
//! The seam between connections and what carries them.

use std::os::fd::BorrowedFd;

use crate::error::Error;
use crate::memory::RegisteredMemory;

/// One direction of a connection: work that this process starts at the peer.
///
/// Calls never block. They are executed at the peer in the order of the calls. Several threads
/// may call at once (two proxies may share a connection); the order is then that in which the
/// calls got in.
pub(crate) trait Transport: Send + Sync {
    /// Starts copying `len` bytes from `src` (local) to `dst` (the peer's). The source may be
    /// read until a flush requested later has finished.
    fn write(
        &self,
        dst: &RegisteredMemory,
        dst_off: u64,
        src: &RegisteredMemory,
        src_off: u64,
        len: u64,
    ) -> Result<(), Error>;

    /// Starts adding 1 to the u64 at `off` of `token` (the peer's), after all earlier writes are
    /// visible there.
    fn signal(&self, token: &RegisteredMemory, off: u64) -> Result<(), Error>;

    /// Starts adding `operand`, modulo 2^64, to the u64 at `off` of `dst` (the peer's).
    fn accumulate(&self, dst: &RegisteredMemory, off: u64, operand: i64) -> Result<(), Error>;

    /// False while the queue towards the peer is full: the caller then holds its next operation
    /// and calls [`Transport::progress`] until there is room.
    fn has_room(&self) -> bool;

    /// Asks to be told when everything started so far is done at the peer. Tickets grow by call;
    /// operations started later never delay an earlier ticket.
    fn request_flush(&self) -> Result<u64, Error>;

    /// Moves the transport on without blocking.
    fn progress(&self) -> Result<Progress, Error>;

    /// What to wait on while [`Progress::busy`]: readable when completions may have arrived, and
    /// writable, where [`Transport::wants_write`] says so, when more can be sent.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether to wait until [`Transport::poll_fd`] is writable too.
    fn wants_write(&self) -> bool {
        false
    }
}

/// What [`Transport::progress`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The highest finished flush ticket, 0 when none has finished yet.
    pub(crate) flushed: u64,
    /// Operations are still on their way: `progress` must be called again.
    pub(crate) busy: bool,
}
