// SPDX-License-Identifier: MIT
//! Counting semaphores between two ranks.
//!
//! Each side of a connection owns a *token*, a u64 that only the peer's signals raise, and counts
//! what it has *expected*. One signal adds exactly 1 to the peer's token; one wait, or one poll
//! that succeeds, consumes exactly 1. Signals are counted: none is lost, none is merged, and of
//! several threads that wait each consumes its own. A signal is a release of everything that was
//! written on its connection before, and a wait acquires it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use mscclpp_bootstrap::Deadline;
use mscclpp_device::abi::{AbiHeader, Host2DeviceSemaphoreDeviceHandle, SignalMode};

use crate::buffer::Buffer;
use crate::connection::{Connection, Ends};
use crate::counters::SemaphoreCounters;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::idle::Idle;
use crate::memory::{RegisteredMemory, SignalMemory};

/// Bytes of a token.
const TOKEN: u64 = 8;

/// Both tokens of a semaphore, and the connection between them.
///
/// Made by [`Communicator::build_semaphore`](crate::Communicator::build_semaphore). It counts
/// nothing by itself: make a [`Host2DeviceSemaphore`] or a [`Host2HostSemaphore`] of it. Two of
/// those made of one `Semaphore` would share its token and count apart, so make one.
///
/// Clones share it. Once all are dropped, signals of the peer are refused, which ends the connection on both sides.
#[derive(Clone)]
pub struct Semaphore {
    connection: Connection,
    own: SignalMemory,
    remote: RegisteredMemory,
}

impl std::fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Semaphore")
            .field("device", &self.device())
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

impl Semaphore {
    pub(crate) fn new(connection: Connection, own: SignalMemory, remote: RegisteredMemory) -> Self {
        Self {
            connection,
            own,
            remote,
        }
    }

    /// The connection that its signals travel on.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The device whose memory holds the local token.
    pub fn device(&self) -> Device {
        self.own.token().device()
    }

    fn signal(&self) -> Result<()> {
        self.connection.signal(&self.remote, 0)
    }

    fn inbound(&self) -> Result<u64> {
        self.own.token().load_u64(0)
    }
}

/// A semaphore that host threads (the proxy) signal and device threads wait on: what a
/// [`PortChannel`](crate::PortChannel) uses.
///
/// The [device handle](Host2DeviceSemaphore::device_handle) is plain data and valid as long as this
/// object lives.
pub struct Host2DeviceSemaphore {
    semaphore: Semaphore,
    expected: Buffer,
    /// How many signals kernels have sent, where they write the count themselves.
    outbound: Option<Buffer>,
}

impl Host2DeviceSemaphore {
    /// A semaphore that has seen no signal, with its own count of expected ones in memory of the
    /// token's device.
    ///
    /// # Errors
    /// Those of [`Buffer::new`].
    pub fn new(semaphore: Semaphore) -> Result<Self> {
        semaphore.connection.sticky().show_to(semaphore.device())?;
        let expected = Buffer::new(semaphore.device(), TOKEN)?;
        let counts = (semaphore.connection.link().queue())
            .is_some_and(|queue| queue.signal_mode == SignalMode::InlineWrite);
        let outbound = (counts.then(|| Buffer::new(semaphore.device(), TOKEN))).transpose()?;
        Ok(Self {
            semaphore,
            expected,
            outbound,
        })
    }

    /// Raises the peer's token by one, after all that was posted on the connection before.
    ///
    /// # Errors
    /// The connection's, when it has failed.
    pub fn signal(&self) -> Result<()> {
        self.semaphore.signal()
    }

    /// The connection that its signals travel on.
    pub fn connection(&self) -> &Connection {
        &self.semaphore.connection
    }

    /// What kernels need to wait. Its status word is the connection's.
    pub fn device_handle(&self) -> Host2DeviceSemaphoreDeviceHandle {
        Host2DeviceSemaphoreDeviceHandle {
            abi: AbiHeader::of::<Host2DeviceSemaphoreDeviceHandle>(),
            inbound_token: self.semaphore.own.token().address(),
            expected_inbound_token: self.expected.address(),
            status: self.connection().sticky().address(),
        }
    }

