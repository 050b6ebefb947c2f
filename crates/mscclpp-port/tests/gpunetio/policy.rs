// SPDX-License-Identifier: MIT
//! Which endpoints there are, and which fit together.

use std::sync::Arc;
use std::thread;

use mscclpp_bootstrap::Bootstrap;
use mscclpp_device::abi::{Backend, QueueMemory};
use mscclpp_port::{
    Access, Buffer, Communicator, Connection, ContextConfig, Device, EndpointConfig, Error, Hca,
    ProxyService, QueueForm, Status, TransportKind,
};
use mscclpp_softnic::{Capabilities, DeviceConfig, LiveObjects, Mtu};

use crate::local::Local;
use crate::support::{At, Call, call, ping_pong};
use crate::world::{
    assert_empty, communicator, gpu, ib, inline, nic, nics, pair, pair_on, soon, try_pair,
    without_atomics,
};

#[test]
fn gpunetio_path_mtu_of_every_pair_carries_messages_whole() {
    let mtus = [
        Mtu::Bytes256,
        Mtu::Bytes512,
        Mtu::Bytes1024,
        Mtu::Bytes2048,
        Mtu::Bytes4096,
    ];
    let with = |mtu| {
        nic(DeviceConfig {
            capabilities: Capabilities {
                mtu,
                ..Capabilities::default()
            },
            ..DeviceConfig::default()
        })
    };
    for one in mtus {
        for other in mtus {
            let [a, b] = pair_on(&[with(one), with(other)], 16384, gpu());
            // A packet above the peer's MTU is refused by its NIC.
            let at = At::both(1, 10_000);
            for (from, to) in [(&a, &b), (&b, &a)] {
                from.buffer
                    .write(1, &[one as u8 + other as u8; 10_000])
                    .unwrap();
                let put = call(from.handle(), Call::PutWithSignalAndFlush, at);
                assert_eq!(put, Status::Ok, "{one:?} {other:?}");
                assert_eq!(call(to.handle(), Call::Wait, At::NOWHERE), Status::Ok);
                assert_eq!(to.bytes(1, 10_000), from.bytes(1, 10_000));
            }
        }
    }
}

#[test]
fn gpunetio_channels_that_do_not_ask_make_no_queue() {
    let devices = nics();
    let world = Local::world(2).0.into_iter().zip(&devices);
    let setups: Vec<_> = world
        .map(|(bootstrap, device)| {
            let communicator = communicator(bootstrap, device);
            thread::spawn(move || {
                let peer = 1 - communicator.bootstrap().rank();
                let buffer = Buffer::new(Device::cpu(), 64).unwrap();
                let local = communicator.register_memory(&buffer, 0..64).unwrap();
                let config = EndpointConfig::new(TransportKind::Ethernet);
                let connection = communicator.connect(config, peer, 0).unwrap();
                communicator.send_memory(&local, peer, 0).unwrap();
                let remote = communicator.recv_memory(peer, 0).unwrap();
                let connection = connection.get_by(soon()).unwrap();
                let remote = remote.get_by(soon()).unwrap();
                let service = ProxyService::with_default_size().unwrap();
                let semaphore = service
                    .build_and_add_semaphore(&communicator, &connection)
                    .unwrap();
                let dst = service.add_memory(remote).unwrap();
                let src = service.add_memory(local).unwrap();
                let channel = service.port_channel(semaphore, dst, src).unwrap();
                let handle = channel.device_handle();
                assert_eq!(handle.base.backend, Backend::Proxy as u32);
                assert_eq!(handle.base.queue, Default::default());
                assert_eq!(handle.dst_memory, QueueMemory::NONE);
                (channel, service)
            })
        })
        .collect();
    let _channels: Vec<_> = setups.into_iter().map(|s| s.join().unwrap()).collect();
    for device in &devices {
        let counters = device.counters();
        assert_eq!(counters.live, LiveObjects::default());
        assert_eq!(counters.doorbells, 0);
    }
}

#[test]
fn gpunetio_hosts_cannot_post_to_a_queue_of_kernels() {
    let [a, _b] = pair(4096);
    let posted = [
        a.connection.write(&a.remote, 0, &a.local, 0, 8),
        a.connection.signal(&a.remote, 0),
        a.connection.accumulate(&a.remote, 0, 1),
        a.connection.flush(soon()),
    ];
    for result in posted {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("kernels"), "{error}");
    }
    assert!(a.connection.status().is_none());
    assert_eq!(
        call(a.handle(), Call::PutWithSignalAndFlush, At::both(0, 8)),
        Status::Ok
    );
}

#[test]
fn gpunetio_policy_is_refused_with_the_way_out() {
    let context = |device: &mscclpp_softnic::Device| -> Communicator {
        communicator(Local::world(1).0.remove(0), device)
    };
    let device = nic(without_atomics());
    let made = context(&device).context().create_endpoint(gpu());
    let error = made.map(drop).unwrap_err();
    assert!(
        error.to_string().contains("SignalMode::InlineWrite"),
        "{error}"
    );
    let mut shared = inline();
    shared.ib.queue_form = QueueForm::Shared;
    let made = context(&device).context().create_endpoint(shared);
    let error = made.map(drop).unwrap_err();
    assert!(
        error.to_string().contains("QueueForm::Exclusive"),
        "{error}"
    );
    assert_empty(&device);

    // Atomic signals to an HCA that has none: refused by both ends alike.
    let devices = [nic(DeviceConfig::default()), nic(without_atomics())];
    let results = try_pair(&devices, 64, [gpu(), inline()]);
    for result in results {
        let error = result.map(drop).unwrap_err();
        assert!(
            matches!(error, Error::IncompatibleEndpoints { .. }),
            "{error}"
        );
        assert!(error.to_string().contains("InlineWrite"), "{error}");
    }
    devices.iter().for_each(assert_empty);
}

