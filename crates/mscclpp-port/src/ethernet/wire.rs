// SPDX-License-Identifier: MIT
//! Frames on their way into the socket: headers and the ranges of memory behind them.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::ethernet::frame::{Frame, HEADER};
use crate::ethernet::socket::{MAX_RANGES, Range, Ranges, Socket};
use crate::memory::{Region, RegionGuard};

/// Most frames in one send: two ranges each.
pub(super) const MAX_FRAMES: usize = MAX_RANGES / 2;

#[derive(Debug)]
pub(super) enum PumpError {
    /// Raw memory that a write was to read is not registered any more.
    SourceGone,
    Socket(io::Error),
}

/// A frame on its way into the socket.
pub(super) struct Outgoing {
    pub(super) header: [u8; HEADER],
    pub(super) payload: Option<(Arc<Region>, u64, u64)>,
    /// Bytes of header and payload that the socket has taken.
    pub(super) sent: usize,
    /// Whether a post of the queue ends with this frame.
    pub(super) ends_post: bool,
}

impl Outgoing {
    pub(super) fn control(frame: Frame) -> Self {
        Self {
            header: frame.encode(),
            payload: None,
            sent: 0,
            ends_post: false,
        }
    }

    fn payload_len(&self) -> u64 {
        self.payload.as_ref().map_or(0, |(_, _, len)| *len)
    }

    pub(super) fn payload_left(&self) -> u64 {
        self.payload_len() - (self.sent.saturating_sub(HEADER)) as u64
    }

    pub(super) fn left(&self) -> usize {
        HEADER + self.payload_len() as usize - self.sent
    }
}

/// Sends the batch in one call; returns how many bytes the socket took.
pub(super) fn send(wire: &mut VecDeque<Outgoing>, socket: &Socket) -> Result<usize, PumpError> {
    let mut ranges = Ranges::new();
    // Regions stay open during the call, which copies no more than the socket's buffer takes. Each
    // is entered once: to enter again could wait for a close that waits for the first.
    let mut guards = Vec::new();
    for frame in wire.iter_mut() {
        if ranges.left() < 2 {
            break;
        }
        if frame.sent < HEADER {
            let rest = &mut frame.header[frame.sent..];
            ranges.push(Range {
                base: rest.as_mut_ptr(),
                len: rest.len(),
            });
        }
        if let Some((region, from, len)) = &frame.payload {
            let done = frame.sent.saturating_sub(HEADER) as u64;
            let at = match guards
                .iter()
                .find(|guard: &&RegionGuard<'_>| guard.is_of(region))
            {
                Some(guard) => guard.range(from + done, len - done),
                None => {
                    let guard = region.enter_as_source().ok_or(PumpError::SourceGone)?;
                    let at = guard.range(from + done, len - done);
                    if guard.is_locked() {
                        guards.push(guard);
                    }
                    at
                }
            };
            ranges.push(Range {
                // Checked when posted; a region never shrinks.
                base: at.map_err(|_| PumpError::SourceGone)?,
                len: (len - done) as usize,
            });
        }
    }
    // SAFETY: headers are borrowed from `wire`, which is not touched until the call returns;
    // payloads lie in regions that their buffers (held by the frame's `Arc`) or `guards` keep valid.
    let sent = unsafe { socket.send(&mut ranges) };
    drop(guards);
    sent.map_err(PumpError::Socket)
}
