// SPDX-License-Identifier: MIT
//! What channels on queues do.

use std::sync::Arc;
use std::thread;

use mlx5_queue::{Opcode, QueueNumber, Syndrome};
use mscclpp_bootstrap::Bootstrap;
use mscclpp_device::abi::{Backend, PortChannelDeviceHandle, QueueMemory};
use mscclpp_port::{
    Access, Buffer, Communicator, Connection, Device, EndpointConfig, Error, PortChannel,
    ProxyService, QueueForm, RegisteredMemory, SignalMode, Status, TransportKind,
};
use mscclpp_softnic::{Capabilities, DeviceConfig, LiveObjects, Mtu};

use crate::local::Local;
use crate::support::{At, Call, call, eventually, ping_pong, put_by_id, start};
use crate::world::{
    End, assert_empty, communicator, gpu, ib, nic, nics, pair, pair_on, soon, try_pair,
};

/// All forms in which a queue can be made.
fn forms() -> [EndpointConfig; 3] {
    [
        (QueueForm::Shared, SignalMode::Atomic),
        (QueueForm::Exclusive, SignalMode::Atomic),
        (QueueForm::Exclusive, SignalMode::InlineWrite),
    ]
    .map(|(queue_form, signal_mode)| {
        let mut config = gpu();
        config.ib.queue_form = queue_form;
        config.ib.signal_mode = signal_mode;
        config.ib.max_send_wr = Some(16);
        config
    })
}

fn inline() -> EndpointConfig {
    forms()[2]
}

fn without_atomics() -> DeviceConfig {
    DeviceConfig {
        capabilities: Capabilities {
            atomics: false,
            ..Capabilities::default()
        },
        ..DeviceConfig::default()
    }
}

/// A word of a queue's state, by its place there.
fn state(handle: &PortChannelDeviceHandle, word: u64) -> u64 {
    let address = handle.base.queue.queue.state + word * 8;
    // SAFETY: the tests that call this keep the channel, and with it the state, which is only
    // accessed atomically.
    unsafe { load(address) }
}

fn reserved(channel: &PortChannel) -> u64 {
    state(&channel.device_handle(), 0)
}

/// # Safety
/// A word of this process that lives and is only accessed atomically.
unsafe fn load(address: u64) -> u64 {
    let at = std::ptr::with_exposed_provenance_mut::<u64>(address as usize);
    // SAFETY: the caller's promise.
    unsafe { std::sync::atomic::AtomicU64::from_ptr(at) }.load(std::sync::atomic::Ordering::Acquire)
}

/// What a channel's table says of a memory id.
fn entry(handle: &PortChannelDeviceHandle, id: u32) -> [u64; 3] {
    let at = handle.base.queue.memories + u64::from(id) * size_of::<QueueMemory>() as u64;
    // SAFETY: as for `state`: the table belongs to the channel.
    [0, 8, 16].map(|word| unsafe { load(at + word) })
}

fn words(memory: QueueMemory) -> [u64; 3] {
    let last = u64::from(memory.key) | u64::from(memory.access) << 32;
    [memory.address, memory.size, last]
}

#[test]
fn gpunetio_ping_pong_without_a_proxy_in_every_form() {
    for config in forms() {
        let devices = nics();
        let [a, b] = pair_on(&devices, 8192, config);
        let ends = [(a.handle(), a.address()), (b.handle(), b.address())];
        ping_pong(ends, 1000, 100);
        assert!(devices.iter().all(|nic| nic.take_violations().is_empty()));
    }
}

#[test]
fn gpunetio_ping_pong_on_hcas_without_atomics() {
    let devices = [(); 2].map(|()| nic(without_atomics()));
    let [a, b] = pair_on(&devices, 8192, inline());
    let ends = [(a.handle(), a.address()), (b.handle(), b.address())];
    ping_pong(ends, 1000, 50);
    let accumulated = call(a.handle(), Call::Accumulate, At::both(0, 1));
    assert_eq!(accumulated, Status::Unsupported);
}

