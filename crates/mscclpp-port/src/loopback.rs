// SPDX-License-Identifier: MIT
//! A connection of a context to itself: the same checks and the same order, without a network.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::context::ContextId;
use crate::error::{Error, Result};
use crate::memory::{RegisteredMemory, RegistrationTable, Target};
use crate::refusal::{Operation, Refusal, Refused};
use crate::shared;
use crate::status::StickyStatus;
use crate::transport::{Progress, Transport};

/// Bytes copied while a region is held.
const STEP: u64 = 1 << 20;

/// Executes posts at once, in the posting thread; with a GPU's memory it waits for the copies.
pub(crate) struct Loopback {
    table: Arc<RegistrationTable>,
    status: Arc<StickyStatus>,
    context: ContextId,
    rank: Option<usize>,
    tickets: AtomicU64,
}

impl Loopback {
    pub(crate) fn new(
        table: Arc<RegistrationTable>,
        status: Arc<StickyStatus>,
        context: ContextId,
        rank: Option<usize>,
    ) -> Self {
        Self {
            table,
            status,
            context,
            rank,
            tickets: AtomicU64::new(0),
        }
    }

    fn refused(&self, refused: Refused) -> Error {
        let rank = self.rank;
        let error = Error::Refused { rank, refused };
        self.status.fail(error.clone());
        error
    }

    fn add(&self, operation: Operation, target: Target, operand: u64) -> Result<()> {
        let Target { key, offset } = target;
        self.table.add(key, offset, operand).map_err(|reason| {
            self.refused(Refused {
                operation,
                key,
                offset,
                len: 8,
                reason,
            })
        })
    }
}

impl Transport for Loopback {
    /// Where source and destination overlap, what is written is unspecified.
    fn write(
        &self,
        dst: &RegisteredMemory,
        dst_off: u64,
        src: &RegisteredMemory,
        src_off: u64,
        len: u64,
    ) -> Result<()> {
        self.status.check()?;
        let Target { key, offset } =
            dst.target("write, destination", self.context, dst_off, len)?;
        let (source, from) = src.source("write, source", src_off, len)?;
        let mut done = 0;
        while done < len {
            let step = STEP.min(len - done);
            let refused = |reason| {
                let (offset, len) = (offset + done, step);
                let operation = Operation::Write;
                self.refused(Refused {
                    operation,
                    key,
                    offset,
                    len,
                    reason,
                })
            };
            let region = self.table.open_for_write(key).map_err(refused)?;
            let guard = region.enter().ok_or_else(|| refused(Refusal::UnknownKey))?;
            let to = guard.range(offset + done, step).map_err(refused)?;
            // One guard a region: to enter twice could wait for a close that waits for the first.
            let inner = (!Arc::ptr_eq(&region, &source)).then(|| source.enter_as_source());
            let from_guard = match &inner {
                None => &guard,
                Some(Some(inner)) => inner,
                Some(None) => return Err(Error::SourceGone { rank: self.rank }),
            };
            let from = from_guard.range(from + done, step).map_err(refused)?;
            match (source.in_gpu(from), region.in_gpu(to)) {
                // SAFETY: both guards checked their ranges and keep them valid.
                (None, None) => unsafe { shared::copy(to, from, step as usize) },
                (Some((memory, offset)), Some((to, to_offset))) => {
                    memory.copy_to(offset, to, to_offset, step)?;
                }
                (Some((memory, offset)), None) => {
                    let mut bytes = vec![0; step as usize];
                    memory.read(offset, &mut bytes)?;
                    // SAFETY: as above.
                    unsafe { shared::store(to, &bytes) };
                }
                (None, Some((memory, offset))) => {
                    let mut bytes = vec![0; step as usize];
                    // SAFETY: as above.
                    unsafe { shared::load(&mut bytes, from) };
                    memory.write(offset, &bytes)?;
                }
            }
            done += step;
        }
        Ok(())
    }

    fn signal(&self, token: &RegisteredMemory, off: u64) -> Result<()> {
        self.status.check()?;
        self.add(
            Operation::Signal,
            token.target_word("signal", self.context, off)?,
            1,
        )
    }

    fn accumulate(&self, dst: &RegisteredMemory, off: u64, operand: i64) -> Result<()> {
        self.status.check()?;
        let target = dst.target_word("accumulate", self.context, off)?;
        self.add(Operation::Accumulate, target, operand.cast_unsigned())
    }

    fn request_flush(&self) -> Result<u64> {
        self.status.check()?;
        Ok(self.tickets.fetch_add(1, SeqCst) + 1)
    }

    fn kick(&self) {}

    fn has_room(&self) -> bool {
        true
    }

    fn progress(&self) -> Result<Progress> {
        self.status.check()?;
        Ok(Progress {
            flushed: self.tickets.load(SeqCst),
            busy: false,
        })
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
