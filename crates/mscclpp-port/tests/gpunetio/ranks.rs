// SPDX-License-Identifier: MIT
//! Ranks, which are threads, with a service each and channels on its queues.

use std::sync::Arc;
use std::thread;

use mscclpp_bootstrap::Bootstrap;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_port::{Buffer, Device, GpuNetIoService, Hca, PortChannel, RegisteredMemory};

use crate::local::Local;
use crate::world::{nics, soon};

/// Ranks that each run on a thread.
pub(crate) fn ranks<T: Send>(
    world: Vec<Arc<dyn Bootstrap>>,
    run: impl Fn(Arc<dyn Bootstrap>) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (world.into_iter())
            .map(|bootstrap| scope.spawn(move || run(bootstrap)))
            .collect();
        threads
            .into_iter()
            .map(|rank| rank.join().unwrap())
            .collect()
    })
}

/// A rank's end of one queue.
pub(crate) struct End {
    pub(crate) channel: PortChannel,
    pub(crate) buffer: Buffer,
    pub(crate) local: RegisteredMemory,
    pub(crate) remote: RegisteredMemory,
}

impl End {
    /// Its handle, and where its memory lies that begins `offset` behind its buffer's start.
    pub(crate) fn words(&self, offset: u64) -> (PortChannelDeviceHandle, u64) {
        let address = self.buffer.as_ptr().expose_provenance() as u64 + offset;
        (self.channel.device_handle(), address)
    }
}

/// Memory of `bytes` from `offset` of a larger buffer, and a channel with it on a queue. The tag is
/// that of the queue, which both ends number alike.
pub(crate) fn end(
    service: &GpuNetIoService,
    peer: usize,
    index: u32,
    offset: u64,
    bytes: u64,
) -> End {
    let connection = service.connect(peer, index).unwrap();
    let buffer = Buffer::new(Device::cpu(), offset + bytes).unwrap();
    let local = (service.register_memory(&buffer, offset..offset + bytes)).unwrap();
    let remote = service.exchange_memory(peer, &local, index).unwrap();
    let semaphore = service.build_semaphore(&connection, index).unwrap();
    let (remote, semaphore) = (
        remote.get_by(soon()).unwrap(),
        semaphore.get_by(soon()).unwrap(),
    );
    let channel = service.port_channel(semaphore, &remote, &local).unwrap();
    End {
        channel,
        buffer,
        local,
        remote,
    }
}

pub(crate) fn service(
    bootstrap: Arc<dyn Bootstrap>,
    nics: &[mscclpp_softnic::Device],
) -> GpuNetIoService {
    let nic = nics[bootstrap.rank()].clone();
    GpuNetIoService::new(bootstrap, Hca::from(nic), Device::cpu()).unwrap()
}

/// Two ranks with so many queues between them, a channel on each.
pub(crate) fn two(
    queues: i32,
) -> (
    Vec<mscclpp_softnic::Device>,
    Vec<(GpuNetIoService, Vec<End>)>,
) {
    let nics: Vec<_> = nics().into();
    let ends = ranks(Local::world(2).0, |bootstrap| {
        let peer = 1 - bootstrap.rank();
        let service = service(bootstrap, &nics);
        service.setup_full_mesh(queues, 0).unwrap();
        let ends = (0..queues as u32)
            .map(|index| end(&service, peer, index, 4096, 1024))
            .collect();
        (service, ends)
    });
    (nics, ends)
}

/// Something that both ranks do with their services.
pub(crate) fn ranks_on<T: Send>(
    ends: &[(GpuNetIoService, Vec<End>)],
    run: impl Fn(&GpuNetIoService, usize) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (ends.iter().enumerate())
            .map(|(rank, (service, _))| scope.spawn(move || run(service, 1 - rank)))
            .collect();
        threads
            .into_iter()
            .map(|rank| rank.join().unwrap())
            .collect()
    })
}
