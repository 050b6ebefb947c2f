// SPDX-License-Identifier: MIT
//! Streams between devices, that carry their packets.

mod codec;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use codec::{HEADER, decode, encode, frame_length};

use crate::capability::DeviceAddress;
use crate::nic::packet::Packet;

/// First bytes on a stream, with the version of the packets on it.
const HELLO: [u8; 8] = *b"softnic\x01";

/// Bytes that wait to be sent, above which the device stops to make more.
const CONGESTED: usize = 4 << 20;

/// For how long the device waits for a stream that takes nothing. After that,
/// packets for it are lost, and only its own peer's queues suffer.
const PATIENCE: Duration = Duration::from_millis(100);

/// Bytes read at a time.
pub(crate) const READ: usize = 1 << 16;

/// Bytes read from one stream before others get their turn.
const TURN: usize = 1 << 18;

/// A connected stream to the process of another device.
///
/// Whoever made it has proven to each end who the other is
/// (`mscclpp_bootstrap::link` does): on the stream itself nothing is proven or
/// encrypted, and the peer can reach all memory that is registered for remote
/// access.
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
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).read(bytes),
            Self::Unix(stream) => (&*stream).read(bytes),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).write(bytes),
            Self::Unix(stream) => (&*stream).write(bytes),
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
        let until = Instant::now() + timeout;
        let left = || {
            let left = until.saturating_duration_since(Instant::now());
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
            if Instant::now() >= until {
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

/// One end of a link, as the engine has it.
#[derive(Debug)]
pub(crate) struct LinkEnd {
    pub(crate) peer: DeviceAddress,
    pub(crate) stream: Arc<LinkStream>,
    incoming: Vec<u8>,
    /// Bytes of `incoming` that have been used.
    used: usize,
    outgoing: Vec<u8>,
    /// Bytes of `outgoing` that have been sent.
    sent: usize,
    pub(crate) closed: bool,
    /// Above [`CONGESTED`]: when the stream last took something.
    took: Option<Instant>,
}

impl LinkEnd {
    pub(crate) fn new(peer: DeviceAddress, stream: LinkStream) -> Self {
        Self {
            peer,
            stream: Arc::new(stream),
            incoming: Vec::new(),
            used: 0,
            outgoing: Vec::new(),
            sent: 0,
            closed: false,
            took: None,
        }
    }

    /// True if more is waiting to be sent than it is worth to add to, and it is
    /// being sent.
    pub(crate) fn is_congested(&self) -> bool {
        self.is_full() && (self.took).is_none_or(|took| took.elapsed() < PATIENCE)
    }

    fn is_full(&self) -> bool {
        self.outgoing.len() - self.sent > CONGESTED
    }

    /// True if something is waiting to be sent.
    pub(crate) fn has_outgoing(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    fn close(&mut self, cause: &dyn std::fmt::Display) {
        if !self.closed {
            tracing::warn!(peer = %self.peer, %cause, "a link between NICs in software is down");
            self.down();
        }
    }

    fn down(&mut self) {
        self.closed = true;
        self.outgoing.clear();
        self.sent = 0;
    }

    /// Takes a packet to be sent; false if it cannot be.
    pub(crate) fn push(&mut self, packet: &Packet) -> bool {
        if self.closed || self.is_full() {
            return false;
        }
        if self.sent > 0 && self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        }
        encode(packet, &mut self.outgoing)
    }

    /// Sends what the stream takes; true if it took something.
    pub(crate) fn flush(&mut self) -> bool {
        let mut any = false;
        while !self.closed && self.has_outgoing() {
            match self.stream.write(&self.outgoing[self.sent..]) {
                Ok(0) => self.close(&"the stream takes no more"),
                Ok(count) => {
                    self.sent += count;
                    any = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.close(&error),
            }
        }
        if self.sent > CONGESTED / 2 {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        if !self.is_full() {
            self.took = None;
        } else if any || self.took.is_none() {
            self.took = Some(Instant::now());
        }
        any
    }

    /// Reads what has come, by way of `buffer`, and hands over the packets in it;
    /// true if something had come.
    pub(crate) fn receive(&mut self, buffer: &mut [u8], mut take: impl FnMut(Packet)) -> bool {
        let mut any = false;
        let mut turn = 0;
        while !self.closed && turn < TURN {
            match self.stream.read(buffer) {
                // As when its device is dropped. Whoever cares gets an event.
                Ok(0) => {
                    tracing::debug!(peer = %self.peer, "the other end has closed a link");
                    self.down();
                }
                Ok(count) => {
                    any = true;
                    turn += count;
                    self.incoming.extend_from_slice(&buffer[..count]);
                    self.split(&mut take);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.close(&error),
            }
        }
        any
    }

    fn split(&mut self, take: &mut impl FnMut(Packet)) {
        loop {
            let rest = &self.incoming[self.used..];
            let frame = match frame_length(rest) {
                Ok(Some(length)) => rest.get(HEADER..length),
                Ok(None) => None,
                Err(error) => return self.close(&error),
            };
            let Some(frame) = frame else { break };
            match decode(frame) {
                Ok(packet) => {
                    self.used += HEADER + frame.len();
                    take(packet);
                }
                Err(error) => return self.close(&error),
            }
        }
        self.incoming.drain(..self.used);
        self.used = 0;
    }
}
