// SPDX-License-Identifier: MIT
//! Bytes between GPUs' memory, posted by the host.

use std::time::Duration;

use mscclpp_bootstrap::Deadline;
use mscclpp_port::{
    Buffer, Connection, Context, Device, EndpointConfig, Error, MemoryOptions, RegisteredMemory,
    TransportKind,
};

use crate::Test;
use crate::common::{self, connect_with, context, pattern};
use crate::support::{gpu_of, soon};

pub(crate) const TESTS: &[Test] = &[
    ("buffers_copy", 1, buffers_copy),
    ("pinned_memory_is_the_hosts", 1, pinned_memory_is_the_hosts),
    ("ethernet_moves_gpu_memory", 1, ethernet_moves_gpu_memory),
    (
        "ethernet_adds_to_gpu_memory",
        1,
        ethernet_adds_to_gpu_memory,
    ),
    (
        "ethernet_acknowledges_what_has_landed",
        1,
        ethernet_acknowledges_what_has_landed,
    ),
    (
        "a_context_reaches_its_own_gpu",
        1,
        a_context_reaches_its_own_gpu,
    ),
    ("ipc_moves_gpu_memory", 1, ipc_moves_gpu_memory),
    ("ipc_refuses_what_it_cannot", 1, ipc_refuses_what_it_cannot),
    ("drops_in_any_order", 1, drops_in_any_order),
];

