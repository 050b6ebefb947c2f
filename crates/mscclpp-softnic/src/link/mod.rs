// SPDX-License-Identifier: MIT
//! Streams between devices, that carry their packets.

mod codec;
mod descriptor;
mod stream;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use codec::Frame;
use codec::{HEADER, decode, encode, encode_notice, frame_length};
use mlx5_queue::MemoryKey;
pub use stream::LinkStream;

use crate::capability::DeviceAddress;
use crate::nic::loans::{Notice, OutOfStep};
use crate::nic::packet::Packet;

/// Bytes that wait to be sent, above which the device stops to make more.
const CONGESTED: usize = 4 << 20;

/// The same, above which there is no room for notices either: far more than devices
/// that keep to the protocol have to say.
const MOST_WAITING: usize = 2 * CONGESTED;

/// For how long the device waits for a stream that takes nothing. After that,
/// packets for it are lost, and only its own peer's queues suffer.
const PATIENCE: Duration = Duration::from_millis(100);

/// Bytes read at a time.
pub(crate) const READ: usize = 1 << 16;

/// Bytes read from one stream before others get their turn.
const TURN: usize = 1 << 18;

/// What is done with a frame, and the descriptor that came with it, if it was not
/// lost.
pub(crate) type Take<'a> = dyn FnMut(Frame, Option<OwnedFd>) -> Result<(), OutOfStep> + 'a;

/// One end of a link, as the engine has it.
#[derive(Debug)]
pub(crate) struct LinkEnd {
    pub(crate) peer: DeviceAddress,
    /// Tells it from other links to the same device.
    pub(crate) id: u64,
    pub(crate) stream: Arc<LinkStream>,
    incoming: Vec<u8>,
    /// Bytes of `incoming` that have been used.
    used: usize,
    /// Descriptors that have come, or were lost, for offers that will.
    descriptors: VecDeque<Option<OwnedFd>>,
    outgoing: Vec<u8>,
    /// Bytes of `outgoing` that have been sent.
    sent: usize,
    /// Descriptors to be sent, each with the byte of `outgoing` that it goes with.
    with: VecDeque<(usize, OwnedFd)>,
    pub(crate) closed: bool,
    /// Above [`CONGESTED`]: when the stream last took something.
    took: Option<Instant>,
}

impl LinkEnd {
    pub(crate) fn new(peer: DeviceAddress, id: u64, stream: LinkStream) -> Self {
        Self {
            peer,
            id,
            stream: Arc::new(stream),
            incoming: Vec::new(),
            used: 0,
            descriptors: VecDeque::new(),
            outgoing: Vec::new(),
            sent: 0,
            with: VecDeque::new(),
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
        self.waiting() > CONGESTED
    }

    /// Bytes that wait to be sent.
    fn waiting(&self) -> usize {
        self.outgoing.len() - self.sent
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
        self.with.clear();
        self.descriptors.clear();
    }

    /// Whether it can hand over descriptors: then the peer is on this host.
    pub(crate) fn passes_descriptors(&self) -> bool {
        matches!(*self.stream, LinkStream::Unix(_))
    }

    /// Takes a packet to be sent; false if it cannot be.
    pub(crate) fn push(&mut self, packet: &Packet) -> bool {
        if self.closed || self.is_full() {
            return false;
        }
        self.clear_sent();
        encode(packet, &mut self.outgoing);
        true
    }

    /// Takes a notice to be sent, and the descriptor that belongs to it. Unlike
    /// packets, notices are never lost while the link lasts: it ends when a peer
    /// lets too many wait.
    pub(crate) fn tell(&mut self, key: MemoryKey, notice: &Notice, descriptor: Option<OwnedFd>) {
        if self.closed {
            return;
        }
        self.clear_sent();
        (self.with).extend(descriptor.map(|descriptor| (self.outgoing.len(), descriptor)));
        encode_notice(key, notice, &mut self.outgoing);
        if self.waiting() > MOST_WAITING {
            self.close(&"the peer does not read what it is told");
        }
    }

    fn clear_sent(&mut self) {
        if self.sent > 0 && self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        }
    }

    /// Sends some of what is waiting: up to a byte that a descriptor goes with,
    /// or from there on.
    fn write(&mut self) -> io::Result<usize> {
        let Some((at, descriptor)) = self.with.front() else {
            return self.stream.write(&self.outgoing[self.sent..]);
        };
        if self.sent < *at {
            return self.stream.write(&self.outgoing[self.sent..*at]);
        }
        let end = self.with.get(1).map_or(self.outgoing.len(), |(at, _)| *at);
        let written = (self.stream).write_with(&self.outgoing[self.sent..end], descriptor.as_fd());
        if written.as_ref().is_ok_and(|count| *count > 0) {
            self.with.pop_front();
        }
        written
    }

    /// Sends what the stream takes; true if it took something.
    pub(crate) fn flush(&mut self) -> bool {
        let mut any = false;
        while !self.closed && self.has_outgoing() {
            match self.write() {
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
            for (at, _) in &mut self.with {
                *at -= self.sent;
            }
            self.sent = 0;
        }
        if !self.is_full() {
            self.took = None;
        } else if any || self.took.is_none() {
            self.took = Some(Instant::now());
        }
        any
    }

    /// Reads what has come, by way of `buffer`, and hands over the frames in it,
    /// offers with their descriptors; true if something had come. What `take`
    /// fails with ends the link.
    pub(crate) fn receive(&mut self, buffer: &mut [u8], take: &mut Take<'_>) -> bool {
        let mut any = false;
        let mut turn = 0;
        while !self.closed && turn < TURN {
            match self.stream.read_with(buffer, &mut self.descriptors) {
                // As when its device is dropped. Whoever cares gets an event.
                Ok(0) => {
                    tracing::debug!(peer = %self.peer, "the other end has closed a link");
                    self.down();
                }
                Ok(count) => {
                    any = true;
                    turn += count;
                    self.incoming.extend_from_slice(&buffer[..count]);
                    self.split(take);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.close(&error),
            }
        }
        any
    }

    fn split(&mut self, take: &mut Take<'_>) {
        loop {
            let rest = &self.incoming[self.used..];
            let frame = match frame_length(rest) {
                Ok(Some(length)) => rest.get(HEADER..length),
                Ok(None) => None,
                Err(error) => return self.close(&error),
            };
            let Some(frame) = frame else { break };
            let frame = match decode(frame) {
                Ok(decoded) => {
                    self.used += HEADER + frame.len();
                    decoded
                }
                Err(error) => return self.close(&error),
            };
            let descriptor = match &frame {
                Frame::Notice(_, Notice::Offered(offer)) if offer.descriptor => {
                    match self.descriptors.pop_front() {
                        None => return self.close(&"an offer without its descriptor"),
                        Some(descriptor) => descriptor,
                    }
                }
                _ => None,
            };
            if let Err(error) = take(frame, descriptor) {
                return self.close(&error);
            }
        }
        self.incoming.drain(..self.used);
        self.used = 0;
    }
}

#[cfg(test)]
mod tests;
