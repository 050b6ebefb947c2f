// SPDX-License-Identifier: MIT
//! The socket of a connection: how it is tuned, and scattered, non-blocking sends and receives.
//!
//! The buffers here are raw ranges, not slices: their bytes may be written by kernels and peers
//! while the system reads them, which a reference would rule out.

use std::io;
use std::mem;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use socket2::SockRef;

use crate::control::watch_for_silence;

/// Most ranges in one call.
pub(crate) const MAX_RANGES: usize = 64;
/// What the system is asked to buffer each way. It may give less (`net.core.wmem_max`).
const SOCKET_BUFFER: usize = 4 << 20;

/// Bytes that the system reads or writes.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) base: *mut u8,
    pub(crate) len: usize,
}

/// A list of ranges for one call.
pub(crate) struct Ranges {
    list: [libc::iovec; MAX_RANGES],
    count: usize,
}

impl Ranges {
    pub(crate) fn new() -> Self {
        let empty = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Self {
            list: [empty; MAX_RANGES],
            count: 0,
        }
    }

    /// Adds a range; false, and nothing added, if the list is full.
    pub(crate) fn push(&mut self, range: Range) -> bool {
        if self.count == MAX_RANGES {
            return false;
        }
        self.list[self.count] = libc::iovec {
            iov_base: range.base.cast(),
            iov_len: range.len,
        };
        self.count += 1;
        true
    }

    pub(crate) fn left(&self) -> usize {
        MAX_RANGES - self.count
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: all-zero is a valid msghdr: no name, no control data, no ranges.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = self.list.as_mut_ptr();
        message.msg_iovlen = self.count as _;
        message
    }
}

/// A connected stream. Closed on drop.
pub(crate) struct Socket {
    stream: TcpStream,
}

impl Socket {
    /// Takes a connected stream over: no delay for small frames, room for large ones, and a bound
    /// on how long unacknowledged bytes or silence hide a cut network: twice the time after which a
    /// stall is seen, so that a peer which does not read is told from a network that is gone.
    pub(crate) fn new(stream: TcpStream, stall_timeout: Duration) -> io::Result<Self> {
        let dead_after = stall_timeout.saturating_mul(2);
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        socket.set_send_buffer_size(SOCKET_BUFFER)?;
        socket.set_recv_buffer_size(SOCKET_BUFFER)?;
        watch_for_silence(&stream, dead_after)?;
        Ok(Self { stream })
    }

    /// Sends what fits into the socket now.
    ///
    /// # Safety
    /// Every range must be valid for reads for the whole call.
    pub(crate) unsafe fn send(&self, ranges: &mut Ranges) -> io::Result<usize> {
        let message = ranges.message();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the message refers to `ranges`, which outlives the call, and to the caller's
        // ranges, for which it vouches.
        let sent = unsafe { libc::sendmsg(self.stream.as_raw_fd(), &message, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receives what is there now; 0 at the end of the stream.
    ///
    /// # Safety
    /// Every range must be valid for writes for the whole call.
    pub(crate) unsafe fn receive(&self, ranges: &mut Ranges) -> io::Result<usize> {
        let mut message = ranges.message();
        // SAFETY: as in `send`.
        let got =
            unsafe { libc::recvmsg(self.stream.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    /// Ends one or both directions; the descriptor stays open. An end that is gone already is fine.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        if let Err(error) = self.stream.shutdown(how)
            && error.kind() != io::ErrorKind::NotConnected
        {
            tracing::warn!(%error, "cannot shut a connection down");
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
