// SPDX-License-Identifier: MIT
//! What kernels put, signal, wait and flush through.

use std::fmt;
use std::sync::Arc;

use mscclpp_device::abi::{
    BasePortChannelDeviceHandle, FifoDeviceHandle, PortChannelDeviceHandle, QueueChannel,
    QueueMemory,
};

use crate::connection::{Connection, Ends};
use crate::counters::SemaphoreCounters;
use crate::error::{Error, Result};
use crate::gpu_queue::{self, MemoryTable, QueueEnd};
use crate::memory::RegisteredMemory;
use crate::proxy_service::{Entry, Lane, MemoryId, ProxyService, SemaphoreId, Shared};
use crate::semaphore::{Host2DeviceSemaphore, Semaphore};

const MAKE: &str = "make a port channel";

/// A one-sided channel to the peer of a connection; its device calls name memory ids.
///
/// It keeps alive all that its device handle points to: the FIFO, the semaphore, the connection with
/// its queue. Keep the channel for as long as kernels use the handle.
#[derive(Clone)]
pub struct BasePortChannel {
    behind: Behind,
    id: SemaphoreId,
    semaphore: Arc<Host2DeviceSemaphore>,
}

/// What a channel has besides its semaphore and connection.
#[derive(Clone)]
enum Behind {
    /// The service that it was made of.
    Service {
        shared: Arc<Shared>,
        lane: Arc<Lane>,
    },
    /// Its own memories: the destination has id 0, the source id 1.
    Own(Arc<OwnMemories>),
}

struct OwnMemories {
    table: MemoryTable,
    /// Kept registered for as long as kernels may name them.
    _memories: [RegisteredMemory; 2],
}

impl BasePortChannel {
    /// A channel made without a factory. Kernels wait on `semaphore`; the proxy signals with the
    /// entry `id` of the service, which must belong to the same connection. Kernels that post
    /// themselves signal the peer of `semaphore`; for them this waits until the connection is made.
    ///
    /// # Errors
    /// [`Error::UnknownSemaphore`]; [`Error::InvalidUsage`] if `id` and `semaphore` belong to
    /// different connections, or if the service serves kernels of another device. Where kernels post themselves: the error of the connection, if it
    /// cannot be made; [`Error::InvalidUsage`] if the peer's token cannot be reached on it.
    pub fn new(
        service: &ProxyService,
        id: SemaphoreId,
        semaphore: Arc<Host2DeviceSemaphore>,
    ) -> Result<Self> {
        let shared = service.shared();
        let Entry { lane, .. } = shared.tables.semaphore(id.into())?;
        if !lane.is_of(semaphore.connection()) {
            return Err(Error::InvalidUsage {
                operation: MAKE,
                detail: format!("semaphore {id} of the service belongs to another connection"),
            });
        }
        let behind = Behind::Service {
            shared: Arc::clone(shared),
            lane: Arc::clone(lane),
        };
        Self::made(behind, id, semaphore)
    }

    /// Waits for the connection where kernels post themselves.
    fn made(behind: Behind, id: SemaphoreId, semaphore: Arc<Host2DeviceSemaphore>) -> Result<Self> {
        let channel = Self {
            behind,
            id,
            semaphore,
        };
        let Ends { rank, peer, .. } = channel.connection().ends();
        let _span = tracing::debug_span!("make_channel", rank, peer).entered();
        let device = channel.connection().local_device();
        channel.connection().sticky().show_to(device)?;
        if let Behind::Service { shared, lane } = &channel.behind {
            match channel.queue() {
                None => {
                    shared.proxy.bind(device)?;
                    lane.flush.show_to(device)?;
                }
                // Its kernels look at the FIFO's status only.
                Some(_) => shared.proxy.ring().show_to(device)?,
            }
        }
        if let Some(queue) = channel.queue() {
            // The hand-shake ends by itself, with an error of its own.
            (channel.connection()).wait_connected(queue.ends_by)?;
            if channel.semaphore.remote().as_peers(&queue.ends).size == 0 {
                return Err(Error::InvalidUsage {
                    operation: MAKE,
                    detail: "the connection cannot reach the peer's token".into(),
                });
            }
        }
        Ok(channel)
    }

    /// Id of the semaphore that the proxy signals with; 0 without a proxy.
    pub fn semaphore_id(&self) -> SemaphoreId {
        self.id
    }