#[test]
fn gpunetio_bindings_are_the_registrations() {
    let [a, b] = pair(8192);
    let handle = a.handle();
    assert_eq!(handle.base.backend, Backend::Queue as u32);
    handle.check().unwrap();
    let bound = (handle.dst_memory, handle.src_memory);
    assert_eq!((bound.0.address, bound.0.size), (b.address(), 8192));
    assert_eq!((bound.1.address, bound.1.size), (a.address(), 8192));
    assert_eq!(bound.0.access, QueueMemory::REMOTE);
    assert_eq!(bound.1.access, QueueMemory::LOCAL);
    // By id they are the same.
    assert_eq!(entry(&handle, handle.dst), words(bound.0));
    assert_eq!(entry(&handle, handle.src), words(bound.1));

    // A part keeps its key and has an address and a size of its own.
    let part = b
        .communicator
        .send_memory(&b.local.sub_range(4096, 64).unwrap(), 0, 3);
    part.unwrap();
    let part = a
        .communicator
        .recv_memory(1, 3)
        .unwrap()
        .get_by(soon())
        .unwrap();
    let dst = a.service.add_memory(part).unwrap();
    let channel = a.service.port_channel(a.semaphore, dst, a.src).unwrap();
    let dst = channel.device_handle().dst_memory;
    assert_eq!((dst.address, dst.size), (b.address() + 4096, 64));
    assert_eq!(dst.key, bound.0.key);
    a.buffer.write(0, b"to the middle").unwrap();
    let at = At::both(0, 13);
    assert_eq!(
        call(channel.device_handle(), Call::PutWithSignalAndFlush, at),
        Status::Ok
    );
    assert_eq!(b.bytes(4096, 14), b"to the middle\0");
    let beyond = At::both(60, 5);
    let status = call(channel.device_handle(), Call::Put, beyond);
    assert_eq!(status, Status::InvalidArgument);
}

#[test]
fn gpunetio_keys_are_big_endian_where_requests_carry_them() {
    let [a, b] = pair(4096);
    let handle = a.handle();
    let index = reserved(&a.channel);
    let at = At::both(64, 64);
    assert_eq!(call(handle, Call::PutWithSignalAndFlush, at), Status::Ok);
    let slot = |index: u64| {
        let queue = handle.base.queue.queue;
        let at = queue.send_ring + (index % u64::from(queue.blocks)) * 64;
        // SAFETY: as for `state`: the ring belongs to the channel.
        let words: [u64; 8] = std::array::from_fn(|i| unsafe { load(at + i as u64 * 8) });
        words.map(u64::to_ne_bytes).concat()
    };
    let (write, signal) = (slot(index), slot(index + 1));
    // As mlx5 lays them out: the remote key at byte 24, the local one at 36 (of an atomic, at 52).
    assert_eq!(write[24..28], handle.dst_memory.key.to_ne_bytes());
    assert_eq!(write[36..40], handle.src_memory.key.to_ne_bytes());
    assert_eq!(signal[24..28], handle.base.queue.token.key.to_ne_bytes());
    assert_eq!(
        signal[52..56],
        handle.base.queue.queue.scratch_key.to_ne_bytes()
    );
    assert_eq!(write[16..24], (b.address() + 64).to_be_bytes());
    // Different registrations have different keys.
    assert_ne!(handle.dst_memory.key, handle.base.queue.token.key);
    assert_ne!(handle.src_memory.key, handle.base.queue.queue.scratch_key);
    let number = handle.base.queue.queue.number;
    assert_eq!(
        write[4..7],
        QueueNumber::new(number).unwrap().get().to_be_bytes()[1..]
    );
}

