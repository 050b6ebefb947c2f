// SPDX-License-Identifier: MIT
//! A proxy and the tables that its triggers name entries of.

mod handler;
mod shared;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mscclpp_bootstrap::{Deadline, Deadlines};
use mscclpp_device::abi::Status;

use crate::communicator::Communicator;
use crate::connection::Connection;
use crate::counters::{ProxyCounters, SemaphoreCounters};
use crate::env::env;
use crate::error::{Error, Result};
use crate::fifo::DEFAULT_FIFO_SIZE;
use crate::memory::RegisteredMemory;
use crate::port_channel::{BasePortChannel, PortChannel};
use crate::proxy::Proxy;
use crate::semaphore::{Host2DeviceSemaphore, Semaphore};
use crate::trace::{ProxyTrace, Tracer};
use handler::Handler;
pub(crate) use shared::{Entry, Lane, Tables};

/// Declares a table index that triggers carry.
macro_rules! table_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);

        impl From<u32> for $name {
            fn from(index: u32) -> Self {
                Self(index)
            }
        }

        impl From<$name> for u32 {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

table_id! {
    /// Index of a semaphore in the table of its [`ProxyService`]: 0, 1, ... in the order of adding,
    /// below 1024.
    SemaphoreId
}
table_id! {
    /// Index of a memory in the table of its [`ProxyService`]: 0, 1, ... in the order of adding,
    /// below 512. It says nothing about ranks.
    MemoryId
}

/// Executes what kernels ask for through [`PortChannel`]s: a FIFO, the thread that serves it, and
/// the tables of semaphores and memories that triggers name.
///
/// All methods may be called from any thread, also while the proxy runs; an id may be used by a
/// kernel as soon as it has been returned.
///
/// No trigger can harm the proxy. One that cannot be executed (an unknown memory id, a range that
/// is out of bounds, an empty placeholder) ends its connection: the connection's status becomes
/// [`Status::QueueError`], kernels that wait on it return that, and [`Connection::status`] tells
/// what was wrong. One whose semaphore id is unknown belongs to no connection; it is counted and
/// kept in [`ProxyService::error`]. Other connections go on.
///
/// Dropping the service stops the proxy. Channels may outlive it: their kernels' calls then return
/// [`Status::Aborted`].
pub struct ProxyService {
    shared: Arc<Shared>,
}

/// What the service and its channels share.
pub(crate) struct Shared {
    pub(crate) proxy: Proxy,
    pub(crate) tables: Arc<Tables>,
    /// Unlike that of any other service of this process.
    number: u64,
}

impl ProxyService {
    /// A service with a FIFO of `fifo_size` slots, and with the deadlines that the environment says. At
    /// most so many device threads should push at once, else some wait for others.
    ///
    /// # Errors
    /// [`Error::FifoSize`] unless the size is a power of two, at most 2^20.
    pub fn new(fifo_size: usize) -> Result<Self> {
        Self::with_deadlines(fifo_size, &env().deadlines)
    }

    /// As [`new`](Self::new), with deadlines of the caller's, such as its
    /// [`Bootstrap::deadlines`](mscclpp_bootstrap::Bootstrap::deadlines), of which it uses
    /// [`Deadlines::proxy_stop`].
    ///
    /// # Errors
    /// As there.
    pub fn with_deadlines(fifo_size: usize, deadlines: &Deadlines) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let tables = Tables::new();
        let handler = Handler::new(Arc::clone(&tables));
        let proxy = Proxy::with_deadlines(fifo_size, handler, deadlines)?;
        Ok(Self {
            shared: Arc::new(Shared {
                proxy,
                tables,
                number: NEXT.fetch_add(1, Ordering::Relaxed),
            }),
        })
    }

    /// A service with [`DEFAULT_FIFO_SIZE`] slots.
    ///
    /// # Errors
    /// None in this version.
    pub fn with_default_size() -> Result<Self> {
        Self::new(DEFAULT_FIFO_SIZE)
    }

    /// Builds a semaphore with the peer of `connection`, on the tag that the connection was made
    /// with, and adds it. The peer must do the same; waits for its half. Without room for one more, it
    /// sends the peer nothing.
    ///
    /// # Errors
    /// Those of [`Communicator::build_semaphore`] and of [`ProxyService::add_semaphore`];
    /// [`Error::UnknownConnection`] if the communicator did not make the connection.
    pub fn build_and_add_semaphore(
        &self,
        communicator: &Communicator,
        connection: &Connection,
    ) -> Result<SemaphoreId> {
        let rank = communicator.remote_rank_of(connection)?;
        let tag = communicator.tag_of(connection)?;
        // Before the peer hears of it: it would have a semaphore, and this rank none.
        self.shared.tables.semaphores.next(1)?;
        let semaphore = communicator.build_semaphore(connection, rank, tag)?.get()?;
        self.add_semaphore(semaphore)
    }

    /// Makes a [`Host2DeviceSemaphore`] of `semaphore` and adds it.
    ///
    /// # Errors
    /// [`Error::TooMany`] beyond 1024 semaphores; those of [`Host2DeviceSemaphore::new`].
    pub fn add_semaphore(&self, semaphore: Semaphore) -> Result<SemaphoreId> {
        self.add_host2device_semaphore(Arc::new(Host2DeviceSemaphore::new(semaphore)?))
    }

    /// Adds a semaphore.
    ///
    /// # Errors
    /// [`Error::TooMany`] beyond 1024 semaphores.
    pub fn add_host2device_semaphore(
        &self,
        semaphore: Arc<Host2DeviceSemaphore>,
    ) -> Result<SemaphoreId> {
        self.shared.tables.add_semaphore(semaphore).map(SemaphoreId)
    }

    /// Adds a memory, as a source or as a destination of puts. An empty placeholder is legal and
    /// takes an id; a trigger that uses it ends its connection. To kernels that post themselves, an
    /// id means nothing on connections that cannot reach its memory; using it there is
    /// [`Status::InvalidArgument`].
    ///
    /// Triggers have 32 bits for offsets and sizes, so of a larger memory they reach the first
    /// 4 GiB. Add [sub-ranges](RegisteredMemory::sub_range) to reach the rest: each gets an id of
    /// its own, and offsets start at its first byte.
    ///
    /// # Errors
    /// [`Error::TooMany`] beyond 512 memories.
    pub fn add_memory(&self, memory: RegisteredMemory) -> Result<MemoryId> {
        self.shared.tables.add_memory(memory).map(MemoryId)
    }

    /// The id that the next added memory will get, if there is room for `count` more.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] for a count of 0; [`Error::TooMany`] if there is no room.
    pub fn next_memory_id(&self, count: u32) -> Result<MemoryId> {
        if count == 0 {
            return Err(Error::InvalidUsage {
                operation: "reserve memory ids",
                detail: "the count must be greater than 0".into(),
            });
        }
        self.shared.tables.memories.next(count).map(MemoryId)
    }

    /// The semaphore with an id.
    ///
    /// # Errors
    /// [`Error::UnknownSemaphore`].
    pub fn semaphore(&self, id: SemaphoreId) -> Result<Arc<Host2DeviceSemaphore>> {
        let entry = self.shared.tables.semaphore(id.into())?;
        Ok(Arc::clone(&entry.semaphore))
    }

    /// A channel over the connection of a semaphore; its calls name memory ids. Where kernels post
    /// themselves, it waits until the connection is made, and needs no proxy.
    ///
    /// # Errors
    /// Those of [`BasePortChannel::new`].
    pub fn base_port_channel(&self, semaphore: SemaphoreId) -> Result<BasePortChannel> {
        let used = self.semaphore(semaphore)?;
        BasePortChannel::new(self, semaphore, used)
    }

    /// A channel over the connection of a semaphore, bound to a destination (the peer's memory) and
    /// a source (memory of this process). Where kernels post themselves, it waits until the
    /// connection is made, and needs no proxy.
    ///
    /// # Errors
    /// Those of [`PortChannel::new`].
    pub fn port_channel(
        &self,
        semaphore: SemaphoreId,
        dst: MemoryId,
        src: MemoryId,
    ) -> Result<PortChannel> {
        let used = self.semaphore(semaphore)?;
        PortChannel::new(self, semaphore, used, dst, src)
    }

    /// Has `tracer` told of each trigger that the proxy executes from now on; of several, the first.
    /// Without, a trigger costs one look at an empty field.
    pub fn trace_into(&self, tracer: &Tracer) {
        let slots = self.shared.proxy.fifo().triggers;
        let trace = &self.shared.tables.trace;
        trace.get_or_init(|| ProxyTrace::new(tracer, slots));
    }

    /// Starts the proxy's thread. A stopped proxy can be started again.
    ///
    /// # Errors
    /// Those of [`Proxy::start`].
    pub fn start_proxy(&self) -> Result<()> {
        let _span = tracing::info_span!("start_proxy", rank = self.rank()).entered();
        self.shared.proxy.start()
    }

    /// Stops the proxy after executing what was pushed until now and finishing what is under way,
    /// within [`Deadlines::proxy_stop`]; then kernels that wait return [`Status::Aborted`]. Stopping a proxy that
    /// does not run is no error.
    ///
    /// # Errors
    /// Those of [`Proxy::stop`].
    pub fn stop_proxy(&self) -> Result<()> {
        self.stop_proxy_by(Deadline::after(self.shared.proxy.stops_within()))
    }

    /// As [`ProxyService::stop_proxy`], with a deadline of the caller's choice.
    ///
    /// # Errors
    /// Those of [`Proxy::stop`].
    pub fn stop_proxy_by(&self, deadline: Deadline) -> Result<()> {
        let _span = tracing::info_span!("stop_proxy", rank = self.rank()).entered();
        self.shared.proxy.stop(deadline)
    }

    /// [`Status::Ok`] while kernels may push; [`Status::Aborted`] once the proxy was stopped or its
    /// thread died.
    pub fn status(&self) -> Status {
        self.shared.proxy.status()
    }

    /// The first trigger that named no semaphore of this service, as an error.
    pub fn error(&self) -> Option<Error> {
        self.shared.tables.strays().0
    }

    /// How many triggers named no semaphore of this service. They were dropped.
    pub fn dropped_triggers(&self) -> u64 {
        self.shared.tables.strays().1
    }

    /// How full the FIFO is, and what has gone through it. What became of its triggers is told by
    /// [`Connection::counters`] of each connection. Reads what others count, and holds nobody up; where
    /// a GPU's kernels push, words are copied from its memory.
    #[must_use]
    pub fn counters(&self) -> ProxyCounters {
        let Shared {
            proxy,
            tables,
            number,
        } = &*self.shared;
        // In this order: none is taken before it is pushed.
        let taken = proxy.ring().tail();
        let pushed = proxy.ring().head();
        ProxyCounters {
            service: *number,
            rank: self.rank(),
            running: proxy.is_running(),
            slots: proxy.fifo_size(),
            pushed,
            taken,
            dropped: self.dropped_triggers(),
            semaphores: (0..tables.semaphores.len())
                .filter_map(|id| self.signals(id))
                .collect(),
        }
    }

    fn signals(&self, id: u32) -> Option<SemaphoreCounters> {
        let entry = self.shared.tables.semaphore(id).ok()?;
        match entry.semaphore.counters() {
            Ok(counters) => Some(SemaphoreCounters {
                semaphore: id,
                ..counters
            }),
            Err(error) => {
                tracing::debug!(%error, semaphore = id, "signals cannot be counted");
                None
            }
        }
    }

    fn rank(&self) -> Option<usize> {
        self.shared.tables.rank()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for ProxyService {
    fn drop(&mut self) {
        if let Err(error) = self.stop_proxy() {
            tracing::warn!(%error, "a service was dropped before all its work was done");
        }
        // Also when it never ran: nobody will serve the FIFO.
        self.shared.proxy.ring().set_aborted();
    }
}

impl fmt::Debug for ProxyService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyService")
            .field("proxy", &self.shared.proxy)
            .field("semaphores", &self.shared.tables.semaphores.len())
            .field("memories", &self.shared.tables.memories.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