    /// The semaphore that kernels wait on.
    pub fn semaphore(&self) -> &Arc<Host2DeviceSemaphore> {
        &self.semaphore
    }

    /// The connection that the channel works over; its [`counters`](Connection::counters) tell what
    /// was posted.
    pub fn connection(&self) -> &Connection {
        self.semaphore.connection()
    }

    /// Signals that have arrived for the channel's `wait`, and those that it has consumed.
    ///
    /// # Errors
    /// Those of [`Buffer::load_u64`](crate::Buffer::load_u64).
    pub fn signals(&self) -> Result<SemaphoreCounters> {
        Ok(SemaphoreCounters {
            semaphore: self.id.into(),
            ..self.semaphore.counters()?
        })
    }

    /// What kernels need: plain data, to be passed as an argument or copied to the device.
    pub fn device_handle(&self) -> BasePortChannelDeviceHandle {
        let id = self.id.into();
        let semaphore = self.semaphore.device_handle();
        let (fifo, flush, memories) = match &self.behind {
            Behind::Service { shared, lane } => (
                shared.proxy.fifo(),
                lane.flush.address(),
                lane.memories.as_ref().map_or(0, MemoryTable::address),
            ),
            Behind::Own(memories) => (FifoDeviceHandle::none(), 0, memories.table.address()),
        };
        match self.queue() {
            None => BasePortChannelDeviceHandle::new(id, semaphore, fifo, flush),
            Some(queue) => {
                let channel = QueueChannel {
                    queue: queue.device_handle(),
                    memories,
                    token: self.semaphore.remote().as_peers(&queue.ends),
                    outbound: self.semaphore.outbound(),
                };
                BasePortChannelDeviceHandle::on_queue(id, semaphore, fifo, channel)
            }
        }
    }

    fn queue(&self) -> Option<&QueueEnd> {
        self.semaphore.connection().link().queue()
    }
}

/// A one-sided channel to the peer of a connection, bound to a destination in the peer's memory and
/// a source in this process.
///
/// It keeps alive all that its device handle points to. Keep the channel for as long as kernels use
/// the handle.
#[derive(Clone)]
pub struct PortChannel {
    base: BasePortChannel,
    dst: MemoryId,
    src: MemoryId,
    bound: Option<Bound>,
}

/// What would end the connection with the first put, as far as it is known before. Empty placeholders
/// may be bound.
fn check_for_proxy(
    connection: &Connection,
    (dst, to): (MemoryId, &RegisteredMemory),
    (src, from): (MemoryId, &RegisteredMemory),
) -> Result<()> {
    let refused = |why| {
        let detail = format!("memory {why}");
        let operation = MAKE;
        Err(Error::InvalidUsage { operation, detail })
    };
    if let (Some(owner), Some(peer)) = (to.owner_rank(), connection.peer())
        && owner != peer
    {
        return refused(format!(
            "{dst}: the destination is memory of rank {owner}, not of rank {peer}"
        ));
    }
    if let Err(why) = to.check_open_over(connection.remote_transport()) {
        return refused(format!("{dst}: {why}"));
    }
    match from.owner_rank() {
        Some(owner) if !from.is_local() => refused(format!(
            "{src}: the source is memory of rank {owner}, not of this process"
        )),
        _ => Ok(()),
    }
}

/// The two memories as kernels name them that post themselves.
#[derive(Clone, Copy)]
struct Bound {
    dst: QueueMemory,
    src: QueueMemory,
}

impl PortChannel {
    /// A channel made without a factory, as [`BasePortChannel::new`], bound to two memories of the
    /// service.
    ///
    /// # Errors
    /// Those of [`BasePortChannel::new`]; [`Error::UnknownMemory`]; [`Error::InvalidUsage`] for a
    /// destination that is another rank's or not open over the connection's transport, and for a source
    /// of another process. Where kernels post themselves:
    /// [`Error::InvalidUsage`] for a destination that the connection cannot reach, because it is an
    /// empty placeholder, another peer's, or not registered for the peer's HCA, and for a source that
    /// is not registered for the own HCA.
    pub fn new(
        service: &ProxyService,
        id: SemaphoreId,
        semaphore: Arc<Host2DeviceSemaphore>,
        dst: MemoryId,
        src: MemoryId,
    ) -> Result<Self> {
        let base = BasePortChannel::new(service, id, semaphore)?;
        let tables = &service.shared().tables;
        let (to, from) = (tables.memory(dst.into())?, tables.memory(src.into())?);
        if base.queue().is_none() {
            check_for_proxy(base.connection(), (dst, to), (src, from))?;
        }
        Self::bound_to(base, (dst, to), (src, from))
    }

