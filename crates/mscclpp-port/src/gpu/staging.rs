// SPDX-License-Identifier: MIT
//! Copies between a GPU's memory and pinned memory that the system sends from and receives into.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mscclpp_device::cuda::PinnedMemory;

use super::{Keep, Lane, failed, open};
use crate::device::Device;
use crate::error::Result;
use crate::ring::{Ring, Span};

/// Bytes of pinned memory. Several pieces are under way at a time.
const BYTES: u64 = 2 << 20;
/// What is copied at a time.
const PIECE: u64 = 256 << 10;

/// A piece of staging memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    span: Span,
    /// The mark behind the copy that fills it.
    mark: u64,
}

impl Piece {
    pub(crate) fn len(&self) -> usize {
        self.span.len() as usize
    }
}

/// A ring of pinned memory, and the lane of the copies out of it or into it. Pieces come free in the
/// order in which they were handed out.
pub(crate) struct Staging {
    lane: Lane,
    memory: Arc<PinnedMemory>,
    ring: Ring,
    /// Pieces to come free when a mark is reached, as the mark and their end.
    landing: VecDeque<(u64, u64)>,
}

impl Staging {
    /// Copies that are waited for may take `patience`.
    pub(crate) fn new(device: Device, patience: Duration) -> Result<Self> {
        let memory = PinnedMemory::new(&open(device)?, BYTES)
            .map_err(failed(device, "allocate pinned host memory"))?;
        let (mut lane, memory) = (Lane::new(device, patience)?, Arc::new(memory));
        // Copies that do not end go on after this.
        lane.own(Arc::clone(&memory) as _);
        Ok(Self {
            lane,
            memory,
            ring: Ring::new(BYTES),
            landing: VecDeque::new(),
        })
    }

    /// A free piece for `len` bytes from `address` or to it, or for as many as are handed out at a
    /// time, which then end between words; `None` if there is none now.
    fn room(&mut self, address: u64, len: u64) -> Option<Piece> {
        let reached = self.lane.reached();
        while let Some((_, end)) = self.landing.pop_front_if(|(mark, _)| *mark <= reached) {
            self.ring.give_back(end);
        }
        let span = self.ring.take(address, len, PIECE)?;
        Some(Piece { span, mark: 0 })
    }

    /// A free piece, as [`room`](Self::room), once copies that are under way have made some.
    pub(crate) fn wait_for_room(&mut self, address: u64, len: u64) -> Result<Piece> {
        loop {
            if let Some(piece) = self.room(address, len) {
                return Ok(piece);
            }
            // The copies go on meanwhile: this waits for those that were started first.
            self.mark()?;
            self.settle()?;
        }
    }

    /// Gives back all of the piece that was handed out last but its first `len` bytes.
    pub(crate) fn shrink(&mut self, piece: Piece, len: usize) -> Piece {
        let span = self.ring.shrink(piece.span, len as u64);
        Piece { span, ..piece }
    }

    /// Where a piece lies.
    pub(crate) fn at(&self, piece: &Piece) -> *mut u8 {
        (self.memory.as_ptr()).wrapping_add(self.ring.offset(piece.span) as usize)
    }

    fn address(&self, piece: &Piece) -> u64 {
        self.memory.address() + self.ring.offset(piece.span)
    }

    /// Gives a piece back that was filled by [`fetch`](Self::fetch); the oldest of those first.
    pub(crate) fn release(&mut self, piece: Piece) {
        self.ring.give_back(piece.span.end());
    }

    /// Starts to copy `len` bytes from a GPU's memory into a piece, as many as there is room for;
    /// `None` if there is none now.
    ///
    /// # Safety
    /// `from` must be valid for `len` bytes while `keep` is.
    pub(crate) unsafe fn fetch(
        &mut self,
        from: u64,
        len: u64,
        keep: Keep,
    ) -> Result<Option<Piece>> {
        let Some(mut piece) = self.room(from, len) else {
            return Ok(None);
        };
        let to = self.address(&piece);
        self.lane.keep(keep);
        // SAFETY: the caller's promise, and the piece, which is this one's until it is released.
        unsafe { self.lane.copy(to, from, piece.span.len()) }?;
        piece.mark = self.lane.mark()?;
        Ok(Some(piece))
    }

    /// Whether a fetched piece has its bytes.
    pub(crate) fn is_ready(&self, piece: &Piece) -> bool {
        self.lane.reached() >= piece.mark
    }

    /// Starts to copy the first `len` bytes of a piece to a GPU's memory. It comes free by itself,
    /// once [`mark`](Self::mark) was called.
    ///
    /// # Safety
    /// `to` must be valid for `len` bytes while `keep` is.
    pub(crate) unsafe fn land(
        &mut self,
        piece: &Piece,
        len: usize,
        to: u64,
        keep: Keep,
    ) -> Result<()> {
        let from = self.address(piece);
        self.lane.keep(keep);
        // SAFETY: the caller's promise, and the piece, which is not handed out again before.
        unsafe { self.lane.copy(to, from, len as u64) }
    }

    /// Writes a word of a GPU's memory behind all that was started.
    ///
    /// # Safety
    /// `to` must be a valid word while `keep` is.
    pub(crate) unsafe fn write_u64(&mut self, to: u64, value: u64, keep: Keep) -> Result<()> {
        self.lane.keep(keep);
        // SAFETY: the caller's promise.
        unsafe { self.lane.write_u64(to, value) }
    }

    /// A mark behind all that was started, at which its pieces come free.
    pub(crate) fn mark(&mut self) -> Result<u64> {
        let mark = self.lane.mark()?;
        let head = self.ring.head();
        if self
            .landing
            .back()
            .map_or(self.ring.tail(), |(_, end)| *end)
            < head
        {
            self.landing.push_back((mark, head));
        }
        Ok(mark)
    }

    /// Whether all that was started before a mark is done.
    pub(crate) fn is_done(&self, mark: u64) -> bool {
        self.lane.reached() >= mark
    }

    /// Whether something is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.lane.is_busy()
    }

    /// Fails if the stream has failed.
    pub(crate) fn check(&self) -> Result<()> {
        self.lane.check()
    }

    /// Waits until all that was started is done.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.lane.settle(self.lane.patience())
    }
}
