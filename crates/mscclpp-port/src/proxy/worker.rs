// SPDX-License-Identifier: MIT
//! The loop of a proxy thread.

use std::time::Instant;

use super::control::Control;
use super::{ProxyHandler, ProxyHandlerResult};
use crate::fifo::Fifo;
use crate::idle::Idle;

/// Triggers executed between two looks at everything else. Their slots are given back together.
const BATCH: u64 = 16;

/// What a proxy thread owns; it is handed back when the thread ends.
pub(super) struct Worker {
    pub(super) fifo: Fifo,
    pub(super) handler: Box<dyn ProxyHandler>,
}

/// How a proxy thread ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Left {
    /// Triggers that were pushed and not executed.
    pub(super) triggers: u64,
    /// Whether something that was started was not finished.
    pub(super) busy: bool,
    /// The ranks that were waited for.
    pub(super) ranks: Vec<usize>,
}

impl Worker {
    /// Serves the FIFO until told to stop, then until all that was pushed by then is done or the
    /// deadline has passed.
    pub(super) fn run(&mut self, control: &Control) -> Left {
        let mut idle = Idle::new();
        // Once stopping: the deadline, and one past the last position that is still served.
        let mut last: Option<(Instant, u64)> = None;
        loop {
            if last.is_none()
                && let Some(deadline) = control.stopping()
            {
                last = Some((deadline, self.fifo.ring().head()));
            }
            let end = last.map_or(u64::MAX, |(_, end)| end);
            let (handled, ended) = self.batch(end);
            let progress = self.handler.progress();
            if ended {
                return self.left(self.fifo.ring().head(), progress.busy);
            }
            if let Some((deadline, end)) = last {
                let done = self.fifo.tail() >= end && !progress.busy;
                if done || Instant::now() >= deadline {
                    return self.left(end, progress.busy);
                }
            }
            if handled > 0 || progress.moved {
                idle.reset();
            } else {
                let handler = &mut self.handler;
                idle.pause(|nap| handler.park(nap));
            }
        }
    }

    /// Executes up to a batch of triggers below position `end`. Returns how many, and whether the
    /// handler wants the thread to end.
    #[inline]
    fn batch(&mut self, end: u64) -> (u64, bool) {
        let first = self.fifo.tail();
        let mut ended = false;
        while self.fifo.tail() < end.min(first + BATCH)
            && let Some(trigger) = self.fifo.poll()
        {
            match self.handler.handle(trigger, self.fifo.tail()) {
                ProxyHandlerResult::Continue => self.fifo.advance(),
                ProxyHandlerResult::Hold => break,
                ProxyHandlerResult::Stop => {
                    self.fifo.advance();
                    ended = true;
                    break;
                }
            }
        }
        let handled = self.fifo.tail() - first;
        if handled > 0 {
            self.fifo.publish();
        }
        (handled, ended)
    }

    fn left(&self, end: u64, busy: bool) -> Left {
        Left {
            triggers: end.saturating_sub(self.fifo.tail()),
            busy,
            ranks: self.handler.waits_for(),
        }
    }
}
