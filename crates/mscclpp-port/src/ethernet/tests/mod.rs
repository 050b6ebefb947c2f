// SPDX-License-Identifier: MIT
//! A connection whose other end is a bare socket: what a broken, hostile or dying peer can do.

mod death;
mod frames;
mod refuse;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use mscclpp_bootstrap::Deadlines;

use super::frame::{Frame, HEADER, MAX_PAYLOAD};
use super::receiver::{Inbound, Received, Receiver};
use super::socket::Socket;
use super::{Arrival, EthernetTransport, Settings};
use crate::buffer::Buffer;
use crate::context::Context;
use crate::device::Device;
use crate::error::Error;
use crate::memory::{Access, MemoryOptions, RegisteredMemory};
use crate::refusal::{Operation, Refusal, Refused};
use crate::status::StickyStatus;
use crate::testing::eventually;
use crate::transport::Transport;

const STALL: Duration = Duration::from_millis(500);

fn deadlines() -> Deadlines {
    let mut deadlines = Deadlines::read(|_| None);
    deadlines.stall = STALL;
    deadlines
}

/// For a peer that takes or says nothing for a while and goes on.
fn patient() -> Deadlines {
    let mut deadlines = deadlines();
    deadlines.stall = Duration::from_secs(20);
    deadlines
}

const SIZE: u64 = 4096;

/// One end of ours, and the bare other end.
struct Fixture {
    transport: EthernetTransport,
    status: Arc<StickyStatus>,
    peer: TcpStream,
    buffer: Buffer,
    local: RegisteredMemory,
    key: u64,
    /// Memory of the peer's context, to post to.
    remote: RegisteredMemory,
    context: Context,
}

fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

impl Fixture {
    fn new() -> Self {
        Self::of_rank(3)
    }

    fn of_rank(rank: usize) -> Self {
        Self::with(rank, deadlines(), || {})
    }

    /// `comes` returns when the stream may come.
    fn with(rank: usize, deadlines: Deadlines, comes: impl FnOnce() + Send + 'static) -> Self {
        let (ours, peer) = streams();
        peer.set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let (context, theirs) = (Context::for_tests(), Context::for_tests());
        let buffer = Buffer::new(Device::cpu(), 4 * SIZE).unwrap();
        let local = context.register_memory(&buffer, 0..SIZE).unwrap();
        let key = local.target("test", context.id(), 0, 0).unwrap().key;
        let far = Buffer::new(Device::cpu(), 1 << 30).unwrap();
        let record = theirs
            .register_memory(&far, ..)
            .unwrap()
            .serialize()
            .unwrap();
        let remote = RegisteredMemory::deserialize(&context, &record).unwrap();
        let status = StickyStatus::new().unwrap();
        let settings = Settings {
            table: context.table_arc(),
            status: Arc::clone(&status),
            own: None,
            rank: Some(rank),
            peer: theirs.id(),
            queue: None,
            deadlines,
            device: Device::cpu(),
            trace: None,
        };
        let arrival = Arrival {
            wait: Box::new(move |_| {
                comes();
                Ok(ours)
            }),
            cancel: Box::new(|| {}),
        };
        Self {
            transport: EthernetTransport::new(arrival, settings).unwrap(),
            status,
            peer,
            buffer,
            local,
            key,
            remote,
            context,
        }
    }

    fn send(&mut self, frame: Frame) {
        self.peer.write_all(&frame.encode()).unwrap();
    }

    fn next(&mut self) -> Frame {
        let mut header = [0; HEADER];
        self.peer.read_exact(&mut header).unwrap();
        Frame::decode(&header).unwrap()
    }

    /// Everything before has been executed.
    fn settle(&mut self, ticket: u64) {
        self.send(Frame::Flush { ticket });
        assert_eq!(self.next(), Frame::FlushAck { ticket });
    }

    fn failure(&self) -> Error {
        eventually("the connection fails", || self.status.is_failed());
        self.status.error().unwrap()
    }

    /// The end of the stream, or its reset.
    fn gone(&mut self) -> bool {
        matches!(self.peer.read(&mut [0; 64]), Ok(0) | Err(_))
    }
}
