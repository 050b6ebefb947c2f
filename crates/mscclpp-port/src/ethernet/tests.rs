// SPDX-License-Identifier: MIT
//! A connection whose other end is a bare socket: what a broken, hostile or dying peer can do.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::frame::{Frame, HEADER, MAX_PAYLOAD};
use super::receiver::{Inbound, Received, Receiver};
use super::socket::Socket;
use super::{Arrival, EthernetTransport, Settings};
use crate::buffer::Buffer;
use crate::context::Context;
use crate::device::Device;
use crate::error::Error;
use crate::memory::{Access, RegisteredMemory};
use crate::refusal::{Operation, Refusal, Refused};
use crate::status::StickyStatus;
use crate::testing::eventually;
use crate::transport::Transport;

const STALL: Duration = Duration::from_millis(500);
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
        let status = StickyStatus::new();
        let settings = Settings {
            table: context.table_arc(),
            status: Arc::clone(&status),
            rank: Some(rank),
            peer: theirs.id(),
            queue: None,
            stall_timeout: STALL,
        };
        let arrival = Arrival {
            wait: Box::new(move |_| Ok(ours)),
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

/// Sends bytes that must be refused, with more behind them that must not be executed.
fn refused(access: Access, make: impl Fn(u64) -> Vec<u8>) -> Refused {
    let mut fixture = Fixture::new();
    let closed = (fixture.context)
        .register_memory_with(&fixture.buffer, SIZE..2 * SIZE, access)
        .unwrap();
    let key = closed
        .target("test", fixture.context.id(), 0, 0)
        .unwrap()
        .key;
    let good = fixture.key;
    fixture.send(Frame::Signal {
        key: good,
        offset: 0,
    });
    let mut bytes = make(key);
    bytes.extend(
        Frame::Signal {
            key: good,
            offset: 0,
        }
        .encode(),
    );
    fixture.peer.write_all(&bytes).unwrap();
    let refused = loop {
        match fixture.next() {
            Frame::Nack(refused) => break refused,
            Frame::FlushAck { .. } => {}
            other => panic!("{other:?} instead of a nack"),
        }
    };
    let error = fixture.failure();
    assert!(
        matches!(error, Error::RefusedPeer { rank: Some(3), refused: seen } if seen == refused),
        "{error}"
    );
    assert_eq!(
        fixture.buffer.load_u64(0).unwrap(),
        1,
        "only what came before is executed"
    );
    assert_eq!(fixture.buffer.load_u64(SIZE).unwrap(), 0);
    // Ours goes on reading, so that ours is not the end that resets the connection.
    fixture.peer.write_all(&vec![0; 1 << 20]).unwrap();
    drop(fixture.transport);
    assert!(matches!(fixture.peer.read(&mut [0; 64]), Ok(0) | Err(_)));
    refused
}

#[test]
fn each_bad_operation_is_refused_by_name() {
    let write = |key, offset, len| {
        let mut bytes = Frame::Write { key, offset, len }.encode().to_vec();
        bytes.extend([0xff; 16]);
        bytes
    };
    let signal = |key, offset| Frame::Signal { key, offset }.encode().to_vec();
    let add = |key, offset| {
        let operand = 5;
        Frame::Accumulate {
            key,
            offset,
            operand,
        }
        .encode()
        .to_vec()
    };
    type Case<'a> = (Access, &'a dyn Fn(u64) -> Vec<u8>, Operation, Refusal);
    let cases: [Case<'_>; 15] = [
        (
            Access::FULL,
            &|key| write(key ^ 1, 0, 16),
            Operation::Write,
            Refusal::UnknownKey,
        ),
        (
            Access::FULL,
            &|key| signal(key ^ 1, 0),
            Operation::Signal,
            Refusal::UnknownKey,
        ),
        (
            Access::FULL,
            &|key| add(key ^ 1, 0),
            Operation::Accumulate,
            Refusal::UnknownKey,
        ),
        (
            Access::LOCAL,
            &|key| write(key, 0, 16),
            Operation::Write,
            Refusal::AccessDenied,
        ),
        (
            Access::LOCAL,
            &|key| signal(key, 0),
            Operation::Signal,
            Refusal::AccessDenied,
        ),
        (
            Access::LOCAL,
            &|key| add(key, 0),
            Operation::Accumulate,
            Refusal::AccessDenied,
        ),
        (
            Access::FULL,
            &|key| write(key, SIZE - 15, 16),
            Operation::Write,
            Refusal::OutOfBounds,
        ),
        (
            Access::FULL,
            &|key| write(key, u64::MAX - 7, 16),
            Operation::Write,
            Refusal::OutOfBounds,
        ),
        (
            Access::FULL,
            &|key| signal(key, SIZE - 7),
            Operation::Signal,
            Refusal::OutOfBounds,
        ),
        (
            Access::FULL,
            &|key| add(key, u64::MAX - 7),
            Operation::Accumulate,
            Refusal::OutOfBounds,
        ),
        (
            Access::FULL,
            &|key| signal(key, 4),
            Operation::Signal,
            Refusal::Misaligned,
        ),
        (
            Access::FULL,
            &|key| add(key, 1),
            Operation::Accumulate,
            Refusal::Misaligned,
        ),
        (
            Access::FULL,
            &|key| write(key, 0, 0),
            Operation::Write,
            Refusal::Protocol,
        ),
        (
            Access::FULL,
            &|key| write(key, 0, MAX_PAYLOAD + 1),
            Operation::Write,
            Refusal::Protocol,
        ),
        (
            Access::FULL,
            &|_| vec![0x16; HEADER],
            Operation::Unknown,
            Refusal::Protocol,
        ),
    ];
    for (access, make, operation, reason) in cases {
        let refused = refused(access, make);
        assert_eq!(
            (refused.operation, refused.reason),
            (operation, reason),
            "{refused}"
        );
    }
}

