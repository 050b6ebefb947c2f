// SPDX-License-Identifier: MIT
//! Operations that must not be executed.

use std::io::{ErrorKind, Read, Write};

use super::*;

/// Sends bytes that must be refused, with more behind them that must not be executed.
fn refused(access: Access, make: impl Fn(u64) -> Vec<u8>) -> Refused {
    let mut fixture = Fixture::new();
    let options = MemoryOptions {
        access,
        ..MemoryOptions::default()
    };
    let closed = (fixture.context)
        .register_memory_with(&fixture.buffer, SIZE..2 * SIZE, options)
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
    fixture.transport.kick();
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

/// The thread of a connection that refused something waits for nobody: neither for a peer that
/// goes on sending nor for one that keeps its end open in silence.
#[test]
fn after_a_refusal_the_connection_is_closed_whatever_the_peer_does() {
    for talks in [false, true] {
        let mut fixture = Fixture::new();
        fixture.send(Frame::Signal { key: 0, offset: 0 });
        assert!(matches!(fixture.next(), Frame::Nack(_)));
        if talks {
            // The end shows as an error of a later write.
            let noise = [0; HEADER];
            eventually("the connection is closed", || {
                fixture.peer.write_all(&noise).is_err()
            });
        } else {
            // A read that only runs out of time is an error too, but of another kind.
            let end = fixture.peer.read(&mut [0; 1]);
            let open = |kind| matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut);
            assert!(!end.as_ref().is_err_and(|e| open(e.kind())), "{end:?}");
            assert!(!matches!(end, Ok(1..)), "{end:?}");
        }
    }
}

#[test]
fn nothing_is_executed_behind_a_goodbye() {
    let mut fixture = Fixture::new();
    let signal = Frame::Signal {
        key: fixture.key,
        offset: 0,
    };
    // In one piece, so that all of it is there when the goodbye is read.
    let bytes = [signal, Frame::Goodbye, signal].map(|frame| frame.encode());
    fixture.peer.write_all(&bytes.concat()).unwrap();
    eventually("the goodbye is read", || fixture.status.is_failed());
    eventually("the connection is closed", || fixture.gone());
    assert_eq!(fixture.buffer.load_u64(0).unwrap(), 1);
}
