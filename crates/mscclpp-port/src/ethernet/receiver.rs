// SPDX-License-Identifier: MIT
//! The receiving half of a connection: takes frames apart, checks them and executes them.
//!
//! A region is open only during a copy out of the receive buffer, or during one non-blocking
//! receive straight into it: ending a registration never waits for a peer.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::device::Device;
use crate::error::Result;
use crate::ethernet::frame::{Frame, HEADER};
use crate::ethernet::landing::{WORD, add_behind, land, landing, on_gpu, whole_words};
use crate::ethernet::socket::{Range, Ranges, Socket};
use crate::gpu::Staging;
use crate::memory::{Region, RegistrationTable};
use crate::refusal::{Operation, Refusal, Refused};
use crate::shared;
use crate::trace::LinkTrace;

/// Size of the receive buffer.
const BUFFER: usize = 64 << 10;
/// Payloads of at least this much go straight to their destination, and an aligned word of them may
/// be seen half-written, the half at the lower address first. That takes copies by the operating
/// system that ascend, which only this architecture promises; elsewhere all payloads are copied
/// here, word by word.
const DIRECT: u64 = if cfg!(target_arch = "x86_64") {
    16 << 10
} else {
    u64::MAX
};
/// What is received behind such a payload: the next headers, and little of the next payload, which
/// would be copied twice.
const BEHIND: usize = 4 << 10;

/// What the peer's frames ask of the sending half and the connection.
pub(crate) trait Inbound {
    /// Everything before the peer's flush is executed.
    fn executed(&mut self, ticket: u64);
    /// The peer acknowledged a flush; false if none was requested.
    fn acknowledged(&mut self, ticket: u64) -> bool;
    /// The peer refused something.
    fn refused(&mut self, refused: Refused);
    /// The peer closes.
    fn goodbye(&mut self);
}

/// What one receive gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Bytes; and whether the socket had no more of them.
    Bytes {
        drained: bool,
    },
    Nothing,
    End,
}

/// The payload of a write that is still arriving.
#[derive(Clone, Copy)]
struct Body {
    key: u64,
    offset: u64,
    left: u64,
    /// Whether the payload goes straight to its destination.
    direct: bool,
}

pub(crate) struct Receiver {
    table: Arc<RegistrationTable>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    body: Option<Body>,
    ticket: u64,
    /// Bytes that the last receive had room for.
    asked: usize,
    /// On its way to a GPU. Made for a GPU's connection, or when the first payload goes to one.
    landing: Option<Staging>,
    /// How long copies to a GPU may hold up the stream. No kernel can hold them up.
    gpu_copy: Duration,
    /// Flushes to acknowledge when a mark is reached, as the mark and the ticket.
    flushes: VecDeque<(u64, u64)>,
    looks: u32,
    trace: Option<LinkTrace>,
    /// Frames that the trace has seen.
    traced: u64,
}

impl Receiver {
    pub(crate) fn new(
        table: Arc<RegistrationTable>,
        landing: Option<Staging>,
        gpu_copy: Duration,
    ) -> Self {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Self {
            table,
            buffer,
            start: 0,
            end: 0,
            body: None,
            ticket: 0,
            asked: 0,
            landing,
            gpu_copy,
            flushes: VecDeque::new(),
            looks: 0,
            trace: None,
            traced: 0,
        }
    }

    /// The same, seen by a trace.
    pub(crate) fn traced(self, trace: Option<LinkTrace>) -> Self {
        Self { trace, ..self }
    }

    /// Whether something is on its way to a GPU, or has landed and is not acknowledged: look again
    /// soon.
    pub(crate) fn is_landing(&self) -> bool {
        !self.flushes.is_empty() || self.landing.as_ref().is_some_and(Staging::is_busy)
    }