#[test]
fn tickets_out_of_turn_break_the_protocol() {
    let flush = |ticket| Frame::Flush { ticket }.encode();
    let twice = refused(Access::FULL, |_| [flush(5), flush(5)].concat());
    assert_eq!(
        (twice.operation, twice.reason),
        (Operation::Flush, Refusal::Protocol)
    );
    let unasked = refused(Access::FULL, |_| {
        Frame::FlushAck { ticket: 1 }.encode().to_vec()
    });
    assert_eq!(unasked.reason, Refusal::Protocol);
}

#[test]
fn a_refusal_ends_the_sender_with_what_was_refused() {
    let mut fixture = Fixture::new();
    let remote = fixture.remote.clone();
    fixture.transport.signal(&remote, 8).unwrap();
    fixture.transport.kick().unwrap();
    let Frame::Signal { key, offset: 8 } = fixture.next() else {
        panic!("no signal");
    };
    let refused = Refused {
        operation: Operation::Signal,
        key,
        offset: 8,
        len: 8,
        reason: Refusal::AccessDenied,
    };
    fixture.send(Frame::Nack(refused));
    let error = fixture.failure();
    assert!(
        matches!(error, Error::Refused { rank: Some(3), refused: seen } if seen == refused),
        "{error}"
    );
    assert!(fixture.gone());
    assert!(matches!(
        fixture.transport.request_flush(),
        Err(Error::Refused { .. })
    ));
    assert!(
        fixture.transport.has_room(),
        "who is held by a dead connection goes on"
    );
}

#[test]
fn a_write_and_its_signal_leave_together() {
    let mut fixture = Fixture::new();
    let (local, remote) = (fixture.local.clone(), fixture.remote.clone());
    eventually("the connection is made", || {
        fixture.transport.is_connected()
    });
    fixture.buffer.write(100, b"payload!").unwrap();
    fixture.transport.write(&remote, 5, &local, 100, 8).unwrap();
    fixture.transport.signal(&remote, 16).unwrap();
    assert_eq!(fixture.transport.request_flush().unwrap(), 1);
    fixture.transport.kick().unwrap();
    // One send, so one read gets all of it.
    let mut bytes = [0; 200];
    let got = fixture.peer.read(&mut bytes).unwrap();
    assert_eq!(got, 3 * HEADER + 8);
    assert_eq!(&bytes[HEADER..HEADER + 8], b"payload!");
    let before = fixture.transport.progress().unwrap();
    assert!(before.busy && before.flushed == 0);
    fixture.send(Frame::FlushAck { ticket: 1 });
    eventually("the flush", || {
        fixture.transport.progress().unwrap().flushed == 1
    });
    assert!(!fixture.transport.progress().unwrap().busy);
}

