// SPDX-License-Identifier: MIT
//! Ranks in one process, each with a NIC in software, and a channel each way.

use std::sync::Arc;
use std::thread;

use mscclpp_bootstrap::{Bootstrap, Deadline};
use mscclpp_port::{
    Access, Communicator, ContextConfig, EndpointConfig, Error, Hca, MemoryOptions, QueueForm,
    QueuePlacement, SignalMode, TransportKind,
};
use mscclpp_softnic::{Capabilities, DeviceConfig, LiveObjects};

pub(crate) use crate::end::End;
use crate::local::Local;
use crate::support::{PATIENCE, eventually};

pub(crate) fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

pub(crate) fn nic(config: DeviceConfig) -> mscclpp_softnic::Device {
    mscclpp_softnic::Device::open("soft0", config).unwrap()
}

pub(crate) fn nics() -> [mscclpp_softnic::Device; 2] {
    [(); 2].map(|()| nic(DeviceConfig::default()))
}

/// Nothing is left on a NIC.
pub(crate) fn assert_empty(device: &mscclpp_softnic::Device) {
    let live = || device.counters().live;
    eventually("a NIC lets everything go", || {
        live() == LiveObjects::default()
    });
}

pub(crate) fn ib(access: Access) -> MemoryOptions {
    MemoryOptions {
        transports: TransportKind::IB0.into(),
        access,
    }
}

pub(crate) fn gpu() -> EndpointConfig {
    EndpointConfig::gpu_initiated(TransportKind::IB0)
}

/// A communicator of a rank whose IB0 is a device.
pub(crate) fn communicator(
    bootstrap: Arc<dyn Bootstrap>,
    device: &mscclpp_softnic::Device,
) -> Communicator {
    let mut config = ContextConfig::of_rank(&*bootstrap);
    config.hca_devices = vec![Hca::from(device.clone())];
    Communicator::with_config(bootstrap, config).unwrap()
}

/// Sets one rank up towards another, which does the same at the same time.
pub(crate) fn end(
    communicator: Communicator,
    peer: usize,
    bytes: u64,
    config: EndpointConfig,
) -> Result<End, Error> {
    let options = MemoryOptions {
        transports: match config.transport {
            TransportKind::Ethernet => TransportKind::IB0.into(),
            ib => ib.into(),
        },
        access: Access::FULL,
    };
    crate::end::end(communicator, peer, bytes, (config, options), soon())
}

/// What both ranks come to, each on a thread of its own.
pub(crate) fn try_pair(
    devices: &[mscclpp_softnic::Device; 2],
    bytes: u64,
    configs: [EndpointConfig; 2],
) -> [Result<End, Error>; 2] {
    let world = Local::world(2).0;
    let ranks = world.into_iter().zip(devices).zip(configs);
    let setups: Vec<_> = ranks
        .map(|((bootstrap, device), config)| {
            let communicator = communicator(bootstrap, device);
            let peer = 1 - communicator.bootstrap().rank();
            thread::spawn(move || end(communicator, peer, bytes, config))
        })
        .collect();
    let ends: Vec<_> = setups.into_iter().map(|s| s.join().unwrap()).collect();
    ends.try_into()
        .unwrap_or_else(|_| unreachable!("two threads"))
}

/// Two ranks with a channel each way.
pub(crate) fn pair(bytes: u64) -> [End; 2] {
    pair_on(&nics(), bytes, gpu())
}

pub(crate) fn pair_on(
    devices: &[mscclpp_softnic::Device; 2],
    bytes: u64,
    config: EndpointConfig,
) -> [End; 2] {
    try_pair(devices, bytes, [config; 2]).map(|end| end.unwrap())
}

/// All forms in which a queue can be made, and one in the memory of the host.
pub(crate) fn forms() -> [EndpointConfig; 4] {
    use QueuePlacement::{Device, Host};
    [
        (QueueForm::Shared, SignalMode::Atomic, Device),
        (QueueForm::Exclusive, SignalMode::Atomic, Device),
        (QueueForm::Exclusive, SignalMode::InlineWrite, Device),
        (QueueForm::Shared, SignalMode::Atomic, Host),
    ]
    .map(|(queue_form, signal_mode, queue_placement)| {
        let mut config = gpu();
        config.ib.queue_form = queue_form;
        config.ib.signal_mode = signal_mode;
        config.ib.queue_placement = queue_placement;
        config.ib.max_send_wr = Some(16);
        config
    })
}

pub(crate) fn inline() -> EndpointConfig {
    forms()[2]
}

pub(crate) fn without_atomics() -> DeviceConfig {
    DeviceConfig {
        capabilities: Capabilities {
            atomics: false,
            ..Capabilities::default()
        },
        ..DeviceConfig::default()
    }
}
