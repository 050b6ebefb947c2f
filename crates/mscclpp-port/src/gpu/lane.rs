// SPDX-License-Identifier: MIT
//! A stream of copies, and how far it is.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mscclpp_device::cuda::{PinnedMemory, Stream};

use super::{Keep, failed, open};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::shared;

/// Copies that execute in the order of the calls, on a stream of their own, and marks between them:
/// numbers that the stream itself writes to host memory, so that to look is one load and no call of
/// the driver.
///
/// Dropping it waits for what is under way, a bounded time.
pub(crate) struct Lane {
    device: Device,
    /// How long copies may take that are waited for.
    patience: Duration,
    /// Taken when a lane is dropped whose copies do not end.
    parts: Option<Parts>,
    /// Operations that were started, ever.
    started: u64,
    /// The last mark that was asked for, and the operations before it.
    marked: u64,
    covered: u64,
    /// Marks that are not known to be reached, with the operations before each.
    marks: VecDeque<(u64, u64)>,
    /// What operations use, each with the number of the first that does.
    kept: VecDeque<(u64, Keep)>,
}

struct Parts {
    stream: Stream,
    /// The mark that was reached.
    word: PinnedMemory,
    /// What any operation may use.
    own: Vec<Keep>,
}

impl Lane {
    /// A lane on a stream of a GPU, which has executed a copy and a mark already: a first use may
    /// load code, and wait for a kernel that spins.
    pub(crate) fn new(device: Device, patience: Duration) -> Result<Self> {
        let gpu = open(device)?;
        let failed = failed(device, "make a stream for copies");
        let stream = Stream::for_copies(&gpu).map_err(&failed)?;
        let word = PinnedMemory::new(&gpu, 64).map_err(&failed)?;
        let at = word.address();
        let mut lane = Self {
            device,
            patience,
            parts: Some(Parts {
                stream,
                word,
                own: Vec::new(),
            }),
            started: 0,
            marked: 0,
            covered: 0,
            marks: VecDeque::new(),
            kept: VecDeque::new(),
        };
        // SAFETY: two words of the pinned memory, which the lane keeps.
        unsafe { lane.copy(at + 16, at + 8, 8) }?;
        lane.settle(patience)?;
        Ok(lane)
    }

    fn parts(&self) -> &Parts {
        let Some(parts) = &self.parts else {
            unreachable!("taken by drop only")
        };
        parts
    }

    /// How long what is waited for may take.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Starts a copy of `len` bytes.
    ///
    /// # Safety
    /// Both ranges must be memory that the stream's GPU reaches, valid until a later mark has been
    /// reached or the lane is dropped: [`keep`](Self::keep) their owners.
    pub(crate) unsafe fn copy(&mut self, to: u64, from: u64, len: u64) -> Result<()> {
        self.started += 1;
        // SAFETY: the caller's promise.
        unsafe { self.parts().stream.copy(to, from, len) }
            .map_err(failed(self.device, "start a copy"))
    }

    /// Starts a write of a word, which is made after all copies that were started before; those are
    /// visible to whoever sees it.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), with `at` 8-byte aligned.
    pub(crate) unsafe fn write_u64(&mut self, at: u64, value: u64) -> Result<()> {
        self.started += 1;
        // SAFETY: the caller's promise.
        unsafe { self.parts().stream.write_u64(at, value) }
            .map_err(failed(self.device, "write a word in the order of a stream"))
    }

    /// Keeps what any operation may use, as long as the lane.
    pub(crate) fn own(&mut self, keep: Keep) {
        if let Some(parts) = &mut self.parts {
            parts.own.push(keep);
        }
    }

    /// Keeps what the next operation uses.
    pub(crate) fn keep(&mut self, keep: Keep) {
        self.kept.push_back((self.started + 1, keep));
    }

    /// How many operations were started.
    #[must_use]
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// So many operations are known to be done: what they used is let go.
    pub(crate) fn release(&mut self, done: u64) {
        while self.kept.front().is_some_and(|(number, _)| *number <= done) {
            self.kept.pop_front();
        }
    }

    /// A mark behind all that was started; the last one again if nothing was since.
    pub(crate) fn mark(&mut self) -> Result<u64> {
        if self.started > self.covered {
            let (next, at) = (self.marked + 1, self.parts().word.address());
            // SAFETY: the lane's own pinned memory.
            unsafe { self.write_u64(at, next) }?;
            (self.marked, self.covered) = (next, self.started);
            self.marks.push_back((next, self.started));
        }
        self.prune();
        Ok(self.marked)
    }

    fn prune(&mut self) {
        let reached = self.reached();
        while let Some((_, done)) = self.marks.pop_front_if(|(mark, _)| *mark <= reached) {
            self.release(done);
        }
    }

    /// The last mark that was reached: all that was started before it is done, and visible here.
    pub(crate) fn reached(&self) -> u64 {
        let word = self.parts().word.as_ptr();
        // SAFETY: a word of the lane's own pinned memory, at the start of a page.
        unsafe { shared::word(word) }.load(Ordering::Acquire)
    }

    /// Whether something was started that no reached mark covers.
    pub(crate) fn is_busy(&self) -> bool {
        self.started > self.covered || self.reached() < self.marked
    }

    /// Fails if the stream has failed: its marks are not reached then.
    pub(crate) fn check(&self) -> Result<()> {
        (self.parts().stream.is_idle())
            .map(drop)
            .map_err(failed(self.device, "execute copies"))
    }

    /// Waits until all that was started is done.
    pub(crate) fn settle(&mut self, timeout: Duration) -> Result<()> {
        let mark = self.mark()?;
        let begun = Instant::now();
        while self.reached() < mark {
            let waited = begun.elapsed();
            if waited > timeout {
                self.check()?;
                return Err(Error::Timeout {
                    operation: format!("waiting for copies of {}", self.device),
                    rank: None,
                    waited,
                });
            }
            if waited > Duration::from_millis(1) {
                self.check()?;
                std::thread::sleep(Duration::from_micros(50));
            } else {
                std::thread::yield_now();
            }
        }
        self.prune();
        Ok(())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let Err(error) = self.settle(self.patience) else {
            return;
        };
        // A stream that has failed executes nothing any more; one that goes on does.
        if self.parts().stream.is_idle().is_ok_and(|idle| !idle) {
            tracing::warn!(device = %self.device, %error, "copies do not end: what they use is never freed");
            mem::forget(self.parts.take());
            mem::forget(mem::take(&mut self.kept));
        } else {
            tracing::warn!(device = %self.device, %error, "a stream of copies has failed");
        }
    }
}