    /// Signals that have arrived, and those that kernels have consumed. Two words are copied where the
    /// token is in a GPU's memory.
    ///
    /// # Errors
    /// Those of [`Buffer::load_u64`].
    pub fn counters(&self) -> Result<SemaphoreCounters> {
        // In this order: none is consumed before it has arrived.
        let consumed = self.expected.load_u64(0)?;
        let received = self.semaphore.inbound()?;
        let Ends { peer, number, .. } = self.connection().ends();
        Ok(SemaphoreCounters {
            semaphore: 0,
            connection: number,
            peer,
            received,
            consumed,
        })
    }

    /// Address of the count of signals sent, where kernels write it to the peer's token; else 0.
    pub(crate) fn outbound(&self) -> u64 {
        self.outbound.as_ref().map_or(0, Buffer::address)
    }

    /// The registration of the peer's token.
    pub(crate) fn remote(&self) -> &RegisteredMemory {
        &self.semaphore.remote
    }
}

/// A semaphore that host threads signal and host threads wait on. May be used from several threads.
pub struct Host2HostSemaphore {
    semaphore: Semaphore,
    expected: AtomicU64,
}

impl Host2HostSemaphore {
    /// A semaphore that has seen no signal.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] unless the token is in host memory.
    pub fn new(semaphore: Semaphore) -> Result<Self> {
        if semaphore.device().kind() != DeviceKind::Cpu {
            return Err(Error::InvalidUsage {
                operation: "make a host-to-host semaphore",
                detail: format!("its connection belongs to {}", semaphore.device()),
            });
        }
        Ok(Self {
            semaphore,
            expected: AtomicU64::new(0),
        })
    }

    /// The connection that its signals travel on.
    pub fn connection(&self) -> &Connection {
        &self.semaphore.connection
    }

    /// Raises the peer's token by one, after all that was posted on the connection before.
    ///
    /// # Errors
    /// The connection's, when it has failed.
    pub fn signal(&self) -> Result<()> {
        self.semaphore.signal()
    }

    /// Consumes one signal if one has arrived.
    ///
    /// # Errors
    /// None for a semaphore in host memory.
    pub fn poll(&self) -> Result<bool> {
        let inbound = self.semaphore.inbound()?;
        // Advanced on success only, by compare-and-swap: no two threads consume one signal.
        let taken = self
            .expected
            .try_update(Ordering::AcqRel, Ordering::Acquire, |expected| {
                (inbound > expected).then_some(expected + 1)
            });
        Ok(taken.is_ok())
    }

    /// Waits for one signal and consumes it. A signal that has arrived wins over a connection that
    /// has failed since.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline: nothing was consumed. The connection's error, for
    /// example [`Error::PeerDown`], once it has failed.
    pub fn wait(&self, deadline: Deadline) -> Result<()> {
        if self.poll()? {
            return Ok(());
        }
        let Ends { rank, peer, .. } = self.connection().ends();
        let _span = tracing::trace_span!("wait", rank, peer, operation = "signal").entered();
        let started = Instant::now();
        let ended = self.keep_waiting(deadline);
        self.connection().waited(started.elapsed());
        ended
    }

    fn keep_waiting(&self, deadline: Deadline) -> Result<()> {
        let mut idle = Idle::new();
        loop {
            // Before the token: what arrived before the failure is seen by the poll after it.
            let failed = self.connection().status();
            if self.poll()? {
                return Ok(());
            }
            if let Some(error) = failed {
                return Err(error);
            }
            let remaining = deadline.remaining();
            if remaining.is_zero() {
                return Err(Error::Timeout {
                    operation: "waiting for a signal".into(),
                    rank: self.connection().peer(),
                    waited: deadline.budget(),
                });
            }
            idle.pause(|nap| std::thread::sleep(nap.min(remaining)));
        }
    }
}
