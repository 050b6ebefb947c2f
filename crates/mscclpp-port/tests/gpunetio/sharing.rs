// SPDX-License-Identifier: MIT
//! Several contexts of a process, and what they must not confuse.

use std::net::Ipv4Addr;
use std::thread;

use mscclpp_port::{Access, Buffer, Context, ContextConfig, Device, Error, Hca, Status};
use mscclpp_softnic::{Capabilities, DeviceConfig};

use crate::local::Local;
use crate::support::{At, Call, call, eventually, put_by_id, start};
use crate::world::{
    assert_empty, communicator, end, gpu, ib, nic, nics, pair, pair_on, soon, try_pair,
};

#[test]
fn gpunetio_memory_of_another_context_is_no_source() {
    let devices = nics();
    let [a, _b] = pair_on(&devices, 4096, gpu());
    // Once on the same HCA, in a protection domain of its own, and once on another.
    for device in [devices[0].clone(), nic(DeviceConfig::default())] {
        let mut config = ContextConfig::new(Ipv4Addr::LOCALHOST.into());
        config.hca_devices = vec![Hca::from(device)];
        let other = Context::with_config(config).unwrap();
        let buffer = Buffer::new(Device::cpu(), 4096).unwrap();
        let foreign = other.register_memory_with(&buffer, .., ib(Access::FULL));
        let src = a.service.add_memory(foreign.unwrap()).unwrap();
        let made = a.service.port_channel(a.semaphore, a.dst, src);
        assert!(matches!(made, Err(Error::InvalidUsage { .. })), "{made:?}");
        let base = a.handle().base;
        let (put, _) = put_by_id(base, a.dst.into(), src.into(), 8);
        assert_eq!(put, Status::InvalidArgument);
    }
    let post = call(a.handle(), Call::PutWithSignalAndFlush, At::both(0, 8));
    assert_eq!(post, Status::Ok);
}

/// Pairs of contexts that share the same two NICs come up at the same time: one wire between the
/// two, not several that end each other.
#[test]
fn gpunetio_contexts_that_share_their_hcas_make_one_wire() {
    for round in 0..30 {
        let devices = nics();
        let worlds = [(); 3].map(|()| Local::world(2).0);
        let ranks = worlds
            .into_iter()
            .flat_map(|world| world.into_iter().zip(&devices));
        let setups: Vec<_> = ranks
            .map(|(bootstrap, device)| {
                let made = communicator(bootstrap, device);
                let peer = 1 - made.bootstrap().rank();
                thread::spawn(move || end(made, peer, 4096, gpu()))
            })
            .collect();
        let ends: Vec<_> = setups.into_iter().map(|s| s.join().unwrap()).collect();
        for end in &ends {
            let end = end
                .as_ref()
                .unwrap_or_else(|error| panic!("round {round}: {error}"));
            let post = call(end.handle(), Call::PutWithSignalAndFlush, At::both(0, 8));
            let error = end.connection.status();
            assert_eq!(post, Status::Ok, "round {round}: {error:?}");
        }
    }
}

#[test]
fn gpunetio_an_endpoint_that_goes_unconnected_ends_the_other_and_leaves_nothing() {
    let device = nic(DeviceConfig::default());
    let communicator = communicator(Local::world(1).0.remove(0), &device);
    let context = communicator.context();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for _ in 0..100 {
        let [first, second] = [(); 2].map(|()| context.create_endpoint(gpu()).unwrap());
        let record = second.serialize().unwrap();
        let connection = context.connect(first, &record, soon()).unwrap();
        drop(second);
        let error = connection.wait_connected(soon()).unwrap_err();
        assert!(matches!(error, Error::PeerDown { .. }), "{error}");
    }
    // Other tests run in this process, too.
    eventually("descriptors are let go", || descriptors() < before + 80);
    // Gone before the other end connects to it.
    let [first, second] = [(); 2].map(|()| context.create_endpoint(gpu()).unwrap());
    let record = second.serialize().unwrap();
    drop(second);
    let error = context.connect(first, &record, soon()).unwrap_err();
    assert!(matches!(error, Error::Record { .. }), "{error}");
    drop(communicator);
    assert_empty(&device);
}

#[test]
fn gpunetio_an_hca_whose_messages_are_too_small_for_a_signal_is_refused() {
    for max_message in [0, 7] {
        let small = DeviceConfig {
            capabilities: Capabilities {
                max_message,
                ..Capabilities::default()
            },
            ..DeviceConfig::default()
        };
        for result in try_pair(&[nic(small.clone()), nic(small)], 64, [gpu(); 2]) {
            let error = result.map(drop).unwrap_err();
            assert!(
                matches!(error, Error::InvalidUsage { .. } | Error::PeerFailed { .. }),
                "{error}"
            );
        }
    }
}

#[test]
fn gpunetio_small_budgets_learn_that_the_peer_is_gone() {
    let [a, b] = pair(4096);
    drop(b);
    eventually("the host notices", || a.connection.status().is_some());
    let _ = call(a.handle(), Call::Put, At::both(0, 8));
    let polls = (1, 1_000_000);
    let waiting = start(a.handle(), Call::WaitLooks, At::NOWHERE, polls).end();
    let flushing = start(a.handle(), Call::FlushLooks, At::NOWHERE, polls).end();
    for status in [waiting[0], flushing[0]] {
        assert!(
            matches!(status, Status::PeerDown | Status::QueueError),
            "{status:?}"
        );
    }
}