    /// Acknowledges what has landed.
    pub(crate) fn settle(&mut self, inbound: &mut impl Inbound) -> Result<(), Refused> {
        let Some(landing) = &mut self.landing else {
            return Ok(());
        };
        let mut landed = None;
        while let Some((_, ticket)) = self
            .flushes
            .pop_front_if(|(mark, _)| landing.is_done(*mark))
        {
            landed = Some(ticket);
        }
        if let Some(ticket) = landed {
            inbound.executed(ticket);
        }
        if let Some((_, ticket)) = self.flushes.front() {
            self.looks = self.looks.wrapping_add(1);
            // A stream that has failed reaches no mark.
            if self.looks.is_multiple_of(1024) {
                landing.check().map_err(|error| Refused {
                    reason: on_gpu(error),
                    ..out_of_turn(Operation::Flush, *ticket)
                })?;
            }
        }
        Ok(())
    }

    /// Receives what is there, without waiting, and executes it. After a refusal the stream is of
    /// no more use; call [`discard`](Self::discard) instead.
    pub(crate) fn receive(
        &mut self,
        socket: &Socket,
        inbound: &mut impl Inbound,
    ) -> io::Result<Result<Received, Refused>> {
        let got = match self.body {
            Some(body) if body.direct && self.end - self.start < WORD => {
                match self.receive_direct(socket, body)? {
                    Ok(got) => got,
                    Err(refused) => return Ok(Err(refused)),
                }
            }
            _ => {
                self.asked = self.buffer.len() - self.end;
                let got = receive_into(socket, &mut [], &mut self.buffer[self.end..])?;
                self.end += got.unwrap_or(0);
                got
            }
        };
        Ok(match got {
            None => Ok(Received::Nothing),
            Some(0) => Ok(Received::End),
            Some(got) => {
                let drained = got < self.asked;
                self.execute(inbound).map(|()| Received::Bytes { drained })
            }
        })
    }

    /// Whether the stream ends inside a frame if it ends here.
    pub(crate) fn mid_frame(&self) -> bool {
        self.body.is_some() || self.start < self.end
    }

    /// Receives and forgets what is there.
    pub(crate) fn discard(&mut self, socket: &Socket) -> io::Result<Received> {
        Ok(match receive_into(socket, &mut [], &mut self.buffer)? {
            None => Received::Nothing,
            Some(0) => Received::End,
            Some(got) => Received::Bytes {
                drained: got < self.buffer.len(),
            },
        })
    }

    /// Receives into the destination, and what follows the payload into the buffer.
    fn receive_direct(
        &mut self,
        socket: &Socket,
        body: Body,
    ) -> io::Result<Result<Option<usize>, Refused>> {
        let region = match self.table.open_for_write(body.key) {
            Ok(region) => region,
            Err(reason) => return Ok(Err(body.refused(reason))),
        };
        let Some(guard) = region.enter() else {
            return Ok(Err(body.refused(Refusal::UnknownKey)));
        };
        let base = match guard.range(body.offset, body.left) {
            Ok(base) => base,
            Err(reason) => return Ok(Err(body.refused(reason))),
        };
        if let Some((memory, _)) = region.in_gpu(base) {
            let memory = memory.device();
            drop(guard);
            return self.receive_staged(socket, body, (memory, &region, base));
        }
        debug_assert!(self.start == self.end);
        (self.start, self.end) = (0, 0);
        let mut direct = [Range {
            base,
            len: body.left as usize,
        }];
        self.asked = body.left as usize + BEHIND;
        let got = receive_into(socket, &mut direct, &mut self.buffer[..BEHIND])?;
        drop(guard);
        let placed = (got.unwrap_or(0) as u64).min(body.left);
        self.end = got.unwrap_or(0) - placed as usize;
        self.body = body.advance(placed);
        Ok(Ok(got))
    }

