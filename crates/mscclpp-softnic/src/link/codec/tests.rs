// SPDX-License-Identifier: MIT
use proptest::prelude::*;

use mlx5_queue::QueueNumber;

use super::*;
use crate::memory::{Bytes, Export};
use crate::nic::loans::Offer;
use crate::nic::packet::{MAX_PIECES, Piece};

fn part() -> impl Strategy<Value = (Part, Vec<u8>)> {
    (
        prop::collection::vec(any::<u8>(), 0..300),
        0..1u64 << 40,
        0..1u64 << 40,
        1..1u64 << 40,
    )
        .prop_map(|(bytes, offset, after, packets)| {
            let length = bytes.len() as u64;
            let total = offset + length + after;
            (
                Part {
                    total,
                    offset,
                    length,
                    packets,
                },
                bytes,
            )
        })
}

fn body() -> impl Strategy<Value = Body> {
    let refusal = prop_oneof![
        Just(Refusal::Sequence),
        any::<u32>().prop_map(|microseconds| Refusal::NotReady { microseconds }),
        Just(Refusal::Access),
        Just(Refusal::InvalidRequest),
        Just(Refusal::Operation),
    ];
    let key = || any::<u32>().prop_map(MemoryKey::new);
    // By the first byte: bytes, or pieces of so many in all.
    let payload = |bytes: Vec<u8>| {
        if bytes.first().is_none_or(|first| first % 2 == 0) {
            return Payload::Bytes(Bytes::from_vec(bytes));
        }
        let pieces = bytes.chunks(bytes.len().div_ceil(MAX_PIECES).max(5));
        let piece = |chunk: &[u8]| Piece {
            key: MemoryKey::new(chunk[0].into()),
            address: u64::from(chunk[0]) << 56,
            length: chunk.len() as u64,
        };
        Payload::Pieces(pieces.map(piece).collect())
    };
    prop_oneof![
        (key(), any::<u64>(), part(), any::<Option<u32>>()).prop_map(
            move |(key, address, (part, bytes), immediate)| {
                Body::Write {
                    key,
                    address,
                    part,
                    immediate,
                    payload: payload(bytes),
                }
            }
        ),
        (part(), any::<Option<u32>>()).prop_map(move |((part, bytes), immediate)| {
            Body::Send {
                part,
                immediate,
                payload: payload(bytes),
            }
        }),
        (key(), any::<u64>(), 0..MAX_COUNT, 0..MAX_COUNT).prop_map(
            |(key, address, length, packets)| Body::Read {
                key,
                address,
                length,
                packets
            }
        ),
        (key(), any::<u64>(), any::<u64>()).prop_map(|(key, address, add)| {
            Body::Atomic {
                key,
                address,
                operation: AtomicOperation::Add(add),
            }
        }),
        (key(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
            |(key, address, compare, swap)| {
                let operation = AtomicOperation::Swap { compare, swap };
                Body::Atomic {
                    key,
                    address,
                    operation,
                }
            }
        ),
        Just(Body::Acknowledge),
        refusal.prop_map(Body::Refuse),
        part().prop_map(move |(part, bytes)| {
            Body::ReadResponse {
                part,
                payload: payload(bytes),
            }
        }),
        any::<u64>().prop_map(|old| Body::AtomicResponse { old }),
    ]
}

fn notice() -> impl Strategy<Value = Notice> {
    let description = prop::collection::vec(any::<u8>(), 0..=Export::MAX_DESCRIPTION);
    let offer = (1..=u64::MAX, any::<u64>(), any::<bool>(), description);
    prop_oneof![
        offer.prop_map(|(length, address, descriptor, description)| {
            Notice::Offered(Offer {
                address: address.min(u64::MAX - length),
                length,
                descriptor,
                description,
            })
        }),
        Just(Notice::Taken),
        Just(Notice::Declined),
        Just(Notice::Withdrawn),
        Just(Notice::Released),
    ]
}

fn reads_back(bytes: &[u8], frame: &Frame) -> Result<(), TestCaseError> {
    prop_assert_eq!(frame_length(bytes), Ok(Some(bytes.len())));
    let decoded = decode(&bytes[HEADER..]);
    prop_assert_eq!(decoded.as_ref(), Ok(frame));
    Ok(())
}

proptest! {
    #[test]
    fn a_packet_reads_back(
        to in 0u32..1 << 24, from in 0u32..1 << 24, number in 0..MAX_COUNT, body in body(),
    ) {
        let to = QueueNumber::new(to).unwrap();
        let from = QueueNumber::new(from).unwrap();
        let packet = Packet { to, from, number, body };
        let mut bytes = vec![9, 9];
        encode(&packet, &mut bytes);
        let frame = &bytes[2..];
        reads_back(frame, &Frame::Packet(packet))?;
        // Cut anywhere it is an error, never another packet.
        for end in HEADER..frame.len() {
            prop_assert!(decode(&frame[HEADER..end]).is_err());
        }
    }

    #[test]
    fn a_notice_reads_back(key in any::<u32>(), notice in notice()) {
        let key = MemoryKey::new(key);
        let mut bytes = Vec::new();
        encode_notice(key, &notice, &mut bytes);
        reads_back(&bytes, &Frame::Notice(key, notice))?;
        // A description has no length of its own.
        for end in HEADER..bytes.len().min(HEADER + 22) {
            prop_assert!(decode(&bytes[HEADER..end]).is_err());
        }
    }
}

#[test]
fn fuzz_packet() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let _ = frame_length(bytes);
        let Ok(frame) = mscclpp_fuzz::in_proportion(bytes, || decode(bytes)) else {
            return;
        };
        let mut again = Vec::new();
        match &frame {
            Frame::Packet(packet) => encode(packet, &mut again),
            Frame::Notice(key, notice) => encode_notice(*key, notice, &mut again),
        }
        assert_eq!(decode(&again[HEADER..]), Ok(frame));
    });
}