/// A second connection between two ranks, with a channel each way over the same memories.
fn second(ends: [&End; 2], config: EndpointConfig) -> [(Connection, PortChannel); 2] {
    let setups = ends.map(|end| {
        let communicator = end.communicator.clone();
        let peer = 1 - communicator.bootstrap().rank();
        communicator.connect(config, peer, 1).unwrap()
    });
    let connections = setups.map(|setup| setup.get_by(soon()).unwrap());
    let semaphores: Vec<_> = (ends.iter().zip(&connections))
        .map(|(end, connection)| {
            let peer = connection.peer().unwrap();
            (end.communicator.build_semaphore(connection, peer, 1)).unwrap()
        })
        .collect();
    let mut made = ends.iter().zip(semaphores).zip(connections);
    std::array::from_fn(|_| {
        let ((end, semaphore), connection) = made.next().unwrap();
        let semaphore = semaphore.get_by(soon()).unwrap();
        let id = end.service.add_semaphore(semaphore).unwrap();
        let channel = end.service.port_channel(id, end.dst, end.src).unwrap();
        (connection, channel)
    })
}

#[test]
fn gpunetio_each_channel_posts_to_the_queue_of_its_connection() {
    let devices = nics();
    let [a, b] = pair_on(&devices, 4096, gpu());
    let [(_a2, a_second), (_b2, b_second)] = second([&a, &b], gpu());
    let (first, other) = (a.handle(), a_second.device_handle());
    assert_ne!(first.base.queue.queue.number, other.base.queue.queue.number);
    assert_ne!(first.base.queue.queue.state, other.base.queue.queue.state);
    // One wire serves both.
    assert!(devices.iter().all(|nic| nic.links().len() == 1));
    let before = (reserved(&a.channel), reserved(&a_second));
    let at = At::both(0, 8);
    assert_eq!(
        start(other, Call::PutWithSignal, at, (1, 5)).end(),
        [Status::Ok]
    );
    assert_eq!(call(other, Call::Flush, At::NOWHERE), Status::Ok);
    let after = (reserved(&a.channel), reserved(&a_second));
    assert_eq!(after, (before.0, before.1 + 10));
    // Its signals are its own, too.
    let b_first = b.handle();
    let none = call(b_first, Call::WaitBounded, At::NOWHERE);
    assert_eq!(none, Status::Timeout);
    let waited = start(b_second.device_handle(), Call::Wait, At::NOWHERE, (1, 5)).end();
    assert_eq!(waited, [Status::Ok]);
}

#[test]
fn gpunetio_results_of_atomics_never_land_in_user_memory() {
    let [a, b] = pair(1 << 16);
    let pattern: Vec<u8> = (0..1_u32 << 16).map(|i| (i * 31 + i / 256) as u8).collect();
    a.buffer.write(0, &pattern).unwrap();
    b.buffer.write(0, &pattern).unwrap();
    let signalling = start(a.handle(), Call::Signal, At::NOWHERE, (2, 50_000));
    let waiting = start(b.handle(), Call::Wait, At::NOWHERE, (1, 100_000));
    assert_eq!(signalling.end(), [Status::Ok; 2]);
    assert_eq!(waiting.end(), [Status::Ok]);
    assert_eq!(call(a.handle(), Call::Flush, At::NOWHERE), Status::Ok);
    assert_eq!(a.bytes(0, 1 << 16), pattern);
    assert_eq!(b.bytes(0, 1 << 16), pattern);
    let scratch = a.handle().base.queue.queue.scratch;
    assert!(!(a.address()..a.address() + (1 << 16)).contains(&scratch));
}