    /// The same for a GPU's memory: receives into pinned memory, and starts the copy from there. A
    /// copy ends with a word; what is there of the next one waits in the buffer.
    fn receive_staged(
        &mut self,
        socket: &Socket,
        body: Body,
        (device, region, base): (Device, &Arc<Region>, *mut u8),
    ) -> io::Result<Result<Option<usize>, Refused>> {
        let refused = |error| body.refused(on_gpu(error));
        let to = base.addr();
        let room = landing(&mut self.landing, device, self.gpu_copy).and_then(|landing| {
            let piece = landing.wait_for_room(to as u64, body.left)?;
            Ok((piece, landing))
        });
        let (piece, landing) = match room {
            Ok(room) => room,
            Err(error) => return Ok(Err(refused(error))),
        };
        let begun = self.end - self.start;
        // SAFETY: the piece is longer than what is there of a word, because it ends with one, and
        // is this call's alone.
        unsafe { shared::store(landing.at(&piece), &self.buffer[self.start..self.end]) };
        (self.start, self.end) = (0, 0);
        let mut direct = [Range {
            base: landing.at(&piece).wrapping_add(begun),
            len: piece.len() - begun,
        }];
        // Behind the last piece only: what follows another is payload.
        let behind = if piece.len() as u64 == body.left {
            BEHIND
        } else {
            0
        };
        self.asked = piece.len() - begun + behind;
        let got = receive_into(socket, &mut direct, &mut self.buffer[..behind])?;
        let there = (begun + got.unwrap_or(0)).min(piece.len());
        self.end = begun + got.unwrap_or(0) - there;
        let whole = whole_words(to, there, body.left);
        if whole < there {
            // Then nothing was received behind the piece.
            self.end = there - whole;
            // SAFETY: the piece has these bytes, and nobody writes them now.
            unsafe {
                let rest = landing.at(&piece).wrapping_add(whole);
                shared::load(&mut self.buffer[..self.end], rest);
            }
        }
        self.body = body.advance(whole as u64);
        let piece = landing.shrink(piece, whole);
        if whole > 0 {
            let keep = Arc::clone(region) as _;
            // SAFETY: the range was checked, and the region keeps its buffer.
            let started = unsafe { landing.land(&piece, whole, to as u64, keep) };
            if let Err(error) = started.and_then(|()| landing.mark()) {
                return Ok(Err(refused(error)));
            }
        }
        Ok(Ok(got))
    }

    /// Executes every whole frame in the buffer, and as much of the last as is there.
    fn execute(&mut self, inbound: &mut impl Inbound) -> Result<(), Refused> {
        loop {
            if let Some(body) = self.body {
                let there = ((self.end - self.start) as u64).min(body.left);
                let placed = self.place(body, self.start..self.start + there as usize)?;
                self.start += placed as usize;
                self.body = body.advance(placed);
                if self.body.is_some() {
                    break;
                }
            }
            let Some((header, _)) = self.buffer[self.start..self.end].split_first_chunk::<HEADER>()
            else {
                break;
            };
            let frame = Frame::decode(header)?;
            self.start += HEADER;
            if let Some(trace) = &self.trace {
                trace.received(self.traced);
                self.traced += 1;
            }
            self.dispatch(frame, inbound)?;
            if matches!(frame, Frame::Goodbye | Frame::Nack(_)) {
                // The peer's last word; what it sends behind it is not its.
                (self.start, self.end) = (0, 0);
                return Ok(());
            }
        }
        if let Some(landing) = &mut self.landing {
            landing.mark().map_err(|error| Refused {
                reason: on_gpu(error),
                ..out_of_turn(Operation::Write, 0)
            })?;
        }
        // What is left is less than a header, or less than a word: make room behind it.
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        Ok(())
    }

    fn dispatch(&mut self, frame: Frame, inbound: &mut impl Inbound) -> Result<(), Refused> {
        match frame {
            Frame::Write { key, offset, len } => {
                let body = Body {
                    key,
                    offset,
                    left: len,
                    direct: len >= DIRECT,
                };
                // Refuse before the payload arrives, and before any of it is placed.
                let region = self.table.open_for_write(key);
                region
                    .and_then(|r| {
                        r.enter()
                            .ok_or(Refusal::UnknownKey)?
                            .range(offset, len)
                            .map(drop)
                    })
                    .map_err(|reason| body.refused(reason))?;
                self.body = Some(body);
                Ok(())
            }
            Frame::Signal { key, offset } => self.add(Operation::Signal, key, offset, 1),
            Frame::Accumulate {
                key,
                offset,
                operand,
            } => self.add(Operation::Accumulate, key, offset, operand),
            Frame::Flush { ticket } if ticket > self.ticket => {
                self.ticket = ticket;
                match &mut self.landing {
                    Some(landing) if landing.is_busy() || !self.flushes.is_empty() => {
                        let mark = landing.mark().map_err(|error| Refused {
                            reason: on_gpu(error),
                            ..out_of_turn(Operation::Flush, ticket)
                        })?;
                        self.flushes.push_back((mark, ticket));
                    }
                    _ => inbound.executed(ticket),
                }
                Ok(())
            }
            Frame::Flush { ticket } => Err(out_of_turn(Operation::Flush, ticket)),
            Frame::FlushAck { ticket } => {
                if inbound.acknowledged(ticket) {
                    Ok(())
                } else {
                    Err(out_of_turn(Operation::Unknown, ticket))
                }
            }
            Frame::Nack(refused) => {
                inbound.refused(refused);
                Ok(())
            }
            Frame::Goodbye => {
                inbound.goodbye();
                Ok(())
            }
        }
    }