#[test]
fn frames_may_arrive_in_any_pieces() {
    let mut fixture = Fixture::new();
    let key = fixture.key;
    let mut bytes = Vec::new();
    for offset in [8, 700, 33] {
        bytes.extend(
            Frame::Write {
                key,
                offset,
                len: 21,
            }
            .encode(),
        );
        bytes.extend([offset as u8; 21]);
        bytes.extend(Frame::Signal { key, offset: 0 }.encode());
    }
    for step in [1, 7, 31, 32, 33, 64] {
        for piece in bytes.chunks(step) {
            fixture.peer.write_all(piece).unwrap();
        }
        fixture.settle(step as u64);
        assert_eq!(
            fixture
                .buffer
                .fetch_add_u64(0, 0u64.wrapping_sub(3))
                .unwrap(),
            3
        );
        let mut there = [0; 21];
        for offset in [8, 700, 33] {
            fixture.buffer.read(offset, &mut there).unwrap();
            assert_eq!(there, [offset as u8; 21]);
            fixture.buffer.write(offset, &[0; 21]).unwrap();
        }
    }
}

#[test]
fn a_peer_that_vanishes_is_named_with_how_it_was_seen() {
    type End = fn(&mut Fixture);
    let cases: [(End, &str); 4] = [
        (
            |f| f.peer.shutdown(Shutdown::Both).unwrap(),
            "without a goodbye",
        ),
        (
            |f| {
                let key = f.key;
                f.send(Frame::Write {
                    key,
                    offset: 0,
                    len: 100,
                });
                f.peer.write_all(&[1; 50]).unwrap();
                f.peer.shutdown(Shutdown::Write).unwrap();
            },
            "inside a frame",
        ),
        (
            |f| {
                // Closing over a linger of zero resets the connection.
                let socket = socket2::SockRef::from(&f.peer);
                socket.set_linger(Some(Duration::ZERO)).unwrap();
                f.peer = streams().0;
            },
            "receiving failed",
        ),
        (|f| f.send(Frame::Goodbye), "the peer closed the connection"),
    ];
    for (end, text) in cases {
        let mut fixture = Fixture::new();
        fixture.settle(1);
        end(&mut fixture);
        let error = fixture.failure();
        assert!(
            matches!(error, Error::PeerDown { rank: Some(3), .. }),
            "{error}"
        );
        assert!(error.to_string().contains(text), "{error}");
        let (local, remote) = (&fixture.local, &fixture.remote);
        let late = fixture.transport.write(remote, 0, local, 0, 8);
        assert!(matches!(late, Err(Error::PeerDown { .. })));
    }
}

