// SPDX-License-Identifier: MIT
//! Connections: one-sided operations on a peer's memory.

mod counted;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use mscclpp_bootstrap::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::counters::{PauseCells, PostCells};
use crate::device::Device;
use crate::endpoint::EndpointConfig;
use crate::error::{Error, Result};
use crate::idle::Idle;
use crate::memory::RegisteredMemory;
use crate::status::StickyStatus;
use crate::transport::{Progress, Transport, TransportKind};

/// One end of a connection to a peer.
///
/// Operations execute at the peer in the order in which they were posted here; a signal or an
/// accumulate makes everything posted before it visible to whoever sees its value. Inside one write
/// there is no order between 8-byte words; an aligned word is never torn in a write of less than
/// 16 KiB, and in a longer one its half at the lower address comes first. Between connections there
/// is no order. The source of a write may be read until a flush that was
/// requested after it is done.
///
/// Over CUDA IPC ([`TransportKind::CudaIpc`]) the source must be memory that GPUs reach, signals go to
/// semaphores' tokens only, and accumulates are [`Error::Unsupported`]. How bytes of one write land is
/// the GPU's business; aligned words are not torn.
///
/// Over InfiniBand and RoCE (`IB0` to `IB7`) the source must be registered for this end's transport, and
/// the HCAs decide how bytes land: inside one write there is no order between words, nor between two
/// writes; all have landed before a later signal or accumulate. A write that was posted after a signal
/// may be seen before it. Accumulates and signals are atomic among those of one HCA of the memory's
/// owner, not against another HCA's, or the host's atomics, on the same word. In
/// [`IbMode::HostNoAtomic`](crate::IbMode::HostNoAtomic) signals go to the first word of a registration,
/// and accumulates are [`Error::Unsupported`]; with payload in a GPU's memory nothing makes sure yet
/// that it has landed before the host raises the token. A flush says that the peer's HCA has taken
/// everything.
///
/// A connection on whose queue kernels post themselves ([`IbMode::GpuNetIo`](crate::IbMode::GpuNetIo))
/// leaves nothing to the host: its operations here are [`Error::Unsupported`]. Kernels get at it
/// through a [`PortChannel`](crate::PortChannel). Inside its puts there is no order between 8-byte
/// words, and none between two puts; none of them is torn; a signal comes after all of them. Dropping
/// it stops the queue at once.
///
/// The first error that ends the connection stays: every later operation returns it, and kernels
/// that wait on the connection are released. Operations with bad arguments return their error and
/// change nothing.
///
/// Clones share the connection; all methods may be called from any thread. Dropping the last clone
/// sends what was posted, tells the peer goodbye and waits for neither for more than some seconds;
/// whoever needs to know that posts were executed flushes first.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    /// There until the drop.
    link: Option<Box<dyn Transport>>,
    status: Arc<StickyStatus>,
    ends: Ends,
    config: EndpointConfig,
    remote: TransportKind,
    /// What callers of the connection have posted, and proxies that are gone.
    posts: PostCells,
    /// What each proxy posts.
    proxies: Mutex<Vec<Arc<PostCells>>>,
    waits: PauseCells,
}

/// Who has a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    /// The rank at this end, where it has one.
    pub(crate) rank: Option<usize>,
    /// The rank at the other end, where it has one.
    pub(crate) peer: Option<usize>,
    /// Unlike that of any other connection of this process.
    pub(crate) number: u64,
}

impl Ends {
    pub(crate) fn new(rank: Option<usize>, peer: Option<usize>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { rank, peer, number }
    }
}