#[test]
fn gpunetio_modes_that_differ_fail_on_both_ends() {
    use mscclpp_port::IbMode;
    for (mode, device, resolved) in [
        (IbMode::Default, DeviceConfig::default(), "Host"),
        (IbMode::Host, without_atomics(), "HostNoAtomic"),
        (
            IbMode::HostNoAtomic,
            DeviceConfig::default(),
            "HostNoAtomic",
        ),
    ] {
        let devices = [nic(DeviceConfig::default()), nic(device)];
        let mut host = EndpointConfig::new(TransportKind::IB0);
        host.ib.mode = mode;
        let [kernels, host] = try_pair(&devices, 64, [gpu(), host]).map(|end| end.map(drop));
        let error = host.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(resolved), "{error}");
        let error = kernels.unwrap_err();
        assert!(
            matches!(error, Error::PeerGaveUp { rank: 1, .. }),
            "{error}"
        );
        devices.iter().for_each(assert_empty);
    }
}

#[test]
fn gpunetio_other_names_never_get_a_nic_in_software() {
    let bootstrap: Arc<dyn Bootstrap> = Local::world(1).0.remove(0);
    let mut config = ContextConfig::of_rank(&*bootstrap);
    config.hca_devices = vec![Hca::named("mlx5_0")];
    let communicator = Communicator::with_config(bootstrap, config).unwrap();
    let buffer = Buffer::new(Device::cpu(), 64).unwrap();
    let registered = communicator.register_memory_with(&buffer, 0..64, ib(Access::FULL));
    let made = communicator.context().create_endpoint(gpu()).map(drop);
    for error in [registered.map(drop).unwrap_err(), made.unwrap_err()] {
        assert!(matches!(error, Error::HcaUnavailable { .. }), "{error}");
        assert!(error.to_string().contains("mlx5_0"), "{error}");
    }
    let second = EndpointConfig::gpu_initiated(TransportKind::IB1);
    let made = communicator.context().create_endpoint(second).map(drop);
    let text = made.unwrap_err().to_string();
    assert!(
        text.contains("MSCCLPP_HCA_DEVICES") && text.contains("IB1"),
        "{text}"
    );
}

#[test]
fn gpunetio_many_connections_come_up_at_once_over_one_wire() {
    const TAGS: u32 = 8;
    let devices = nics();
    let world = Local::world(2).0;
    let ranks: Vec<_> = (world.into_iter().zip(&devices).enumerate())
        .map(|(rank, (bootstrap, device))| (1 - rank, communicator(bootstrap, device)))
        .collect();
    let made: Vec<Vec<Connection>> = (ranks.iter())
        .map(|(peer, communicator)| {
            let pending = (0..TAGS).map(|tag| communicator.connect(gpu(), *peer, tag).unwrap());
            pending.collect::<Vec<_>>()
        })
        .collect::<Vec<_>>()
        .into_iter()
        .map(|pending| (pending.iter().map(|p| p.get_by(soon()).unwrap())).collect())
        .collect();
    for connection in made.iter().flatten() {
        connection.wait_connected(soon()).unwrap();
    }
    for device in &devices {
        assert_eq!(device.links().len(), 1);
        assert_eq!(device.counters().live.queue_pairs, u64::from(TAGS));
    }
    drop((made, ranks));
    devices.iter().for_each(assert_empty);
}

#[test]
fn gpunetio_the_ends_may_use_hcas_of_different_numbers() {
    let devices = nics();
    let setups: Vec<_> = (Local::world(2).0.into_iter().zip(&devices).enumerate())
        .map(|(rank, (bootstrap, device))| {
            let mut config = ContextConfig::of_rank(&*bootstrap);
            // Rank 0 uses its IB0, rank 1 its IB2.
            config.hca_devices = vec![Hca::from(device.clone()); 2 * rank + 1];
            let made = Communicator::with_config(bootstrap, config).unwrap();
            let transport = [TransportKind::IB0, TransportKind::IB2][rank];
            let config = EndpointConfig::gpu_initiated(transport);
            thread::spawn(move || crate::world::end(made, 1 - rank, 8192, config).unwrap())
        })
        .collect();
    let ends: Vec<_> = setups.into_iter().map(|s| s.join().unwrap()).collect();
    let [a, b] = &ends[..] else { unreachable!() };
    assert_eq!(a.connection.remote_transport(), TransportKind::IB2);
    ping_pong(
        [(a.handle(), a.address()), (b.handle(), b.address())],
        100,
        10,
    );
    // What rank 1 has opened for its IB0 only is out of reach on this connection.
    let other = (b.communicator)
        .register_memory_with(&b.buffer, 0..64, ib(Access::FULL))
        .unwrap();
    b.communicator.send_memory(&other, 0, 7).unwrap();
    let other = a.communicator.recv_memory(1, 7).unwrap();
    let other = a.service.add_memory(other.get_by(soon()).unwrap()).unwrap();
    let made = a.service.port_channel(a.semaphore, other, a.src);
    let error = made.map(drop).unwrap_err();
    assert!(error.to_string().contains("IB2"), "{error}");
}
