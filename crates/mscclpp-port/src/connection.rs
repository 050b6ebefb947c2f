// SPDX-License-Identifier: MIT
//! Connections: one-sided operations on a peer's memory.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mscclpp_bootstrap::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

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

struct Inner {
    link: Box<dyn Transport>,
    status: Arc<StickyStatus>,
    peer: Option<usize>,
    config: EndpointConfig,
    remote: TransportKind,
}

impl Connection {
    pub(crate) fn new(
        link: Box<dyn Transport>,
        status: Arc<StickyStatus>,
        peer: Option<usize>,
        config: EndpointConfig,
        remote: TransportKind,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                link,
                status,
                peer,
                config,
                remote,
            }),
        }
    }

    /// A connection over a transport of the test's own.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn over(
        link: Box<dyn Transport>,
        status: Arc<StickyStatus>,
        (transport, peer): (TransportKind, Option<usize>),
    ) -> Self {
        let config = EndpointConfig::new(transport);
        Self::new(link, status, peer, config, transport)
    }

    /// The transport, for the proxy: it posts without waiting for room.
    pub(crate) fn link(&self) -> &dyn Transport {
        &*self.inner.link
    }

    pub(crate) fn sticky(&self) -> &Arc<StickyStatus> {
        &self.inner.status
    }

    /// Ends the connection with an error, if it has not ended before. The peer sees it go.
    pub(crate) fn fail(&self, error: Error) {
        if self.inner.status.fail(error.clone()) {
            tracing::warn!(%error, "a connection has failed");
            self.inner.link.abort();
        }
    }

    /// Posts a write of `len` bytes from `src + src_off` (local) to `dst + dst_off` (the peer's).
    /// Waits only while the connection's queue is full, until it has room or the connection fails.
    /// Ranges of any size are written; there is no 32-bit limit.
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
        self.post(|| self.inner.link.write(dst, dst_off, src, src_off, len))
    }

    /// Posts `+= 1` on the 64-bit word at `token + off`, after everything posted before. What
    /// MSCCL++ calls `updateAndSync`, without the old value. Waits as [`write`](Self::write).
    ///
    /// # Errors
    /// As [`write`](Self::write); [`Error::Misaligned`].
    pub fn signal(&self, token: &RegisteredMemory, off: u64) -> Result<()> {
        self.post(|| self.inner.link.signal(token, off))
    }

    /// Posts `+= operand`, modulo 2^64, on the 64-bit word at `dst + off`. Over Ethernet it is atomic
    /// with respect to everybody else's accumulates, the owner's included; over InfiniBand and RoCE see
    /// above. Waits as [`write`](Self::write).
    ///
    /// # Errors
    /// As [`write`](Self::write); [`Error::Misaligned`].
    pub fn accumulate(&self, dst: &RegisteredMemory, off: u64, operand: i64) -> Result<()> {
        self.post(|| self.inner.link.accumulate(dst, off, operand))
    }

    /// Waits until everything posted before has been executed at the peer. What others post
    /// meanwhile does not delay it.
    ///
    /// # Errors
    /// [`Error::Timeout`] when the deadline passes; the posts go on. The sticky error.
    pub fn flush(&self, deadline: Deadline) -> Result<()> {
        let mut ticket = 0;
        self.post(|| {
            ticket = self.inner.link.request_flush()?;
            Ok(())
        })?;
        self.wait(deadline, "flush", |progress| progress.flushed >= ticket)
    }

    /// Waits until the connection is made. Nothing else needs this: posts made before are queued, and
    /// a port channel whose kernels post themselves waits for it when it is made.
    ///
    /// # Errors
    /// [`Error::Timeout`]; the sticky error, which tells why the connection could not be made.
    pub fn wait_connected(&self, deadline: Deadline) -> Result<()> {
        self.wait(deadline, "connect", |_| self.inner.link.is_connected())
    }

    /// The error that ended the connection, if it has ended.
    #[must_use]
    pub fn status(&self) -> Option<Error> {
        self.inner.status.error()
    }

    /// The rank at the other end, where it has one.
    #[must_use]
    pub fn peer(&self) -> Option<usize> {
        self.inner.peer
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

    /// Posts and starts; waits for room if there is none.
    fn post(&self, mut post: impl FnMut() -> Result<()>) -> Result<()> {
        let link = self.link();
        loop {
            match post() {
                Ok(()) => return link.kick(),
                // Room appears, or a peer that does not read fails the connection in time.
                Err(Error::QueueFull { .. }) => {
                    self.wait(Deadline::after(FOREVER), "post", |_| link.has_room())?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn wait(
        &self,
        deadline: Deadline,
        operation: &str,
        mut done: impl FnMut(Progress) -> bool,
    ) -> Result<()> {
        let link = self.link();
        let mut idle = Idle::new();
        loop {
            if done(link.progress()?) {
                return Ok(());
            }
            if deadline.expired() {
                return Err(Error::Timeout {
                    operation: operation.into(),
                    rank: self.inner.peer,
                    waited: deadline.budget(),
                });
            }
            let mut parked = Ok(false);
            idle.pause(|nap| parked = self.park(nap, &mut done));
            if parked? {
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

/// Longer than any transport lets a peer stall.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.inner.peer)
            .field("transport", &self.inner.config.transport)
            .field("status", &self.inner.status)
            .finish_non_exhaustive()
    }
}
