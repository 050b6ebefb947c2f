// SPDX-License-Identifier: MIT
//! One-sided operations over TCP.
//!
//! Both ends of a connection share one stream. Each posts [frames](frame) into it and executes the
//! other's. Posts go into the socket at once, from the posting thread, as long as it has room;
//! one I/O thread a connection ([`io`]) executes what arrives and sends what had no room.
//!
//! What is promised, and to whom:
//! - Posts execute in order. A signal or accumulate is a release at the receiver: who sees its
//!   value sees all that was posted before it. Inside one write there is no order between words; an
//!   aligned word of 8 bytes is never torn in a write of less than 16 KiB, and in a longer one its
//!   half at the lower address comes first, so that a word with its flag in the upper half (an LL
//!   packet) is whole when its flag is there.
//! - A flush is acknowledged by the peer after it has executed everything before the flush. This
//!   is stronger than a flush of MSCCL++, which ends when the bytes are in the socket.
//! - Each operation is checked by the receiver against its own table: key, range without overflow,
//!   access, alignment. What does not pass is refused with a nack; then the connection is dead for
//!   both ends, as a queue pair would be, with an error that tells what was refused. The rest of
//!   the receiver is unharmed.
//! - A GPU's memory is sent from and received into by way of pinned memory, by copies on a stream
//!   of each direction that nobody waits for. A signal's next value is written by the same stream
//!   behind the payload, and a flush is acknowledged once that is done. An accumulate in a GPU's
//!   memory is a read and a write of the receiver's, which no other receiver of the process
//!   comes between; the GPU's own kernels may.
//! - Ending a registration, a buffer or a connection waits for no peer, except for a bounded
//!   goodbye.

mod frame;
mod io;
mod landing;
mod patience;
mod receiver;
mod sender;
mod socket;
#[cfg(all(test, not(loom)))]
mod tests;
mod turn;
mod wire;

use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mscclpp_bootstrap::Deadlines;

use crate::arrival::Arrival;
use crate::context::ContextId;
use crate::counters::LinkCounts;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::ethernet::frame::Frame;
use crate::ethernet::sender::{Post, PostError, Pumped, Sender};
use crate::ethernet::socket::Socket;
use crate::ethernet::wire::PumpError;
use crate::event::Event;
use crate::gpu::Staging;
use crate::memory::{RegisteredMemory, RegistrationTable, Target};
use crate::status::StickyStatus;
use crate::trace::LinkTrace;
use crate::transport::{Progress, Transport};

/// What the stream of a connection over TCP is made for.
pub(crate) const PURPOSE: &str = "mscclpp-port ethernet connection";
/// Posts that may wait when the endpoint does not say.
const DEFAULT_QUEUE: usize = 1024;

/// What a connection over TCP is made of.
pub(crate) struct Settings {
    pub(crate) table: Arc<RegistrationTable>,
    pub(crate) status: Arc<StickyStatus>,
    /// This end's rank and the peer's, where they have one.
    pub(crate) own: Option<usize>,
    pub(crate) rank: Option<usize>,
    /// The context whose memory the peer's side reaches.
    pub(crate) peer: ContextId,
    /// Most posts that may wait.
    pub(crate) queue: Option<usize>,
    pub(crate) deadlines: Deadlines,
    /// The device of this end's kernels: where most payload comes from and goes to.
    pub(crate) device: Device,
    pub(crate) trace: Option<LinkTrace>,
}