fn buffers_copy() {
    let buffer = Buffer::new(gpu_of(0), 5 << 20).unwrap();
    assert!(buffer.address().is_multiple_of(256));
    let mut zeroes = vec![1; 5 << 20];
    buffer.read(0, &mut zeroes).unwrap();
    assert!(zeroes.iter().all(|byte| *byte == 0));
    let bytes = pattern(1, 3_000_001);
    buffer.write(777, &bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    buffer.read(777, &mut back).unwrap();
    assert!(back == bytes);
    buffer.store_u64(4096, 42).unwrap();
    assert_eq!(buffer.load_u64(4096).unwrap(), 42);
    let refused = buffer.fetch_add_u64(4096, 1);
    assert!(matches!(refused, Err(Error::InvalidUsage { .. })));
    assert!(matches!(
        buffer.read((5 << 20) - 1, &mut [0; 2]),
        Err(Error::OutOfBounds { .. })
    ));
    let absent = Buffer::new(Device::gpu(1000), 8).unwrap_err();
    assert!(
        matches!(absent, Error::DeviceUnavailable { .. }),
        "{absent}"
    );
}

fn pinned_memory_is_the_hosts() {
    let buffer = Buffer::pinned(gpu_of(0), 4096).unwrap();
    assert_eq!(buffer.device(), Device::cpu());
    assert_eq!(buffer.fetch_add_u64(8, 5).unwrap(), 0);
    assert_eq!(buffer.load_u64(8).unwrap(), 5);
}

/// A registered buffer, and what a peer sees of it.
fn memory(
    owner: &Context,
    peer: &Context,
    device: Device,
    bytes: u64,
    transport: TransportKind,
) -> (Buffer, RegisteredMemory, RegisteredMemory) {
    let buffer = Buffer::new(device, bytes).unwrap();
    let options = MemoryOptions {
        transports: transport.into(),
        ..MemoryOptions::default()
    };
    let local = owner.register_memory_with(&buffer, .., options).unwrap();
    let seen = RegisteredMemory::deserialize(peer, &local.serialize().unwrap()).unwrap();
    (buffer, local, seen)
}

fn on(device: Device, transport: TransportKind) -> EndpointConfig {
    EndpointConfig {
        device,
        ..EndpointConfig::new(transport)
    }
}

const SIZE: u64 = 24 << 20;

/// Writes of many sizes from one memory to another, and nothing beside them.
fn writes(
    connection: &Connection,
    source: (&Buffer, &RegisteredMemory),
    to: (&Buffer, &RegisteredMemory),
) {
    let bytes = pattern(3, SIZE as usize);
    source.0.write(0, &bytes).unwrap();
    let mut expected = vec![0; SIZE as usize];
    to.0.write(0, &expected).unwrap();
    let mut at = 3_u64;
    for len in [
        1_u64,
        4,
        8,
        13,
        4096,
        16 << 10,
        70_001,
        (1 << 20) + 3,
        9 << 20,
    ] {
        connection.write(to.1, at, source.1, at / 2, len).unwrap();
        let (from, into, len) = ((at / 2) as usize, at as usize, len as usize);
        expected[into..into + len].copy_from_slice(&bytes[from..from + len]);
        at += len as u64 + 5;
    }
    connection.flush(soon()).unwrap();
    let mut found = vec![0; SIZE as usize];
    to.0.read(0, &mut found).unwrap();
    let first = (0..SIZE as usize).find(|i| found[*i] != expected[*i]);
    assert_eq!(first, None, "the first byte that differs");
}

fn ethernet_moves_gpu_memory() {
    let ethernet = TransportKind::Ethernet;
    let (cpu, gpus) = (Device::cpu(), [gpu_of(0), gpu_of(1)]);
    for (from, to) in [(gpus[0], gpus[1]), (cpu, gpus[1]), (gpus[0], cpu)] {
        // Staging is made for a GPU's endpoint, or when it is first needed.
        for device in [cpu, gpus[0]] {
            let (a, b) = (context(0), context(1));
            let (a_to_b, _b_to_a) = connect_with(&a, &b, on(device, ethernet));
            let source = memory(&a, &b, from, SIZE, ethernet);
            let target = memory(&b, &a, to, SIZE, ethernet);
            writes(&a_to_b, (&source.0, &source.1), (&target.0, &target.2));
        }
    }
}

fn ethernet_adds_to_gpu_memory() {
    let ethernet = TransportKind::Ethernet;
    let (a, b) = (context(0), context(1));
    let (a_to_b, _b_to_a) = connect_with(&a, &b, on(gpu_of(0), ethernet));
    let (word, _local, seen) = memory(&b, &a, gpu_of(1), 64, ethernet);
    word.store_u64(8, 100).unwrap();
    for _ in 0..10 {
        a_to_b.accumulate(&seen, 8, -3).unwrap();
        a_to_b.signal(&seen, 16).unwrap();
    }
    a_to_b.flush(soon()).unwrap();
    assert_eq!(word.load_u64(8).unwrap(), 70);
    assert_eq!(word.load_u64(16).unwrap(), 10);
}

/// A copy may end at any moment between two looks of the receiver; its flush does not wait for
/// something else to arrive.
fn ethernet_acknowledges_what_has_landed() {
    const FLUSHES: u64 = 5000;
    let ethernet = TransportKind::Ethernet;
    let (a, b) = (context(0), context(1));
    let (a_to_b, _b_to_a) = connect_with(&a, &b, on(gpu_of(0), ethernet));
    let source = memory(&a, &b, gpu_of(0), 1 << 20, ethernet);
    let target = memory(&b, &a, gpu_of(1), 1 << 20, ethernet);
    for flush in 0..FLUSHES {
        let len = 8 << (flush % 14);
        a_to_b.write(&target.2, 0, &source.1, 0, len).unwrap();
        // Far more than a copy takes, and less than the receiver's patience without an arrival.
        let deadline = Deadline::after(Duration::from_millis(500));
        a_to_b
            .flush(deadline)
            .unwrap_or_else(|error| panic!("flush {flush}: {error}"));
    }
}

fn a_context_reaches_its_own_gpu() {
    let ethernet = TransportKind::Ethernet;
    let a = context(0);
    for (from, to) in [
        (gpu_of(0), gpu_of(1)),
        (Device::cpu(), gpu_of(0)),
        (gpu_of(0), Device::cpu()),
    ] {
        let endpoint = a.create_endpoint(on(gpu_of(0), ethernet)).unwrap();
        let record = endpoint.serialize().unwrap();
        let connection = a.connect(endpoint, &record, soon()).unwrap();
        let source = memory(&a, &a, from, SIZE, ethernet);
        let target = memory(&a, &a, to, SIZE, ethernet);
        writes(&connection, (&source.0, &source.1), (&target.0, &target.2));
    }
    let ipc = TransportKind::CudaIpc;
    let endpoint = a.create_endpoint(on(gpu_of(0), ipc)).unwrap();
    let record = endpoint.serialize().unwrap();
    let connection = a.connect(endpoint, &record, soon()).unwrap();
    let source = memory(&a, &a, gpu_of(0), SIZE, ipc);
    let target = memory(&a, &a, gpu_of(0), SIZE, ipc);
    writes(&connection, (&source.0, &source.1), (&target.0, &target.2));
}

fn ipc_moves_gpu_memory() {
    let ipc = TransportKind::CudaIpc;
    let (a, b) = (context(0), context(1));
    let (a_to_b, b_to_a) = connect_with(&a, &b, on(gpu_of(0), ipc));
    let at_a = memory(&a, &b, gpu_of(0), SIZE, ipc);
    let at_b = memory(&b, &a, gpu_of(1), SIZE, ipc);
    writes(&a_to_b, (&at_a.0, &at_a.1), (&at_b.0, &at_b.2));
    writes(&b_to_a, (&at_b.0, &at_b.1), (&at_a.0, &at_a.2));
    // From pinned memory; and more posts than the queue holds.
    let pinned = Buffer::pinned(gpu_of(0), 4096).unwrap();
    let source = a.register_memory(&pinned, ..).unwrap();
    for round in 0..2000_u64 {
        let at = round % 512 * 8;
        pinned.store_u64(at, round).unwrap();
        a_to_b.write(&at_b.2, at, &source, at, 8).unwrap();
    }
    a_to_b.flush(soon()).unwrap();
    for at in 0..512 {
        let expected = pinned.load_u64(at * 8).unwrap();
        assert_eq!(at_b.0.load_u64(at * 8).unwrap(), expected);
    }
    drop(b_to_a);
    assert!(matches!(common::failure(&a_to_b), Error::PeerDown { .. }));
}

fn ipc_refuses_what_it_cannot() {
    let ipc = TransportKind::CudaIpc;
    let (a, b) = (context(0), context(1));
    let (a_to_b, _b_to_a) = connect_with(&a, &b, on(gpu_of(0), ipc));
    let (_, source, _) = memory(&a, &b, gpu_of(0), 4096, ipc);
    let (_, _, target) = memory(&b, &a, gpu_of(0), 4096, ipc);
    let unsupported = |result| matches!(result, Err(Error::Unsupported { .. }));
    assert!(unsupported(a_to_b.accumulate(&target, 0, 1)));
    assert!(unsupported(a_to_b.signal(&target, 0)));
    let out = a_to_b.write(&target, 4000, &source, 0, 97);
    assert!(matches!(out, Err(Error::OutOfBounds { .. })));
    let host = common::Memory::new(&a, 4096);
    let refused = a_to_b.write(&target, 0, &host.local, 0, 8);
    assert!(matches!(refused, Err(Error::InvalidUsage { .. })));
    let over_ethernet = common::Memory::new(&b, 4096).seen_by(&a);
    let refused = a_to_b.write(&over_ethernet, 0, &source, 0, 8);
    assert!(matches!(refused, Err(Error::InvalidUsage { .. })));
    let cpu = a.create_endpoint(EndpointConfig::new(ipc));
    assert!(matches!(cpu, Err(Error::InvalidUsage { .. })));
    let host = Buffer::new(Device::cpu(), 4096).unwrap();
    let options = MemoryOptions {
        transports: ipc.into(),
        ..MemoryOptions::default()
    };
    let refused = a.register_memory_with(&host, .., options);
    assert!(matches!(refused, Err(Error::InvalidUsage { .. })));
    // Nothing of this has hurt the connection.
    a_to_b.write(&target, 0, &source, 0, 4096).unwrap();
    a_to_b.flush(soon()).unwrap();
}

/// Everything is dropped while copies run.
fn drops_in_any_order() {
    for transport in [TransportKind::CudaIpc, TransportKind::Ethernet] {
        for first in 0..4 {
            let (a, b) = (context(0), context(1));
            let (a_to_b, b_to_a) = connect_with(&a, &b, on(gpu_of(0), transport));
            let (from, source, _) = memory(&a, &b, gpu_of(0), SIZE, transport);
            let (to, target, seen) = memory(&b, &a, gpu_of(1), SIZE, transport);
            a_to_b.wait_connected(soon()).unwrap();
            for _ in 0..3 {
                a_to_b.write(&seen, 0, &source, 0, SIZE).unwrap();
            }
            let mut things: Vec<Box<dyn FnOnce()>> = vec![
                Box::new(move || drop((from, source))),
                Box::new(move || drop((to, target))),
                Box::new(move || drop((a, a_to_b, seen))),
                Box::new(move || drop((b, b_to_a))),
            ];
            things.rotate_left(first);
            things.into_iter().for_each(|let_go| let_go());
        }
    }
}
