// SPDX-License-Identifier: MIT
//! A connection whose posts kernels make themselves, as the rest of the crate sees it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use mscclpp_bootstrap::Deadline;

use super::end::QueueEnd;
use super::handshake::Handshake;
use crate::control::Route;
use crate::counters::LinkCounts;
use crate::error::{Error, Result};
use crate::memory::RegisteredMemory;
use crate::transport::{Progress, Transport};
use crate::watcher::{Watched, Watcher};

/// One end. Dropping it stops the queue and says goodbye.
pub(crate) struct GpuTransport {
    end: Arc<QueueEnd>,
    watcher: Arc<Watcher>,
    handshake: Option<JoinHandle<()>>,
}

impl GpuTransport {
    /// Starts the hand-shake.
    pub(crate) fn start(
        end: QueueEnd,
        handshake: Handshake,
        route: Route,
        watcher: Arc<Watcher>,
    ) -> Result<Self> {
        let end = Arc::new(end);
        let (theirs, watched) = (Arc::clone(&end), Arc::clone(&watcher));
        let name = match end.ends.rank {
            Some(rank) => format!("mscclpp-queue-{rank}"),
            None => "mscclpp-queue".into(),
        };
        let span = tracing::Span::current();
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || span.in_scope(|| bring_up(&theirs, &handshake, route, &watched)))
            .map_err(|error| Error::io("start the hand-shake of a queue", error))?;
        Ok(Self {
            end,
            watcher,
            handshake: Some(thread),
        })
    }

    /// An end that is connected already.
    pub(crate) fn adopt(end: QueueEnd, watcher: Arc<Watcher>) -> Result<Self> {
        let end = Arc::new(end);
        end.control.set_ready();
        let transport = Self {
            end: Arc::clone(&end),
            watcher: Arc::clone(&watcher),
            handshake: None,
        };
        watcher.add(end)?;
        Ok(transport)
    }

    fn host_post(&self, operation: &'static str) -> Result<()> {
        self.end.control.status.check()?;
        Err(Error::Unsupported {
            operation,
            transport: self.end.ends.local,
            missing: "the queue belongs to kernels (IbMode::GpuNetIo), which post through a port \
                      channel",
        })
    }
}

fn bring_up(end: &Arc<QueueEnd>, handshake: &Handshake, route: Route, watcher: &Watcher) {
    let result = (handshake.run(end, route)).and_then(|()| watcher.add(Arc::clone(end) as _));
    if let Err(error) = result {
        if end.control.given_up() {
            // Why is known.
            end.end();
        } else {
            end.fail(error);
        }
    }
}

impl Transport for GpuTransport {
    fn write(
        &self,
        _dst: &RegisteredMemory,
        _dst_off: u64,
        _src: &RegisteredMemory,
        _src_off: u64,
        _len: u64,
    ) -> Result<()> {
        self.host_post("write from the host")
    }

    fn signal(&self, _token: &RegisteredMemory, _off: u64) -> Result<()> {
        self.host_post("signal from the host")
    }

    fn accumulate(&self, _dst: &RegisteredMemory, _off: u64, _operand: i64) -> Result<()> {
        self.host_post("accumulate from the host")
    }

    fn request_flush(&self) -> Result<u64> {
        self.host_post("flush from the host").map(|()| 0)
    }

    fn kick(&self) {}

    fn has_room(&self) -> bool {
        true
    }

    fn progress(&self) -> Result<Progress> {
        self.end.control.status.check()?;
        Ok(Progress {
            flushed: 0,
            busy: false,
        })
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_connected(&self) -> bool {
        self.end.control.is_ready()
    }

    fn abort(&self) {
        self.end.end();
    }

    fn counts(&self) -> LinkCounts {
        LinkCounts {
            queue: self.end.queue().counters(),
            ..LinkCounts::default()
        }
    }

    fn queue(&self) -> Option<&QueueEnd> {
        Some(&self.end)
    }
}

impl Drop for GpuTransport {
    fn drop(&mut self) {
        let control = &self.end.control;
        control.linger(Deadline::after(control.deadlines.linger));
        let watched: Arc<dyn Watched> = Arc::clone(&self.end) as _;
        let thread = self.handshake.take();
        control.leave(&self.watcher, &watched, thread, || self.end.end());
    }
}
