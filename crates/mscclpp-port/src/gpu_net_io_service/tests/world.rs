// SPDX-License-Identifier: MIT
//! Ranks on loopback, each with a NIC in software.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{Bootstrap, Deadline, TcpBootstrap};
use mscclpp_softnic::{Device as Nic, DeviceConfig, LiveObjects};

use crate::device::Device;
use crate::error::Error;
use crate::gpu_net_io_service::{GpuNetIoConfig, GpuNetIoService, QueueCounts};
use crate::gpu_queue::Hca;

/// Longer than anything takes that works.
pub(super) const PATIENCE: Duration = Duration::from_secs(40);

/// All ranks of a world, joined.
pub(super) fn world(size: usize) -> Vec<Arc<dyn Bootstrap>> {
    let root = TcpBootstrap::new(0, size).unwrap();
    let id = root.create_unique_id_at([127, 0, 0, 1].into()).unwrap();
    let joining: Vec<_> = (1..size)
        .map(|rank| {
            let id = id.clone();
            thread::spawn(move || {
                let bootstrap = TcpBootstrap::new(rank, size).unwrap();
                bootstrap.initialize(&id, PATIENCE).unwrap();
                bootstrap
            })
        })
        .collect();
    root.initialize(&id, PATIENCE).unwrap();
    let others = joining.into_iter().map(|rank| rank.join().unwrap());
    std::iter::once(root)
        .chain(others)
        .map(|rank| Arc::new(rank) as Arc<dyn Bootstrap>)
        .collect()
}

pub(super) fn nics(count: usize) -> Vec<Nic> {
    (0..count).map(|_| nic(DeviceConfig::default())).collect()
}

pub(super) fn nic(config: DeviceConfig) -> Nic {
    Nic::open("soft0", config).unwrap()
}

/// A service that behaves.
pub(super) fn service(bootstrap: &Arc<dyn Bootstrap>, nic: &Nic) -> GpuNetIoService {
    service_on(bootstrap, Hca::from(nic.clone()))
}

/// The same on an HCA.
pub(super) fn service_on(bootstrap: &Arc<dyn Bootstrap>, hca: Hca) -> GpuNetIoService {
    let config = GpuNetIoConfig {
        gid_index: 0,
        ..GpuNetIoConfig::default()
    };
    GpuNetIoService::with_config(Arc::clone(bootstrap), hca, Device::cpu(), config).unwrap()
}

/// What one rank does in a setup.
pub(super) struct Part<'a> {
    pub(super) service: &'a GpuNetIoService,
    pub(super) counts: QueueCounts<'a>,
    pub(super) comes_after: Duration,
}

/// What all ranks get from a setup, each on a thread of its own.
pub(super) fn set_up(parts: &[Part<'_>], tag: u32, timeout: Duration) -> Vec<Result<(), Error>> {
    let ends = try_set_up(parts, tag, timeout);
    ends.into_iter().map(|end| end.unwrap()).collect()
}

/// What all ranks get from a setup, or how they panicked.
pub(super) fn try_set_up(
    parts: &[Part<'_>],
    tag: u32,
    timeout: Duration,
) -> Vec<thread::Result<Result<(), Error>>> {
    thread::scope(|scope| {
        let ranks: Vec<_> = (parts.iter())
            .map(|part| {
                scope.spawn(move || {
                    thread::sleep(part.comes_after);
                    (part.service).setup_by(part.counts, tag, Deadline::after(timeout))
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join()).collect()
    })
}

/// Sets services up with so many queues between every two ranks.
pub(super) fn set_up_alike(services: &[GpuNetIoService], count: i32) {
    let parts: Vec<_> = (services.iter())
        .map(|service| Part {
            service,
            counts: QueueCounts::Uniform(count),
            comes_after: Duration::ZERO,
        })
        .collect();
    for result in set_up(&parts, 0, PATIENCE) {
        result.unwrap();
    }
}

/// Nothing is left on a NIC.
pub(super) fn is_empty(nic: &Nic) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    while nic.counters().live != LiveObjects::default() {
        if Instant::now() > until {
            return false;
        }
        thread::sleep(Duration::from_micros(200));
    }
    true
}
