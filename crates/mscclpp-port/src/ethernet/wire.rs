// SPDX-License-Identifier: MIT
//! Frames on their way into the socket: headers and the ranges of memory behind them.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::ethernet::frame::{Frame, HEADER};
use crate::ethernet::socket::{MAX_RANGES, Range, Ranges, Socket};
use crate::gpu::{Piece, Staging};
use crate::memory::{Region, RegionGuard};

/// Most frames in one send: two ranges each.
pub(super) const MAX_FRAMES: usize = MAX_RANGES / 2;

/// How often to ask whether copies that do not end have failed.
const LOOK_EVERY: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) enum PumpError {
    /// Raw memory that a write was to read is not registered any more.
    SourceGone,
    /// A GPU's memory cannot be read.
    Device(Error),
    Socket(io::Error),
}

/// A frame on its way into the socket.
pub(super) struct Outgoing {
    pub(super) header: [u8; HEADER],
    pub(super) payload: Option<Payload>,
    /// Bytes of header and payload that the socket has taken.
    pub(super) sent: usize,
    /// Whether a post of the queue ends with this frame.
    pub(super) ends_post: bool,
}

/// The bytes behind a header.
pub(super) struct Payload {
    pub(super) source: Arc<Region>,
    pub(super) from: u64,
    pub(super) len: u64,
    /// Of a GPU's memory: where its bytes are copied to, to be sent from there.
    pub(super) staged: Option<Piece>,
}

/// What is on its way into the socket.
pub(super) struct Wire {
    pub(super) frames: VecDeque<Outgoing>,
    /// Made for a GPU's connection, or when the first payload is a GPU's.
    staging: Option<Staging>,
    gpu_copy: Duration,
    /// Since when the next bytes are waited for.
    waiting: Option<Instant>,
    /// Frames that a trace has seen.
    pub(super) traced: u64,
}

impl Wire {
    pub(super) fn new(staging: Option<Staging>, gpu_copy: Duration) -> Self {
        Self {
            frames: VecDeque::new(),
            staging,
            gpu_copy,
            waiting: None,
            traced: 0,
        }
    }

    /// Starts to copy up to `len` bytes of a GPU's memory, if there is room for any now.
    pub(super) fn stage(
        &mut self,
        source: &Arc<Region>,
        from: u64,
        len: u64,
    ) -> Result<Option<Piece>, PumpError> {
        let Some(memory) = source.gpu() else {
            return Ok(None);
        };
        let staging = match &mut self.staging {
            Some(staging) => staging,
            None => {
                let made =
                    Staging::new(memory.device(), self.gpu_copy).map_err(PumpError::Device)?;
                self.staging.insert(made)
            }
        };
        let at = source.base().addr().get() as u64 + from;
        // SAFETY: checked when posted; the region keeps its buffer.
        unsafe { staging.fetch(at, len, Arc::clone(source) as _) }.map_err(PumpError::Device)
    }

    /// Whether a frame's bytes can be sent.
    fn is_ready(&self, frame: &Outgoing) -> bool {
        let piece = frame.payload.as_ref().and_then(|payload| payload.staged);
        match (piece, &self.staging) {
            (Some(piece), Some(staging)) => staging.is_ready(&piece),
            _ => true,
        }
    }

    /// Looks every now and then whether what is waited for will come.
    fn wait(&mut self) -> Result<(), PumpError> {
        let since = self.waiting.get_or_insert_with(Instant::now);
        if since.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        *since = Instant::now();
        match &self.staging {
            Some(staging) => staging.check().map_err(PumpError::Device),
            None => Ok(()),
        }
    }

    /// Takes the first frame off, which is sent.
    pub(super) fn pop(&mut self) {
        let sent = self.frames.pop_front();
        let piece = sent.and_then(|frame| frame.payload?.staged);
        if let (Some(piece), Some(staging)) = (piece, &mut self.staging) {
            staging.release(piece);
        }
    }
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
        self.payload.as_ref().map_or(0, |payload| payload.len)
    }

    pub(super) fn payload_left(&self) -> u64 {
        self.payload_len() - (self.sent.saturating_sub(HEADER)) as u64
    }

    pub(super) fn left(&self) -> usize {
        HEADER + self.payload_len() as usize - self.sent
    }
}

/// Sends the batch in one call, as far as its bytes are there; returns how many bytes the socket
/// took, or `None` if the next bytes are not there yet.
pub(super) fn send(wire: &mut Wire, socket: &Socket) -> Result<Option<usize>, PumpError> {
    let ready = wire.frames.iter().take_while(|frame| wire.is_ready(frame));
    let ready = ready.take(MAX_FRAMES).count();
    if ready == 0 {
        wire.wait()?;
        return Ok(None);
    }
    wire.waiting = None;
    let mut ranges = Ranges::new();
    // Regions stay open during the call, which copies no more than the socket's buffer takes. Each
    // is entered once: to enter again could wait for a close that waits for the first.
    let mut guards = Vec::new();
    for frame in wire.frames.iter_mut().take(ready) {
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
        if let Some(payload) = &frame.payload {
            let Payload {
                source: region,
                from,
                len,
                staged,
            } = payload;
            let done = frame.sent.saturating_sub(HEADER) as u64;
            if let (Some(piece), Some(staging)) = (staged, &wire.staging) {
                ranges.push(Range {
                    base: staging.at(piece).wrapping_add(done as usize),
                    len: (len - done) as usize,
                });
                continue;
            }
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
    // payloads lie in regions that their buffers (held by the frame's `Arc`) or `guards` keep valid,
    // or in staging memory that is theirs until they are sent.
    let sent = unsafe { socket.send(&mut ranges) };
    drop(guards);
    sent.map(Some).map_err(PumpError::Socket)
}
