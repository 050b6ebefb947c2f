// SPDX-License-Identifier: MIT
//! What kernels put, signal, wait and flush through.

use std::fmt;
use std::sync::Arc;

use mscclpp_device::abi::{BasePortChannelDeviceHandle, PortChannelDeviceHandle};

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::flush::FlushWord;
use crate::proxy_service::{Entry, MemoryId, ProxyService, SemaphoreId, Shared};
use crate::semaphore::Host2DeviceSemaphore;

/// A one-sided channel to the peer of a connection; its device calls name memory ids.
///
/// It keeps alive all that its device handle points to: the FIFO, the semaphore, the connection.
/// Keep the channel for as long as kernels use the handle.
#[derive(Clone)]
pub struct BasePortChannel {
    service: Arc<Shared>,
    id: SemaphoreId,
    semaphore: Arc<Host2DeviceSemaphore>,
    flush: Arc<FlushWord>,
}

impl BasePortChannel {
    /// A channel made without a factory. Kernels wait on `semaphore`; the proxy signals with the
    /// entry `id` of the service, which must belong to the same connection.
    ///
    /// # Errors
    /// [`Error::UnknownSemaphore`]; [`Error::InvalidUsage`] if `id` and `semaphore` belong to
    /// different connections.
    pub fn new(
        service: &ProxyService,
        id: SemaphoreId,
        semaphore: Arc<Host2DeviceSemaphore>,
    ) -> Result<Self> {
        let shared = service.shared();
        let Entry { lane, .. } = shared.tables.semaphore(id.into())?;
        if !lane.is_of(semaphore.connection()) {
            return Err(Error::InvalidUsage {
                operation: "make a port channel",
                detail: format!("semaphore {id} of the service belongs to another connection"),
            });
        }
        Ok(Self {
            flush: Arc::clone(&lane.flush),
            service: Arc::clone(shared),
            id,
            semaphore,
        })
    }

    /// Id of the semaphore that the proxy signals with.
    pub fn semaphore_id(&self) -> SemaphoreId {
        self.id
    }

    /// The semaphore that kernels wait on.
    pub fn semaphore(&self) -> &Arc<Host2DeviceSemaphore> {
        &self.semaphore
    }

    /// The connection that the channel works over.
    pub fn connection(&self) -> &Connection {
        self.semaphore.connection()
    }

    /// What kernels need: plain data, to be passed as an argument or copied to the device.
    pub fn device_handle(&self) -> BasePortChannelDeviceHandle {
        BasePortChannelDeviceHandle::new(
            self.id.into(),
            self.semaphore.device_handle(),
            self.service.proxy.fifo(),
            self.flush.address(),
        )
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
}

impl PortChannel {
    /// A channel made without a factory, as [`BasePortChannel::new`], bound to two memories of the
    /// service.
    ///
    /// # Errors
    /// Those of [`BasePortChannel::new`]; [`Error::UnknownMemory`].
    pub fn new(
        service: &ProxyService,
        id: SemaphoreId,
        semaphore: Arc<Host2DeviceSemaphore>,
        dst: MemoryId,
        src: MemoryId,
    ) -> Result<Self> {
        let base = BasePortChannel::new(service, id, semaphore)?;
        for memory in [dst, src] {
            service.shared().tables.memory(memory.into())?;
        }
        Ok(Self { base, dst, src })
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

    /// What kernels need: plain data, to be passed as an argument or copied to the device.
    pub fn device_handle(&self) -> PortChannelDeviceHandle {
        PortChannelDeviceHandle::new(self.base.device_handle(), self.dst.into(), self.src.into())
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
