// SPDX-License-Identifier: MIT
//! What kernels are given: memories, keys, queues.

use mlx5_queue::QueueNumber;
use mscclpp_device::abi::{Backend, PortChannelDeviceHandle, QueueMemory};
use mscclpp_port::{
    Buffer, Connection, Device, EndpointConfig, Error, PortChannel, RegisteredMemory, Status,
};

use crate::support::{At, Call, call, put_by_id, start};
use crate::world::{End, gpu, nics, pair, pair_on, soon};

/// A word of a queue's state, by its place there.
fn state(handle: &PortChannelDeviceHandle, word: u64) -> u64 {
    let address = handle.base.queue.queue.state + word * 8;
    // SAFETY: the tests that call this keep the channel, and with it the state, which is only
    // accessed atomically.
    unsafe { load(address) }
}

pub(crate) fn reserved(channel: &PortChannel) -> u64 {
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
pub(crate) fn entry(handle: &PortChannelDeviceHandle, id: u32) -> [u64; 3] {
    let at = handle.base.queue.memories + u64::from(id) * size_of::<QueueMemory>() as u64;
    // SAFETY: as for `state`: the table belongs to the channel.
    [0, 8, 16].map(|word| unsafe { load(at + word) })
}

fn words(memory: QueueMemory) -> [u64; 3] {
    let last = u64::from(memory.key) | u64::from(memory.access) << 32;
    [memory.address, memory.size, last]
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