#[test]
fn gpunetio_gets_accumulates_and_splits() {
    let small = DeviceConfig {
        capabilities: Capabilities {
            max_message: 1000,
            ..Capabilities::default()
        },
        ..DeviceConfig::default()
    };
    let devices = [nic(small.clone()), nic(small)];
    let [a, b] = pair_on(&devices, 1 << 16, gpu());
    let pattern: Vec<u8> = (0..10_000_u32).map(|i| (i * 7 + i / 256) as u8).collect();
    a.buffer.write(0, &pattern).unwrap();
    let at = At {
        dst: 1001,
        src: 0,
        size: 10_000,
    };
    assert_eq!(
        call(a.handle(), Call::PutWithSignalAndFlush, at),
        Status::Ok
    );
    assert_eq!(call(b.handle(), Call::Wait, At::NOWHERE), Status::Ok);
    assert_eq!(b.bytes(1001, 10_000), pattern);
    // Back again, as a read: from the peer's memory at the first offset to the own at the second.
    let back = At {
        dst: 1001,
        src: 30_000,
        size: 10_000,
    };
    assert_eq!(call(a.handle(), Call::Get, back), Status::Ok);
    assert_eq!(call(a.handle(), Call::Flush, At::NOWHERE), Status::Ok);
    assert_eq!(a.bytes(30_000, 10_000), pattern);
    let value = 3 * (1_u64 << 32) + 7;
    let add = |size| At::both(40_000, size);
    let adding = start(a.handle(), Call::Accumulate, add(value), (4, 10));
    assert_eq!(adding.end(), [Status::Ok; 4]);
    assert_eq!(
        call(a.handle(), Call::Accumulate, add(u64::MAX)),
        Status::Ok
    );
    assert_eq!(call(a.handle(), Call::Flush, At::NOWHERE), Status::Ok);
    assert_eq!(b.buffer.load_u64(40_000).unwrap(), 40 * value - 1);
    assert!(devices[0].counters().requests_of(Opcode::Read) >= 10);
}

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
fn gpunetio_what_the_connection_cannot_reach_stays_empty_in_the_table() {
    let [a, b] = pair(4096);
    let handle = a.handle();
    let before = a.service.add_memory(RegisteredMemory::default()).unwrap();
    // Another peer's, here of a context of its own, and one that is registered for TCP only.
    let stranger = mscclpp_port::Context::new(std::net::Ipv4Addr::LOCALHOST.into()).unwrap();
    let buffer = Buffer::new(Device::cpu(), 4096).unwrap();
    let theirs = stranger.register_memory(&buffer, ..).unwrap();
    let theirs = theirs.serialize().unwrap();
    let theirs = RegisteredMemory::deserialize(a.communicator.context(), &theirs).unwrap();
    let theirs = a.service.add_memory(theirs).unwrap();
    let tcp = a.communicator.register_memory(&buffer, 0..4096).unwrap();
    let tcp = a.service.add_memory(tcp).unwrap();
    let valid = a.service.add_memory(a.remote.clone()).unwrap();
    for id in [before, theirs, tcp] {
        assert_eq!(entry(&handle, id.into()), [0; 3]);
        let base = handle.base;
        let used = put_by_id(base, id.into(), a.src.into(), 8).0;
        assert_eq!(used, Status::InvalidArgument);
        let used = put_by_id(base, valid.into(), id.into(), 8).0;
        assert_eq!(used, Status::InvalidArgument);
        let bound = a.service.port_channel(a.semaphore, id, a.src);
        assert!(
            matches!(bound, Err(Error::InvalidUsage { .. })),
            "{bound:?}"
        );
        let bound = a.service.port_channel(a.semaphore, a.dst, id);
        assert!(
            matches!(bound, Err(Error::InvalidUsage { .. })),
            "{bound:?}"
        );
    }
    // What came after them has its place, and nothing was broken.
    a.buffer.write(0, b"by id").unwrap();
    let put = put_by_id(handle.base, valid.into(), a.src.into(), 5);
    assert_eq!(put, (Status::Ok, Status::Ok));
    assert_eq!(b.bytes(0, 6), b"by id\0");
    // An id that was never given out.
    assert_eq!(
        put_by_id(handle.base, 511, a.src.into(), 8).0,
        Status::InvalidArgument
    );
    assert!(a.connection.status().is_none());
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
fn gpunetio_a_rank_reaches_itself_and_a_context_its_own_endpoints() {
    let device = nic(DeviceConfig::default());
    let bootstrap: Arc<dyn Bootstrap> = Local::world(1).0.remove(0);
    // Rank 0 with itself: one queue, connected to itself.
    let communicator = communicator(bootstrap, &device);
    let own = crate::world::end(communicator.clone(), 0, 4096, gpu()).unwrap();
    own.buffer.write(0, b"to myself").unwrap();
    let at = At {
        dst: 100,
        src: 0,
        size: 9,
    };
    assert_eq!(
        call(own.handle(), Call::PutWithSignalAndFlush, at),
        Status::Ok
    );
    assert_eq!(call(own.handle(), Call::Wait, At::NOWHERE), Status::Ok);
    assert_eq!(own.bytes(100, 9), b"to myself");
    let memory = own.handle().dst_memory;
    assert_eq!(entry(&own.handle(), own.dst.into())[0], memory.address);

    // Two endpoints of one context.
    let context = communicator.context();
    let ends = [(); 2].map(|()| context.create_endpoint(gpu()).unwrap());
    let records = [1, 0].map(|i: usize| ends[i].serialize().unwrap());
    let mut records = records.iter();
    let connections = ends.map(|end| {
        context
            .connect(end, records.next().unwrap(), soon())
            .unwrap()
    });
    for connection in &connections {
        connection.wait_connected(soon()).unwrap();
    }
    drop(own);
    let [first, second] = connections;
    drop(first);
    eventually("the other end notices", || second.status().is_some());
    assert!(matches!(second.status(), Some(Error::PeerDown { .. })));
    drop((second, communicator));
    assert_empty(&device);
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
    let mut config = mscclpp_port::ContextConfig::of_rank(&*bootstrap);
    config.hca_devices = vec![mscclpp_port::Hca::named("mlx5_0")];
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
fn gpunetio_a_failed_request_is_named_on_both_ends() {
    let devices = nics();
    let [a, b] = pair_on(&devices, 4096, gpu());
    let waiting = start(b.handle(), Call::Wait, At::NOWHERE, (1, 1));
    let range = b
        .communicator
        .register_memory_with(&b.buffer, 0..64, ib(Access::FULL));
    let dropped = range.unwrap();
    b.communicator.send_memory(&dropped, 0, 3).unwrap();
    let dropped_at_a = a.communicator.recv_memory(1, 3).unwrap().get_by(soon());
    let dst = a.service.add_memory(dropped_at_a.unwrap()).unwrap();
    let channel = a.service.port_channel(a.semaphore, dst, a.src).unwrap();
    drop(dropped);
    let handle = channel.device_handle();
    let index = reserved(&a.channel);
    let status = call(handle, Call::PutWithSignalAndFlush, At::both(0, 8));
    assert_eq!(status, Status::QueueError);
    // Later posts fail at once.
    assert_eq!(call(handle, Call::Put, At::both(0, 8)), Status::QueueError);
    eventually("the host notices", || a.connection.status().is_some());
    let error = a.connection.status().unwrap();
    let Error::QueueFailed {
        rank: Some(1),
        queue,
        index: failed,
        syndrome: Syndrome::REMOTE_ACCESS,
        operation,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((queue, failed), (handle.base.queue.queue.number, index));
    assert!(operation.contains("put"), "{operation}");
    assert!(error.to_string().contains("REM_ACCESS_ERR"), "{error}");
    // Kernels of the other end are released, and its host knows, too.
    assert_eq!(waiting.end(), [Status::QueueError]);
    let error = b.connection.status().unwrap();
    assert!(
        matches!(
            error,
            Error::QueueRefused { rank: Some(0), .. } | Error::PeerFailed { .. }
        ),
        "{error}"
    );
}
