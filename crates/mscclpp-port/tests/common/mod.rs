// SPDX-License-Identifier: MIT
//! Two contexts of one process, connected over real sockets.
#![allow(dead_code, reason = "each test file uses a part")]

use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{Deadline, JobKey};
use mscclpp_port::{
    Access, Buffer, Connection, Context, ContextConfig, Device, EndpointConfig, Error,
    MemoryOptions, RegisteredMemory, TransportKind,
};

pub(crate) const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Longer than anything takes that works.
pub(crate) fn patience() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// The context of a rank; all of them have one job key.
pub(crate) fn context(rank: usize) -> Context {
    let mut config = ContextConfig::new(LOCALHOST);
    config.rank = Some(rank);
    config.job_key = Some(JobKey::from_bytes([7; 32]));
    Context::with_config(config).unwrap()
}

/// A connection between two contexts, both ends.
pub(crate) fn connect(a: &Context, b: &Context) -> (Connection, Connection) {
    connect_with(a, b, EndpointConfig::new(TransportKind::Ethernet))
}

pub(crate) fn connect_with(
    a: &Context,
    b: &Context,
    config: EndpointConfig,
) -> (Connection, Connection) {
    let at_a = a.create_endpoint(config).unwrap();
    let at_b = b.create_endpoint(config).unwrap();
    let (of_a, of_b) = (at_a.serialize().unwrap(), at_b.serialize().unwrap());
    (
        a.connect(at_a, &of_b, patience()).unwrap(),
        b.connect(at_b, &of_a, patience()).unwrap(),
    )
}

/// A registered buffer, and what a peer sees of it.
pub(crate) struct Memory {
    pub(crate) buffer: Buffer,
    pub(crate) local: RegisteredMemory,
}

impl Memory {
    pub(crate) fn new(context: &Context, bytes: u64) -> Self {
        Self::with(context, bytes, Access::FULL)
    }

    pub(crate) fn with(context: &Context, bytes: u64, access: Access) -> Self {
        let buffer = Buffer::new(Device::cpu(), bytes).unwrap();
        let options = MemoryOptions {
            access,
            ..MemoryOptions::default()
        };
        let local = context.register_memory_with(&buffer, .., options).unwrap();
        Self { buffer, local }
    }

    pub(crate) fn seen_by(&self, peer: &Context) -> RegisteredMemory {
        RegisteredMemory::deserialize(peer, &self.local.serialize().unwrap()).unwrap()
    }

    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.read(offset, &mut bytes).unwrap();
        bytes
    }
}

/// Ranks 0 and 1, their connection, and a buffer each.
pub(crate) struct Pair {
    pub(crate) a: Context,
    pub(crate) b: Context,
    pub(crate) a_to_b: Connection,
    pub(crate) b_to_a: Connection,
    pub(crate) at_a: Memory,
    pub(crate) at_b: Memory,
    /// `at_b` as rank 0 sees it.
    pub(crate) b_from_a: RegisteredMemory,
    pub(crate) a_from_b: RegisteredMemory,
}

pub(crate) fn pair(bytes: u64) -> Pair {
    let (a, b) = (context(0), context(1));
    let (a_to_b, b_to_a) = connect(&a, &b);
    let (at_a, at_b) = (Memory::new(&a, bytes), Memory::new(&b, bytes));
    let (b_from_a, a_from_b) = (at_b.seen_by(&a), at_a.seen_by(&b));
    Pair {
        a,
        b,
        a_to_b,
        b_to_a,
        at_a,
        at_b,
        b_from_a,
        a_from_b,
    }
}

/// Waits for something that other threads bring about.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    let mut looks = 0u32;
    while !condition() {
        assert!(Instant::now() < until, "never: {what}");
        looks += 1;
        if looks < 1000 {
            thread::yield_now();
        } else {
            thread::sleep(Duration::from_micros(200));
        }
    }
}

/// The error that ends a connection, which must come.
pub(crate) fn failure(connection: &Connection) -> Error {
    eventually("the connection fails", || connection.status().is_some());
    connection.status().unwrap()
}

/// Bytes that tell their place and the round.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