impl Connection {
    pub(crate) fn new(
        link: Box<dyn Transport>,
        status: Arc<StickyStatus>,
        ends: Ends,
        config: EndpointConfig,
        remote: TransportKind,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                link: Some(link),
                status,
                ends,
                config,
                remote,
                posts: PostCells::default(),
                proxies: Mutex::default(),
                waits: PauseCells::default(),
            }),
        }
    }

    /// A connection that others still have.
    pub(crate) fn of(inner: &Weak<Inner>) -> Option<Self> {
        inner.upgrade().map(|inner| Self { inner })
    }

    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.inner)
    }

    /// A connection over a transport of the test's own.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn over(
        link: Box<dyn Transport>,
        status: Arc<StickyStatus>,
        (transport, peer): (TransportKind, Option<usize>),
    ) -> Self {
        let config = EndpointConfig::new(transport);
        Self::new(link, status, Ends::new(None, peer), config, transport)
    }

    /// The transport, for the proxy: it posts without waiting for room.
    pub(crate) fn link(&self) -> &dyn Transport {
        match &self.inner.link {
            Some(link) => &**link,
            None => unreachable!("only the drop takes it"),
        }
    }

    pub(crate) fn ends(&self) -> Ends {
        self.inner.ends
    }

    pub(crate) fn sticky(&self) -> &Arc<StickyStatus> {
        &self.inner.status
    }

    /// Ends the connection with an error, if it has not ended before. The peer sees it go.
    pub(crate) fn fail(&self, error: Error) {
        if self.inner.status.fail(error.clone()) {
            tracing::warn!(%error, "a connection has failed");
            self.link().abort();
        }
    }

    /// Posts a write of `len` bytes from `src + src_off` (local) to `dst + dst_off` (the peer's).
    /// Waits only while the connection's queue is full, until it has room or the connection fails.
    /// Ranges of any size are written; there is no 32-bit limit. What becomes of it,
    /// [`flush`](Self::flush) and [`status`](Self::status) tell: also a peer that refuses it at once.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] and [`Error::InvalidUsage`] for what cannot be written; else the
    /// connection's sticky error.
    pub fn write(
        &self,
        dst: &RegisteredMemory,
        dst_off: u64,
        src: &RegisteredMemory,
        src_off: u64,
        len: u64,
    ) -> Result<()> {
        self.post(None, || self.link().write(dst, dst_off, src, src_off, len))?;
        self.inner.posts.puts.add(1);
        self.inner.posts.bytes.add(len);
        Ok(())
    }

    /// Posts `+= 1` on the 64-bit word at `token + off`, after everything posted before. What
    /// MSCCL++ calls `updateAndSync`, without the old value. Waits as [`write`](Self::write).
    ///
    /// # Errors
    /// As [`write`](Self::write); [`Error::Misaligned`].
    pub fn signal(&self, token: &RegisteredMemory, off: u64) -> Result<()> {
        self.post(None, || self.link().signal(token, off))?;
        self.inner.posts.signals.add(1);
        Ok(())
    }

    /// Posts `+= operand`, modulo 2^64, on the 64-bit word at `dst + off`. Over Ethernet it is atomic
    /// with respect to everybody else's accumulates, the owner's included; over InfiniBand and RoCE see
    /// above. Waits as [`write`](Self::write).
    ///
    /// # Errors
    /// As [`write`](Self::write); [`Error::Misaligned`].
    pub fn accumulate(&self, dst: &RegisteredMemory, off: u64, operand: i64) -> Result<()> {
        self.post(None, || self.link().accumulate(dst, off, operand))?;
        self.inner.posts.accumulates.add(1);
        Ok(())
    }

    /// Waits until everything posted before has been executed at the peer. What others post
    /// meanwhile does not delay it.
    ///
    /// # Errors
    /// [`Error::Timeout`] when the deadline passes, also while the queue is full; the posts go on. The
    /// sticky error.
    pub fn flush(&self, deadline: Deadline) -> Result<()> {
        let mut ticket = 0;
        self.post(Some(deadline), || {
            ticket = self.link().request_flush()?;
            Ok(())
        })?;
        let Inner { posts, waits, .. } = &*self.inner;
        posts.flushes.add(1);
        self.wait((deadline, "flush"), waits, |progress| {
            progress.flushed >= ticket
        })?;
        posts.flushes_done.add(1);
        Ok(())
    }

    /// Waits until the connection is made. Nothing else needs this: posts made before are queued, and
    /// a port channel whose kernels post themselves waits for it when it is made.
    ///
    /// # Errors
    /// [`Error::Timeout`]; the sticky error, which tells why the connection could not be made.
    pub fn wait_connected(&self, deadline: Deadline) -> Result<()> {
        let connected = |_| self.link().is_connected();
        self.wait((deadline, "connect"), &self.inner.waits, connected)
    }

    /// The error that ended the connection, if it has ended.
    #[must_use]
    pub fn status(&self) -> Option<Error> {
        self.inner.status.error()
    }

    /// The rank at the other end, where it has one.
    #[must_use]
    pub fn peer(&self) -> Option<usize> {
        self.inner.ends.peer
    }

    /// The transport of this end.
    #[must_use]
    pub fn transport(&self) -> TransportKind {
        self.inner.config.transport
    }

    /// The transport of the other end; differs only between InfiniBand devices.
    #[must_use]
    pub fn remote_transport(&self) -> TransportKind {
        self.inner.remote
    }

    /// The device of this end's kernels.
    #[must_use]
    pub fn local_device(&self) -> Device {
        self.inner.config.device
    }

    /// How many posts may wait, as asked for; `None` if that was left to the transport.
    #[must_use]
    pub fn max_write_queue_size(&self) -> Option<usize> {
        self.inner.config.max_write_queue_size
    }

    /// Posts and starts; waits for room if there is none, until a deadline if there is one.
    fn post(&self, deadline: Option<Deadline>, mut post: impl FnMut() -> Result<()>) -> Result<()> {
        let link = self.link();
        loop {
            match post() {
                Ok(()) => {
                    link.kick();
                    return Ok(());
                }
                // Room appears, or a peer that does not read fails the connection in time.
                Err(Error::QueueFull { .. }) => {
                    let limit = match deadline {
                        Some(deadline) => (deadline, "flush"),
                        None => (Deadline::after(FOREVER), "post"),
                    };
                    self.wait(limit, &self.inner.posts.backpressure, |_| link.has_room())?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until something is done; counts that, if it was not done at once.
    fn wait(
        &self,
        (deadline, operation): (Deadline, &'static str),
        counted: &PauseCells,
        mut done: impl FnMut(Progress) -> bool,
    ) -> Result<()> {
        if done(self.link().progress()?) {
            return Ok(());
        }
        let Ends { rank, peer, .. } = self.inner.ends;
        let _span = tracing::trace_span!("wait", rank, peer, operation).entered();
        let started = Instant::now();
        let ended = self.keep_waiting(deadline, operation, done);
        counted.add(started.elapsed());
        ended
    }

    fn keep_waiting(
        &self,
        deadline: Deadline,
        operation: &str,
        mut done: impl FnMut(Progress) -> bool,
    ) -> Result<()> {
        let link = self.link();
        let mut idle = Idle::new();
        loop {
            if deadline.expired() {
                return Err(Error::Timeout {
                    operation: operation.into(),
                    rank: self.inner.ends.peer,
                    waited: deadline.budget(),
                });
            }
            let mut parked = Ok(false);
            idle.pause(|nap| parked = self.park(nap, &mut done));
            if parked? || done(link.progress()?) {
                return Ok(());
            }
        }
    }

    /// Naps until the transport rings; whether `done` was found when the bell was armed.
    fn park(&self, nap: Duration, done: &mut impl FnMut(Progress) -> bool) -> Result<bool> {
        let link = self.link();
        let Some(bell) = link.poll_fd() else {
            std::thread::sleep(nap);
            return Ok(false);
        };
        if done(link.progress()?) {
            return Ok(true);
        }
        let time = Timespec {
            tv_sec: nap.as_secs().cast_signed(),
            tv_nsec: nap.subsec_nanos().into(),
        };
        let mut fds = [PollFd::from_borrowed_fd(bell, PollFlags::IN)];
        if poll(&mut fds, Some(&time)).is_err() {
            std::thread::sleep(nap);
        }
        Ok(false)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Ends { rank, peer, .. } = self.ends;
        let transport = tracing::field::display(self.config.transport);
        let _span = tracing::debug_span!("disconnect", rank, peer, transport).entered();
        drop(self.link.take());
    }
}

/// Longer than any transport lets a peer stall.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.inner.ends.peer)
            .field("transport", &self.inner.config.transport)
            .field("status", &self.inner.status)
            .finish_non_exhaustive()
    }
}
