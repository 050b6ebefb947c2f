// SPDX-License-Identifier: MIT
//! The other end of a link, in the hands of a test.

use std::io::{Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use mlx5_queue::*;
use mscclpp_softnic::*;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::ends::*;
use crate::support::shared_memory::*;

pub(crate) const OFFERED: u8 = 32;
pub(crate) const TAKEN: u8 = 33;
pub(crate) const DECLINED: u8 = 34;
pub(crate) const WITHDRAWN: u8 = 35;
pub(crate) const RELEASED: u8 = 36;
pub(crate) const WRITE: u8 = 1;
pub(crate) const WRITE_LENT: u8 = 10;
pub(crate) const ACKNOWLEDGE: u8 = 6;
pub(crate) const REFUSE: u8 = 7;
/// The refusal of what cannot be reached.
pub(crate) const OPERATION: u8 = 5;

/// The other end of a link of `end`'s device: its stream, and its queue.
pub(crate) struct Peer {
    pub(crate) stream: UnixStream,
    queue: u32,
    packets: u64,
}

pub(crate) fn hello(stream: &mut (impl Read + Write)) -> DeviceAddress {
    let mut own = *b"softnic\x02peer............";
    fastrand::Rng::new().fill(&mut own[12..]);
    stream.write_all(&own).unwrap();
    stream.read_exact(&mut [0; 24]).unwrap();
    DeviceAddress(own[8..].try_into().unwrap())
}

/// A frame of these fields.
pub(crate) fn frame(kind: u8, fields: &[&[u8]]) -> Vec<u8> {
    let body = fields.concat();
    let length = (body.len() as u32 + 1).to_le_bytes();
    [&length[..], &[kind], &body].concat()
}

pub(crate) fn offer(key: u32, address: u64, length: u64, descriptor: bool, offset: u64) -> Vec<u8> {
    let (key, address, length) = (
        key.to_le_bytes(),
        address.to_le_bytes(),
        length.to_le_bytes(),
    );
    let fields: [&[u8]; 6] = [
        &key,
        &address,
        &length,
        &[descriptor.into()],
        b"a memfd:",
        &offset.to_le_bytes(),
    ];
    frame(OFFERED, &fields)
}

pub(crate) fn notice(kind: u8, key: u32) -> Vec<u8> {
    frame(kind, &[&key.to_le_bytes()])
}

impl Peer {
    /// A link to a device, which needs no queue for that; who this is to it.
    pub(crate) fn link(device: &Device) -> (Self, DeviceAddress) {
        let (near, mut stream) = UnixStream::pair().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let address = std::thread::scope(|scope| {
            let linked = scope.spawn(|| device.link(near, PATIENCE).unwrap());
            let address = hello(&mut stream);
            assert_eq!(linked.join().unwrap(), address);
            address
        });
        let (queue, packets) = (0, 0);
        let peer = Self {
            stream,
            queue,
            packets,
        };
        (peer, address)
    }

    pub(crate) fn of(end: &End) -> Self {
        let (mut this, device) = Self::link(&end.device);
        let queue = QueueNumber::new(0x77).unwrap();
        let peer = QueueAddress { device, queue };
        end.poster.connect(peer, &setup(), Mtu::Bytes4096);
        this.queue = end.poster.pair.number().get();
        this
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn say_with(&mut self, bytes: &[u8], descriptor: BorrowedFd<'_>) {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let bytes = [std::io::IoSlice::new(bytes)];
        sendmsg(&self.stream, &bytes, &mut ancillary, SendFlags::empty()).unwrap();
    }

    /// A write of `length` bytes to `remote`, whose bytes are in a piece.
    pub(crate) fn write(&mut self, remote: RemoteAddress, length: u64, piece: (u32, u64)) {
        let number = self.packets.to_le_bytes();
        self.packets += 1;
        let length = length.to_le_bytes();
        let fields: [&[u8]; 14] = [
            &self.queue.to_le_bytes(),
            &0x77u32.to_le_bytes(),
            &number,
            &remote.key.get().to_le_bytes(),
            &remote.address.to_le_bytes(),
            &length,
            &[0; 8],
            &length,
            &1u64.to_le_bytes(),
            &[0],
            &[0; 4],
            &piece.0.to_le_bytes(),
            &piece.1.to_le_bytes(),
            &length,
        ];
        let bytes = frame(WRITE_LENT, &fields);
        self.say(&bytes);
    }

    /// A packet of the device's with this number is done.
    pub(crate) fn acknowledge(&mut self, number: [u8; 8]) {
        let from = 0x77u32.to_le_bytes();
        let fields: [&[u8]; 3] = [&self.queue.to_le_bytes(), &from, &number];
        self.say(&frame(ACKNOWLEDGE, &fields));
    }

    /// The next frame's kind and what follows.
    pub(crate) fn heard(&mut self) -> (u8, Vec<u8>) {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).unwrap();
        let mut body = vec![0; u32::from_le_bytes(length) as usize];
        self.stream.read_exact(&mut body).unwrap();
        (body[0], body[1..].to_vec())
    }

    /// The device closes its end.
    pub(crate) fn expect_hang_up(mut self) {
        if let Err(error) = self.stream.read_to_end(&mut Vec::new()) {
            // What it has not read makes a reset of it.
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }
}

/// A peer has lent a buffer as key 5, at address 0x10000.
pub(crate) fn lending(end: &End, buffer: &SharedBuffer) -> Peer {
    let mut peer = Peer::of(end);
    let offered = offer(5, 0x10000, 4096, true, 64);
    peer.say_with(&offered, buffer.memory());
    assert_eq!(peer.heard(), (TAKEN, 5u32.to_le_bytes().to_vec()));
    peer
}

pub(crate) fn end() -> End {
    End::new(SharedMemory::new(Keeps::Order))
}