    /// Copies what is there of a payload, and returns how much of it was taken: all of it, or as
    /// much as ends with a word if the rest of that word has not arrived.
    fn place(&mut self, body: Body, there: std::ops::Range<usize>) -> Result<u64, Refused> {
        if there.is_empty() {
            return Ok(0);
        }
        let bytes = &self.buffer[there];
        let region = self.table.open_for_write(body.key);
        region
            .and_then(|region| {
                let guard = region.enter().ok_or(Refusal::UnknownKey)?;
                let to = guard.range(body.offset, bytes.len() as u64)?;
                let gpu = region.in_gpu(to);
                let len = if body.direct && gpu.is_none() {
                    bytes.len()
                } else {
                    whole_words(to.addr(), bytes.len(), body.left)
                };
                if let Some((memory, _)) = gpu {
                    let device = memory.device();
                    drop(guard);
                    let landing = landing(&mut self.landing, device, self.gpu_copy);
                    let landed =
                        landing.and_then(|landing| land(landing, &region, to, &bytes[..len]));
                    landed.map_err(on_gpu)?;
                    return Ok(len as u64);
                }
                // SAFETY: the guard checked the range and keeps it valid.
                unsafe { shared::store(to, &bytes[..len]) };
                Ok(len as u64)
            })
            .map_err(|reason| body.refused(reason))
    }

    fn add(
        &mut self,
        operation: Operation,
        key: u64,
        offset: u64,
        operand: u64,
    ) -> Result<(), Refused> {
        if let Some(trace) = &self.trace
            && operation == Operation::Signal
            && let Some((token, count)) = self.table.signal_ahead(key, offset)
        {
            trace.raised(token, count);
        }
        let added = match &mut self.landing {
            None => self.table.add(key, offset, operand),
            Some(landing) => add_behind(landing, &self.table, (key, offset), operand),
        };
        added.map_err(|reason| Refused {
            operation,
            key,
            offset,
            len: 8,
            reason,
        })
    }
}

impl Body {
    fn advance(self, by: u64) -> Option<Self> {
        let left = self.left - by;
        (left > 0).then_some(Self {
            offset: self.offset + by,
            left,
            ..self
        })
    }

    fn refused(self, reason: Refusal) -> Refused {
        let Self {
            key,
            offset,
            left: len,
            ..
        } = self;
        Refused {
            operation: Operation::Write,
            key,
            offset,
            len,
            reason,
        }
    }
}

fn out_of_turn(operation: Operation, ticket: u64) -> Refused {
    Refused {
        operation,
        key: ticket,
        offset: 0,
        len: 0,
        reason: Refusal::Protocol,
    }
}

/// One non-blocking receive; `None` if nothing is there.
fn receive_into(
    socket: &Socket,
    direct: &mut [Range],
    buffer: &mut [u8],
) -> io::Result<Option<usize>> {
    let mut ranges = Ranges::new();
    for range in direct {
        ranges.push(*range);
    }
    ranges.push(Range {
        base: buffer.as_mut_ptr(),
        len: buffer.len(),
    });
    loop {
        // SAFETY: `direct` ranges are vouched for by the guard that the caller holds; `buffer` is
        // borrowed for the call.
        match unsafe { socket.receive(&mut ranges) } {
            Ok(got) => return Ok(Some(got)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
