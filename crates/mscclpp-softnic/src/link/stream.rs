// SPDX-License-Identifier: MIT
//! What links are made of, and how two devices greet each other on it.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::descriptor;
use crate::capability::DeviceAddress;

/// First bytes on a stream, with the version of the packets on it.
const HELLO: [u8; 8] = *b"softnic\x02";

/// A connected stream to the process of another device.
///
/// Whoever made it has proven to each end who the other is
/// (`mscclpp_bootstrap::link` does): on the stream itself nothing is proven or
/// encrypted, and the peer can reach all memory that is registered for remote
/// access, and more over a Unix stream: see [`Device::link`](crate::Device::link).
#[derive(Debug)]
#[non_exhaustive]
pub enum LinkStream {
    /// Between hosts, or on one.
    Tcp(TcpStream),
    /// On one host.
    Unix(UnixStream),
}

impl From<TcpStream> for LinkStream {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for LinkStream {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

impl AsFd for LinkStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl LinkStream {
    pub(super) fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).read(bytes),
            Self::Unix(stream) => (&*stream).read(bytes),
        }
    }

    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).write(bytes),
            Self::Unix(stream) => (&*stream).write(bytes),
        }
    }

    /// The same, and the descriptors that came with the bytes; `None` for one that
    /// was lost.
    pub(super) fn read_with(
        &self,
        bytes: &mut [u8],
        descriptors: &mut VecDeque<Option<OwnedFd>>,
    ) -> io::Result<usize> {
        match self {
            Self::Tcp(_) => self.read(bytes),
            Self::Unix(stream) => descriptor::receive(stream, bytes, descriptors),
        }
    }

    /// The same with a descriptor, which goes with the first byte.
    pub(super) fn write_with(&self, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<usize> {
        match self {
            Self::Tcp(_) => Err(io::ErrorKind::Unsupported.into()),
            Self::Unix(stream) => descriptor::send(stream, bytes, descriptor),
        }
    }

    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }

    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(nonblocking)
            }
            Self::Unix(stream) => stream.set_nonblocking(nonblocking),
        }
    }

    /// Tells the other end who this is and learns who that is; then the stream
    /// is made ready for the engine.
    pub(crate) fn greet(
        &self,
        address: DeviceAddress,
        timeout: Duration,
    ) -> io::Result<DeviceAddress> {
        self.set_nonblocking(false)?;
        let started = Instant::now();
        let left = || {
            let left = timeout.saturating_sub(started.elapsed());
            self.set_timeout(Some(left.max(Duration::from_millis(1))))
        };
        let mut hello = [0; 24];
        hello[..8].copy_from_slice(&HELLO);
        hello[8..].copy_from_slice(&address.0);
        let closed = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let mut sent = 0;
        while sent < hello.len() {
            left()?;
            sent += match self.write(&hello[sent..])? {
                0 => return Err(closed()),
                count => count,
            };
        }
        let mut theirs = [0; 24];
        let mut read = 0;
        while read < theirs.len() {
            if started.elapsed() >= timeout {
                return Err(io::ErrorKind::TimedOut.into());
            }
            left()?;
            read += match self.read(&mut theirs[read..]) {
                Ok(0) => return Err(closed()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            };
        }
        let Some(peer) = theirs.strip_prefix(&HELLO).and_then(<[u8]>::first_chunk) else {
            let what = "the other end is no NIC in software of this version";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        };
        self.set_timeout(None)?;
        self.set_nonblocking(true)?;
        Ok(DeviceAddress(*peer))
    }
}