/// A write of `total` bytes whose payload is these pieces.
fn lent(total: u64, pieces: &[(u64, u64)]) -> Vec<u8> {
    let part = Part {
        total,
        offset: 0,
        length: total,
        packets: 1,
    };
    let key = MemoryKey::new(7);
    let piece = |&(address, length): &(u64, u64)| Piece {
        key,
        address,
        length,
    };
    let body = Body::Write {
        key,
        address: 0,
        part,
        immediate: None,
        payload: Payload::Pieces(pieces.iter().map(piece).collect()),
    };
    let (to, from) = (QueueNumber::default(), QueueNumber::default());
    let mut bytes = Vec::new();
    let packet = Packet {
        to,
        from,
        number: 0,
        body,
    };
    encode(&packet, &mut bytes);
    bytes
}

#[test]
fn pieces_have_to_be_the_whole_payload() {
    let decoded = |bytes: Vec<u8>| decode(&bytes[HEADER..]);
    assert!(decoded(lent(10, &[(1, 4), (100, 6)])).is_ok());
    let many = vec![(0, 1); MAX_PIECES + 1];
    for (total, pieces) in [
        (10, &[(1, 4), (100, 5)][..]),
        (10, &[(1, 4), (100, 7)]),
        (10, &[(1, 10), (100, 0)]),
        (10, &[(1, 12), (100, u64::MAX - 1)]),
        (MAX_PIECES as u64 + 1, &many),
    ] {
        assert_eq!(
            decoded(lent(total, pieces)),
            Err(CodecError::Range),
            "{pieces:?}"
        );
    }
    let mut none = lent(10, &[(1, 10)]);
    none.truncate(none.len() - 20);
    assert_eq!(decoded(none), Err(CodecError::Range));
}

#[test]
fn offers_of_nothing_or_of_too_much_are_refused() {
    let offer = |address, length, description: usize| {
        let notice = Notice::Offered(Offer {
            address,
            length,
            descriptor: true,
            description: vec![0; description],
        });
        let mut bytes = Vec::new();
        encode_notice(MemoryKey::new(1), &notice, &mut bytes);
        decode(&bytes[HEADER..])
    };
    assert!(offer(u64::MAX - 8, 8, Export::MAX_DESCRIPTION).is_ok());
    assert_eq!(offer(0, 0, 0), Err(CodecError::Range));
    assert_eq!(offer(u64::MAX, 1, 0), Err(CodecError::Range));
    let long = offer(0, 1, Export::MAX_DESCRIPTION + 1);
    assert_eq!(long, Err(CodecError::Range));
}

#[test]
fn long_frames_are_refused_before_they_are_read() {
    let header = (MAX_FRAME as u32 + 1).to_le_bytes();
    assert_eq!(
        frame_length(&header),
        Err(CodecError::Length(MAX_FRAME + 1))
    );
    assert_eq!(frame_length(&header[..3]), Ok(None));
}