    /// A channel without a service, for kernels that post themselves: over the connection of
    /// `semaphore`, from `src` (memory of this process) to `dst` (the peer's). It counts signals for
    /// itself; make a semaphore for each channel. To calls that name memory ids the destination is 0
    /// and the source 1.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] for a connection whose kernels do not post themselves: those need a
    /// [`ProxyService`]. Those of [`new`](Self::new) besides.
    pub fn on_queue(
        semaphore: Semaphore,
        dst: &RegisteredMemory,
        src: &RegisteredMemory,
    ) -> Result<Self> {
        let connection = semaphore.connection();
        let Some(queue) = connection.link().queue() else {
            return Err(Error::InvalidUsage {
                operation: MAKE,
                detail: "the connection has no queue that kernels post to: make the channel of a \
                         ProxyService"
                    .into(),
            });
        };
        let ids = [dst, src].map(RegisteredMemory::clone);
        let table = MemoryTable::new(queue.ends, connection.local_device())?;
        for (id, memory) in (0..).zip(&ids) {
            table.set(id, memory)?;
        }
        let own = OwnMemories {
            table,
            _memories: ids,
        };
        let semaphore = Arc::new(Host2DeviceSemaphore::new(semaphore)?);
        let base = BasePortChannel::made(Behind::Own(Arc::new(own)), 0.into(), semaphore)?;
        Self::bound_to(base, (0.into(), dst), (1.into(), src))
    }

    fn bound_to(
        base: BasePortChannel,
        (dst, to): (MemoryId, &RegisteredMemory),
        (src, from): (MemoryId, &RegisteredMemory),
    ) -> Result<Self> {
        let bound = base.queue().map(|queue| Bound {
            dst: to.as_peers(&queue.ends),
            src: from.as_own(&queue.ends),
        });
        if let (Some(bound), Some(queue)) = (&bound, base.queue()) {
            let gpu_queue::Ends { local, remote, .. } = queue.ends;
            let unusable = |what, why| {
                Err(Error::InvalidUsage {
                    operation: MAKE,
                    detail: format!("the {what} is {why}"),
                })
            };
            if bound.dst.size == 0 {
                let why = format!("not the peer's memory, or not registered for its {remote}");
                return unusable(format!("destination (memory {dst})"), why);
            }
            if bound.src.size == 0 {
                let why = format!("not memory of this context, or not registered for its {local}");
                return unusable(format!("source (memory {src})"), why);
            }
        }
        Ok(Self {
            base,
            dst,
            src,
            bound,
        })
    }

    /// The channel without its memories.
    pub fn base(&self) -> &BasePortChannel {
        &self.base
    }

    /// Id of the destination, the peer's memory.
    pub fn dst(&self) -> MemoryId {
        self.dst
    }

    /// Id of the source, memory of this process.
    pub fn src(&self) -> MemoryId {
        self.src
    }

    /// The connection that the channel works over.
    pub fn connection(&self) -> &Connection {
        self.base.connection()
    }

    /// As [`BasePortChannel::signals`].
    ///
    /// # Errors
    /// As there.
    pub fn signals(&self) -> Result<SemaphoreCounters> {
        self.base.signals()
    }

    /// What kernels need: plain data, to be passed as an argument or copied to the device.
    pub fn device_handle(&self) -> PortChannelDeviceHandle {
        let (base, dst, src) = (self.base.device_handle(), self.dst.into(), self.src.into());
        match self.bound {
            None => PortChannelDeviceHandle::new(base, dst, src),
            Some(bound) => {
                PortChannelDeviceHandle::on_queue(base, (dst, bound.dst), (src, bound.src))
            }
        }
    }
}

impl fmt::Debug for BasePortChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BasePortChannel")
            .field("semaphore", &self.id)
            .field("peer", &self.connection().peer())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PortChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortChannel")
            .field("base", &self.base)
            .field("dst", &self.dst)
            .field("src", &self.src)
            .finish()
    }
}
