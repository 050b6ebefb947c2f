// SPDX-License-Identifier: MIT
//! Copies between a GPU's memory and pinned memory that the system sends from and receives into.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mscclpp_device::cuda::PinnedMemory;

use super::{Keep, Lane, Piece, failed, open};
use crate::device::Device;
use crate::error::Result;

/// Bytes of pinned memory. Several pieces are under way at a time.
const BYTES: u64 = 2 << 20;
/// What is copied at a time.
const PIECE: u64 = 256 << 10;
/// Pieces start at multiples of this.
const ALIGN: u64 = 64;

/// A ring of pinned memory, and the lane of the copies out of it or into it. Pieces come free in the
/// order in which they were handed out.
pub(crate) struct Staging {
    lane: Lane,
    memory: Arc<PinnedMemory>,
    /// Bytes handed out, and bytes that came free, ever.
    head: u64,
    tail: u64,
    /// Pieces to come free when a mark is reached, as the mark and their end.
    landing: VecDeque<(u64, u64)>,
}

impl Staging {
    pub(crate) fn new(device: Device) -> Result<Self> {
        let memory = PinnedMemory::new(&open(device)?, BYTES)
            .map_err(failed(device, "allocate pinned host memory"))?;
        let (mut lane, memory) = (Lane::new(device)?, Arc::new(memory));
        // Copies that do not end go on after this.
        lane.own(Arc::clone(&memory) as _);
        Ok(Self {
            lane,
            memory,
            head: 0,
            tail: 0,
            landing: VecDeque::new(),
        })
    }

    /// A free piece of `len` bytes, or of the most that is handed out at a time; `None` if there is
    /// none now.
    fn room(&mut self, len: u64) -> Option<Piece> {
        let reached = self.lane.reached();
        while let Some((_, end)) = self.landing.pop_front_if(|(mark, _)| *mark <= reached) {
            self.tail = end;
        }
        let len = len.min(PIECE);
        // Whole in the ring: what is left at its end may be too short.
        let start = if self.head % BYTES + len > BYTES {
            self.head.next_multiple_of(BYTES)
        } else {
            self.head
        };
        let end = (start + len).next_multiple_of(ALIGN);
        if end - self.tail > BYTES {
            return None;
        }
        self.head = end;
        Some(Piece {
            end,
            len: len as usize,
            mark: 0,
        })
    }

    /// A free piece, as [`room`](Self::room), once copies that are under way have made some.
    pub(crate) fn wait_for_room(&mut self, len: u64, timeout: Duration) -> Result<Piece> {
        loop {
            if let Some(piece) = self.room(len) {
                return Ok(piece);
            }
            // The copies go on meanwhile: this waits for those that were started first.
            self.mark()?;
            self.settle(timeout)?;
        }
    }

    /// Gives back all of the piece that was handed out last but its first `len` bytes.
    pub(crate) fn shrink(&mut self, piece: Piece, len: usize) -> Piece {
        let start = piece.end - (piece.len as u64).next_multiple_of(ALIGN);
        self.head = (start + len as u64).next_multiple_of(ALIGN);
        Piece {
            end: self.head,
            len,
            ..piece
        }
    }

    /// Where a piece lies.
    pub(crate) fn at(&self, piece: &Piece) -> *mut u8 {
        let start = piece.end - (piece.len as u64).next_multiple_of(ALIGN);
        (self.memory.as_ptr()).wrapping_add((start % BYTES) as usize)
    }

    fn address(&self, piece: &Piece) -> u64 {
        let start = piece.end - (piece.len as u64).next_multiple_of(ALIGN);
        self.memory.address() + start % BYTES
    }

    /// Gives a piece back that was filled by [`fetch`](Self::fetch); the oldest of those first.
    pub(crate) fn release(&mut self, piece: Piece) {
        self.tail = piece.end;
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
        let Some(mut piece) = self.room(len) else {
            return Ok(None);
        };
        let to = self.address(&piece);
        self.lane.keep(keep);
        // SAFETY: the caller's promise, and the piece, which is this one's until it is released.
        unsafe { self.lane.copy(to, from, piece.len as u64) }?;
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
        if self.landing.back().map_or(self.tail, |(_, end)| *end) < self.head {
            self.landing.push_back((mark, self.head));
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
    pub(crate) fn settle(&mut self, timeout: Duration) -> Result<()> {
        self.lane.settle(timeout)
    }
}
