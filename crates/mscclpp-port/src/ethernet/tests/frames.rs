// SPDX-License-Identifier: MIT
//! Frames as a peer sees and sends them.

use std::io::{Read, Write};
use std::sync::mpsc;
use std::time::Duration;

use super::*;

#[test]
fn a_write_and_its_signal_leave_together() {
    let (connect, connected) = mpsc::channel();
    let mut fixture = Fixture::with(3, patient(), move || connected.recv().unwrap());
    let (local, remote) = (fixture.local.clone(), fixture.remote.clone());
    fixture.buffer.write(100, b"payload!").unwrap();
    fixture.transport.write(&remote, 5, &local, 100, 8).unwrap();
    fixture.transport.signal(&remote, 16).unwrap();
    assert_eq!(fixture.transport.request_flush().unwrap(), 1);
    fixture.transport.kick();
    // Before the connection is made nobody sends: the first who does finds all three.
    connect.send(()).unwrap();
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
    assert_eq!(fixture.transport.counts().doorbells, Some(1), "sends");
}

/// The payload arrives in pieces that end inside words; each word is seen whole or not at all.
#[test]
fn a_word_of_a_small_write_is_never_seen_in_part() {
    let context = Context::for_tests();
    let buffer = Buffer::new(Device::cpu(), SIZE).unwrap();
    let local = context.register_memory(&buffer, ..).unwrap();
    let key = local.target("test", context.id(), 0, 0).unwrap().key;
    let (mut peer, ours) = streams();
    let socket = Socket::new(ours, STALL).unwrap();
    let mut receiver = Receiver::new(context.table_arc(), None, Duration::from_secs(10));
    // 3 bytes before the first word, 4 behind the last.
    let (offset, len) = (13, 3 + 64 + 4);
    for piece in [1, 5, 13, 40] {
        buffer.write(0, &[0; 100]).unwrap();
        let mut bytes = Frame::Write { key, offset, len }.encode().to_vec();
        bytes.extend([0xff; 3 + 64 + 4]);
        for piece in bytes.chunks(piece) {
            peer.write_all(piece).unwrap();
            while receiver.receive(&socket, &mut Ignore).unwrap().unwrap() == Received::Nothing {
                std::thread::yield_now();
            }
            for at in (16..80).step_by(8) {
                let word = buffer.load_u64(at).unwrap();
                assert!(word == 0 || word == u64::MAX, "{word:#x} at {at}");
            }
        }
        let mut there = [0; 73];
        buffer.read(12, &mut there).unwrap();
        assert_eq!((there[0], there[72]), (0, 0));
        assert!(there[1..72].iter().all(|byte| *byte == 0xff));
    }
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
        let mut receiver = Receiver::new(context.table_arc(), None, Duration::from_secs(10));
        while let Ok(Ok(Received::Bytes { .. } | Received::Nothing)) =
            receiver.receive(&socket, &mut Ignore)
        {}
        let mut around = [0; 2 * SIZE as usize];
        let (before, after) = around.split_at_mut(SIZE as usize);
        buffer.read(0, before).unwrap();
        buffer.read(2 * SIZE, after).unwrap();
        assert!(around.iter().all(|byte| *byte == 0));
    });
}
