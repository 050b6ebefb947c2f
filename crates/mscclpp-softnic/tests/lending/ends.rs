// SPDX-License-Identifier: MIT
//! Two devices with memory that the other can map.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use mlx5_queue::*;
use mscclpp_softnic::*;

use crate::support::shared_memory::*;
use crate::support::*;

pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct End {
    pub(crate) device: Device,
    pub(crate) domain: ProtectionDomain,
    pub(crate) memory: Arc<SharedMemory>,
    pub(crate) buffer: SharedBuffer,
    pub(crate) registration: Registration,
    pub(crate) poster: Poster,
}

impl End {
    pub(crate) fn new(memory: Arc<SharedMemory>) -> Self {
        Self::with(DeviceConfig::default(), memory)
    }

    pub(crate) fn with(config: DeviceConfig, memory: Arc<SharedMemory>) -> Self {
        let device = Device::open("soft0", config).unwrap();
        let domain = device.allocate_domain().unwrap();
        let buffer = SharedBuffer::new(8 << 20);
        let registration = domain
            .register(
                memory.range(&buffer),
                AccessFlags::ALL,
                WriteOrdering::Relaxed,
            )
            .unwrap();
        let poster = Poster::new(&domain, &setup());
        Self {
            device,
            domain,
            memory,
            buffer,
            registration,
            poster,
        }
    }

    pub(crate) fn local(&self, offset: usize, length: u32) -> DataSegment {
        let address = self.buffer.address() + offset as u64;
        DataSegment::new(address, self.registration.key(), length).unwrap()
    }

    pub(crate) fn remote(&self, offset: usize) -> RemoteAddress {
        let address = self.buffer.address() + offset as u64;
        let key = self.registration.key();
        RemoteAddress { address, key }
    }
}

/// Does not give up because the machine is busy.
pub(crate) fn setup() -> Setup {
    Setup {
        send: SendAttributes {
            timeout: Duration::from_secs(5),
            ..SendAttributes::default()
        },
        receive_queue: true,
        ..Setup::default()
    }
}

pub(crate) fn tcp() -> (LinkStream, LinkStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near.into(), listener.accept().unwrap().0.into())
}

pub(crate) fn unix() -> (LinkStream, LinkStream) {
    let (near, far) = UnixStream::pair().unwrap();
    (near.into(), far.into())
}

pub(crate) fn connect(a: &End, b: &End, (near, far): (LinkStream, LinkStream)) {
    std::thread::scope(|scope| {
        scope.spawn(|| b.device.link(far, PATIENCE).unwrap());
        a.device.link(near, PATIENCE).unwrap();
    });
    let setup = setup();
    a.poster
        .connect(b.poster.pair.address(), &setup, setup.mtu.0);
    b.poster
        .connect(a.poster.pair.address(), &setup, setup.mtu.1);
}

pub(crate) fn linked(keeps: Keeps) -> (End, End) {
    let (a, b) = (
        End::new(SharedMemory::new(keeps)),
        End::new(SharedMemory::new(keeps)),
    );
    connect(&a, &b, unix());
    (a, b)
}

/// Has the peer map this end's memory: the first write offers it.
pub(crate) fn lend(from: &mut End, to: &End) {
    let list = [from.local(0, 8)];
    lend_all(from, to, &list, 1);
}

/// The same with what some segments are in, until there are so many mappings.
pub(crate) fn lend_all(from: &mut End, to: &End, list: &[DataSegment], mappings: u64) {
    let list: Vec<_> = list.iter().map(|segment| segment.encode()).collect();
    from.poster.post(write(to.remote(8 << 10), &list));
    assert_eq!(from.poster.wait().failure(), None);
    wait_for("a mapping", || {
        (to.device.counters().mappings == mappings).then_some(())
    });
    // It is used once this end knows.
    wait_for("its use", || {
        let before = to.device.counters().bytes_mapped;
        from.poster.post(write(to.remote(8 << 10), &list));
        assert_eq!(from.poster.wait().failure(), None);
        (to.device.counters().bytes_mapped > before).then_some(())
    });
}

pub(crate) fn pattern(seed: u32, length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|i| (i * 7 + i / 1000 + seed * 31) as u8)
        .collect()
}
