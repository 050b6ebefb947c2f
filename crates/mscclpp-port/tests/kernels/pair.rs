// SPDX-License-Identifier: MIT
//! Two ranks in one process, with a channel each way.

use std::sync::Arc;
use std::thread;

use mscclpp_bootstrap::{Bootstrap, Deadline, TcpBootstrap};
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_port::{
    Buffer, Communicator, Connection, Device, EndpointConfig, Error, MemoryId, PortChannel,
    ProxyService, RegisteredMemory, SemaphoreId, TransportKind,
};

use crate::local::Local;
use crate::support::PATIENCE;

pub(crate) fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

/// One rank's end.
pub(crate) struct End {
    pub(crate) communicator: Communicator,
    pub(crate) buffer: Buffer,
    pub(crate) local: RegisteredMemory,
    pub(crate) remote: RegisteredMemory,
    pub(crate) connection: Connection,
    pub(crate) service: ProxyService,
    pub(crate) semaphore: SemaphoreId,
    pub(crate) src: MemoryId,
    pub(crate) channel: PortChannel,
}

/// Sets rank `me` of two up; the other does the same at the same time.
pub(crate) fn end(communicator: Communicator, bytes: u64) -> Result<End, Error> {
    let peer = 1 - communicator.bootstrap().rank();
    let buffer = Buffer::new(Device::cpu(), bytes)?;
    let local = communicator.register_memory(&buffer, 0..bytes)?;
    let connecting = communicator.connect(EndpointConfig::new(TransportKind::Ethernet), peer, 0)?;
    communicator.send_memory(&local, peer, 0)?;
    let receiving = communicator.recv_memory(peer, 0)?;
    let connection = connecting.get_by(soon())?;
    let remote = receiving.get_by(soon())?;

    let service = ProxyService::with_default_size()?;
    let semaphore = service.build_and_add_semaphore(&communicator, &connection)?;
    let dst = service.add_memory(remote.clone())?;
    let src = service.add_memory(local.clone())?;
    let channel = service.port_channel(semaphore, dst, src)?;
    service.start_proxy()?;
    Ok(End {
        communicator,
        buffer,
        local,
        remote,
        connection,
        service,
        semaphore,
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
}

/// Two ranks that joined over TCP.
pub(crate) fn tcp_world() -> Vec<Arc<dyn Bootstrap>> {
    let ranks = [0, 1].map(|rank| TcpBootstrap::new(rank, 2).unwrap());
    let id = ranks[0].create_unique_id().unwrap();
    thread::scope(|scope| {
        for rank in &ranks {
            scope.spawn(|| rank.initialize(&id, PATIENCE).unwrap());
        }
    });
    ranks
        .into_iter()
        .map(|rank| Arc::new(rank) as Arc<dyn Bootstrap>)
        .collect()
}

/// Both ends, over buffers of some bytes.
pub(crate) fn pair(bytes: u64) -> [End; 2] {
    pair_of(Local::world(2).0, bytes)
}

/// Both ends over a world of two.
pub(crate) fn pair_of(world: Vec<Arc<dyn Bootstrap>>, bytes: u64) -> [End; 2] {
    let communicators = world
        .into_iter()
        .map(|rank| Communicator::new(rank).unwrap());
    let setups: Vec<_> = communicators
        .map(|communicator| thread::spawn(move || end(communicator, bytes)))
        .collect();
    let ends: Vec<End> = setups
        .into_iter()
        .map(|s| s.join().unwrap().unwrap())
        .collect();
    ends.try_into()
        .unwrap_or_else(|_| unreachable!("two threads"))
}
