// SPDX-License-Identifier: MIT
//! One rank's end of a channel, as most tests want it.
#![allow(dead_code, reason = "each test uses a part")]

use mscclpp_bootstrap::Deadline;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_port::{
    Buffer, Communicator, Connection, Device, EndpointConfig, Error, MemoryId, MemoryOptions,
    PortChannel, ProxyService, RegisteredMemory, SemaphoreId,
};

/// A channel, and all that it is made of.
pub(crate) struct End {
    pub(crate) communicator: Communicator,
    pub(crate) buffer: Buffer,
    pub(crate) local: RegisteredMemory,
    pub(crate) remote: RegisteredMemory,
    pub(crate) connection: Connection,
    pub(crate) service: ProxyService,
    pub(crate) semaphore: SemaphoreId,
    pub(crate) dst: MemoryId,
    pub(crate) src: MemoryId,
    pub(crate) channel: PortChannel,
}

/// Sets one rank up towards another, which does the same at the same time. The proxy is not started.
pub(crate) fn end(
    communicator: Communicator,
    peer: usize,
    bytes: u64,
    (config, options): (EndpointConfig, MemoryOptions),
    deadline: Deadline,
) -> Result<End, Error> {
    let buffer = Buffer::new(Device::cpu(), bytes)?;
    let local = communicator.register_memory_with(&buffer, 0..bytes, options)?;
    let connecting = communicator.connect(config, peer, 0)?;
    communicator.send_memory(&local, peer, 0)?;
    let receiving = communicator.recv_memory(peer, 0)?;
    let connection = connecting.get_by(deadline)?;
    let remote = receiving.get_by(deadline)?;

    let service = ProxyService::with_default_size()?;
    let semaphore = service.build_and_add_semaphore(&communicator, &connection)?;
    let dst = service.add_memory(remote.clone())?;
    let src = service.add_memory(local.clone())?;
    let channel = service.port_channel(semaphore, dst, src)?;
    Ok(End {
        communicator,
        buffer,
        local,
        remote,
        connection,
        service,
        semaphore,
        dst,
        src,
        channel,
    })
}

impl End {
    pub(crate) fn handle(&self) -> PortChannelDeviceHandle {
        self.channel.device_handle()
    }

    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.read(offset, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn address(&self) -> u64 {
        self.buffer.as_ptr().expose_provenance() as u64
    }
}