/// One end of a connection over TCP. Dropping it sends what is queued (for [`Deadlines::linger`] at
/// most), says goodbye, and ends the I/O thread (within [`Deadlines::teardown`]).
pub(crate) struct EthernetTransport {
    shared: Arc<Shared>,
    peer: ContextId,
    /// Ends the wait for the stream.
    cancel: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

/// What the posting threads and the I/O thread share.
struct Shared {
    /// Empty until the connection is made; the sender counts as stuck until then.
    socket: OnceLock<Socket>,
    sender: Sender,
    table: Arc<RegistrationTable>,
    status: Arc<StickyStatus>,
    rank: Option<usize>,
    deadlines: Deadlines,
    /// Wakes the I/O thread.
    wake: Event,
    /// Wakes who waits for a flush or for room.
    event: Event,
    /// The owner is gone: send what is queued and say goodbye.
    closing: AtomicBool,
    /// Why nothing can be sent any more. What the peer said last, if anything, tells more and is
    /// still to be read.
    broken: OnceLock<String>,
    /// The owner has waited long enough.
    given_up: AtomicBool,
    done: Mutex<bool>,
    done_changed: Condvar,
}

impl EthernetTransport {
    /// A connection over a stream that the I/O thread waits for.
    pub(crate) fn new(arrival: Arrival, settings: Settings) -> Result<Self> {
        let failed = |what: &'static str| move |source| Error::io(what, source);
        let event = || Event::new().map_err(failed("make an eventfd"));
        let gpu_copy = settings.deadlines.gpu_copy;
        // Now, because later a kernel may spin.
        let staging = || match settings.device.kind() {
            DeviceKind::Cpu => Ok(None),
            DeviceKind::Gpu => Staging::new(settings.device, gpu_copy).map(Some),
        };
        let (staging, landing) = (staging()?, staging()?);
        let shared = Arc::new(Shared {
            socket: OnceLock::new(),
            sender: Sender::new(settings.queue.unwrap_or(DEFAULT_QUEUE), staging, gpu_copy)
                .traced(settings.trace),
            table: settings.table,
            status: settings.status,
            rank: settings.rank,
            deadlines: settings.deadlines,
            wake: event()?,
            event: event()?,
            closing: AtomicBool::new(false),
            broken: OnceLock::new(),
            given_up: AtomicBool::new(false),
            done: Mutex::new(false),
            done_changed: Condvar::new(),
        });
        let name = match settings.rank {
            Some(rank) => format!("mscclpp-eth-{rank}"),
            None => "mscclpp-eth".into(),
        };
        let theirs = Arc::clone(&shared);
        let (rank, peer) = (settings.own, settings.rank);
        // It lives as long as the connection, longer than what makes it.
        let span = tracing::debug_span!(parent: None, "connection_io", rank, peer);
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || span.in_scope(|| io::run(&theirs, arrival.wait, landing)))
            .map_err(failed("start a connection's I/O thread"))?;
        Ok(Self {
            shared,
            peer: settings.peer,
            cancel: arrival.cancel,
            thread: Some(thread),
        })
    }

    fn post(&self, post: Post) -> Result<()> {
        self.shared
            .sender
            .post(post)
            .map_err(|error| self.shared.post_error(&error))
    }
}

impl Shared {
    /// Ends the connection with `error`, unless it has ended already.
    fn fail(&self, error: Error) {
        if self.status.fail(error.clone()) {
            tracing::warn!(%error, "a connection has failed");
        }
        self.sender.close();
        self.event.ring_if_armed();
        self.wake.ring();
    }

    fn peer_down(&self, cause: impl Into<String>) {
        self.fail(Error::PeerDown {
            rank: self.rank,
            cause: cause.into(),
        });
    }

    fn pump_failed(&self, error: PumpError) {
        match error {
            PumpError::SourceGone => self.fail(Error::SourceGone { rank: self.rank }),
            PumpError::Device(error) => self.fail(error),
            PumpError::Socket(error) => {
                let _ = self.broken.set(format!("sending failed: {error}"));
                self.sender.set_stuck(true);
                self.wake.ring();
            }
        }
    }

    fn post_error(&self, error: &PostError) -> Error {
        match error {
            PostError::Full => Error::QueueFull {
                rank: self.rank,
                limit: self.sender.limit(),
            },
            PostError::Closed => self.status.error().unwrap_or(Error::PeerDown {
                rank: self.rank,
                cause: "this end is closing".into(),
            }),
        }
    }

    fn shut_down(&self) {
        if let Some(socket) = self.socket.get() {
            socket.shutdown(Shutdown::Both);
        }
    }