/// A stopped process: its socket takes what fits and nothing more.
#[test]
fn a_peer_that_takes_nothing_is_given_up() {
    let fixture = Fixture::new();
    let big = Buffer::new(Device::cpu(), 64 << 20).unwrap();
    let source = fixture.context.register_memory(&big, ..).unwrap();
    let started = Instant::now();
    fixture
        .transport
        .write(&fixture.remote, 0, &source, 0, 64 << 20)
        .unwrap();
    fixture.transport.kick().unwrap();
    let error = fixture.failure();
    assert!(
        matches!(
            error,
            Error::Stalled {
                rank: Some(3),
                after: STALL
            }
        ),
        "{error}"
    );
    assert!(started.elapsed() >= STALL);
    drop(fixture.transport);
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_flush_that_is_never_acknowledged_is_given_up() {
    let fixture = Fixture::new();
    fixture.transport.request_flush().unwrap();
    fixture.transport.kick().unwrap();
    let error = fixture.failure();
    assert!(matches!(error, Error::Stalled { .. }), "{error}");
}

/// The deregistration of raw memory waits for no peer: a write of it that has not left fails.
#[test]
fn raw_memory_can_be_taken_back_from_a_queued_write() {
    let fixture = Fixture::new();
    let mut bytes = vec![0u64; 8 << 20];
    let base = std::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap().cast();
    // SAFETY: the registration is dropped before the bytes are.
    let raw = unsafe { (fixture.context).register_raw(base, 64 << 20, Access::LOCAL) }.unwrap();
    fixture
        .transport
        .write(&fixture.remote, 0, &raw, 0, 64 << 20)
        .unwrap();
    fixture.transport.kick().unwrap();
    let started = Instant::now();
    drop(raw);
    assert!(started.elapsed() < STALL);
    drop(bytes);
    // Ours notices when there is room to send more.
    let mut peer = fixture.peer.try_clone().unwrap();
    while matches!(peer.read(&mut [0; 1 << 16]), Ok(1..)) {}
    let error = fixture.failure();
    assert!(
        matches!(error, Error::SourceGone { rank: Some(3) }),
        "{error}"
    );
}

#[test]
fn an_idle_connection_takes_no_time() {
    // The thread is found by its name, which has the rank.
    let mut fixture = Fixture::of_rank(42);
    fixture.settle(1);
    let before = cpu_time("mscclpp-eth-42");
    std::thread::sleep(Duration::from_secs(1));
    let used = cpu_time("mscclpp-eth-42") - before;
    assert!(used < Duration::from_millis(20), "{used:?}");
}

/// The CPU time that the thread of this name has used.
fn cpu_time(name: &str) -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let read = |task: &std::fs::DirEntry, file| {
        std::fs::read_to_string(task.path().join(file)).unwrap_or_default()
    };
    let task = tasks
        .flatten()
        .find(|task| read(task, "comm").trim() == name)
        .unwrap();
    let nanos = read(&task, "schedstat");
    Duration::from_nanos(nanos.split(' ').next().unwrap().parse().unwrap())
}

#[derive(Default)]
struct Ignore;

impl Inbound for Ignore {
    fn executed(&mut self, _: u64) {}
    fn acknowledged(&mut self, _: u64) -> bool {
        true
    }
    fn refused(&mut self, _: Refused) {}
    fn goodbye(&mut self) {}
}

/// Any bytes at all: the receiver executes or refuses, and touches nothing outside its memory.
#[test]
fn fuzz_stream() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let context = Context::for_tests();
        let buffer = Buffer::new(Device::cpu(), 3 * SIZE).unwrap();
        let local = context.register_memory(&buffer, SIZE..2 * SIZE).unwrap();
        let key = local.target("test", context.id(), 0, 0).unwrap().key;
        // Random bytes are hardly ever frames: let the input choose the fields of some.
        let mut stream = Vec::new();
        for piece in bytes.chunks(12) {
            let [kind, high, low, rest @ ..] = piece else {
                break;
            };
            let offset = u64::from(*high) * 64 + u64::from(*low) % 64;
            let len = rest.len() as u64;
            match kind % 6 {
                0 => stream.extend(
                    Frame::Write {
                        key,
                        offset,
                        len: len.max(1),
                    }
                    .encode(),
                ),
                1 => stream.extend(Frame::Signal { key, offset }.encode()),
                2 => stream.extend(
                    Frame::Accumulate {
                        key,
                        offset,
                        operand: len,
                    }
                    .encode(),
                ),
                3 => stream.extend(Frame::Flush { ticket: offset + 1 }.encode()),
                4 => stream.extend(
                    Frame::Signal {
                        key: offset,
                        offset,
                    }
                    .encode(),
                ),
                _ => {}
            }
            stream.extend(rest);
        }
        let (mut peer, ours) = streams();
        let socket = Socket::new(ours, Duration::from_secs(1)).unwrap();
        peer.write_all(&stream).unwrap();
        drop(peer);
        let mut receiver = Receiver::new(context.table_arc());
        while let Ok(Ok(Received::Bytes | Received::Nothing)) =
            receiver.receive(&socket, &mut Ignore)
        {}
        let mut around = [0; 2 * SIZE as usize];
        let (before, after) = around.split_at_mut(SIZE as usize);
        buffer.read(0, before).unwrap();
        buffer.read(2 * SIZE, after).unwrap();
        assert!(around.iter().all(|byte| *byte == 0));
    });
}