    fn wait_done(&self, at_most: Duration) -> bool {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .done_changed
            .wait_timeout_while(done, at_most, |done| !*done);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn set_done(&self) {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.done_changed.notify_all();
    }
}

impl Transport for EthernetTransport {
    fn write(
        &self,
        dst: &RegisteredMemory,
        dst_off: u64,
        src: &RegisteredMemory,
        src_off: u64,
        len: u64,
    ) -> Result<()> {
        self.shared.status.check()?;
        let target = dst.target("write, destination", self.peer, dst_off, len)?;
        let (source, from) = src.source("write, source", src_off, len)?;
        if len == 0 {
            return Ok(());
        }
        self.post(Post::Write {
            target,
            source,
            from,
            len,
        })
    }

    fn signal(&self, token: &RegisteredMemory, off: u64) -> Result<()> {
        self.shared.status.check()?;
        let Target { key, offset } = token.target_word("signal", self.peer, off)?;
        self.post(Post::Frame(Frame::Signal { key, offset }))
    }

    fn accumulate(&self, dst: &RegisteredMemory, off: u64, operand: i64) -> Result<()> {
        self.shared.status.check()?;
        let Target { key, offset } = dst.target_word("accumulate", self.peer, off)?;
        let operand = operand.cast_unsigned();
        self.post(Post::Frame(Frame::Accumulate {
            key,
            offset,
            operand,
        }))
    }

    fn request_flush(&self) -> Result<u64> {
        self.shared.status.check()?;
        self.shared
            .sender
            .post_flush()
            .map_err(|error| self.shared.post_error(&error))
    }

    fn last_post(&self) -> Option<(u16, u64)> {
        self.shared.sender.last_post()
    }

    fn kick(&self) {
        let Shared {
            sender,
            socket,
            wake,
            ..
        } = &*self.shared;
        if let Some(socket) = socket.get()
            && sender.has_posts()
            && !sender.is_stuck()
        {
            match sender.pump(socket) {
                Ok(Pumped::Done) => {}
                Ok(Pumped::Stuck) => {
                    sender.set_stuck(true);
                    wake.ring();
                }
                // Whoever posts looks again; the I/O thread does, too, in case they do not.
                Ok(Pumped::Staging) => wake.ring_if_armed(),
                Err(error) => self.shared.pump_failed(error),
            }
        }
    }

    fn has_room(&self) -> bool {
        // A dead connection has room: what is posted gets its error.
        self.shared.sender.has_room() || self.shared.status.is_failed()
    }

    fn progress(&self) -> Result<Progress> {
        self.kick();
        self.shared.status.check()?;
        let sender = &self.shared.sender;
        Ok(Progress {
            flushed: sender.flushed(),
            busy: sender.busy(),
        })
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        // In this order: a ring from here on is there for the poll.
        self.shared.event.clear();
        self.shared.event.arm();
        Some(self.shared.event.as_fd())
    }

    fn is_connected(&self) -> bool {
        self.shared.socket.get().is_some()
    }

    fn counts(&self) -> LinkCounts {
        let sender = &self.shared.sender;
        LinkCounts {
            doorbells: Some(sender.counts.doorbells.get()),
            completions: Some(sender.flushed()),
            retries: Some(sender.counts.retries.get()),
            queue: None,
        }
    }

    fn abort(&self) {
        self.shared.sender.close();
        self.shared.event.ring_if_armed();
        self.shared.wake.ring();
    }
}

impl Drop for EthernetTransport {
    fn drop(&mut self) {
        self.shared.sender.finish();
        self.shared.closing.store(true, SeqCst);
        self.shared.wake.ring();
        let rank = self.shared.rank;
        let started = Instant::now();
        let give_up = || {
            self.shared.given_up.store(true, SeqCst);
            (self.cancel)();
        };
        // Nothing is left to send on a connection that failed before it was made.
        if self.shared.status.is_failed() && !self.is_connected() {
            give_up();
        }
        let Deadlines {
            linger, teardown, ..
        } = self.shared.deadlines;
        if !self.shared.wait_done(linger) {
            give_up();
            if !self.shared.wait_done(teardown / 2) {
                self.shared.shut_down();
                if !self.shared.wait_done(teardown / 2) {
                    let waited = started.elapsed();
                    tracing::warn!(?rank, ?waited, "a connection's I/O thread does not end");
                    return;
                }
            }
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!(?rank, "a connection's I/O thread has panicked");
        }
    }
}
