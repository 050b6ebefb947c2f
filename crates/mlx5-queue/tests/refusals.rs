// SPDX-License-Identifier: MIT
//! Requests that are not of their operation's form are refused by name.

use mlx5_queue::*;

#[test]
fn sizes_that_are_not_the_operations_are_refused() {
    let forms = [
        (Opcode::Nop, 1..=1),
        (Opcode::Wait, 2..=2),
        (Opcode::Dump, 2..=2),
        (Opcode::FetchAdd, 4..=4),
        (Opcode::CompareSwap, 4..=4),
        (Opcode::Write, 2..=63),
        (Opcode::Read, 2..=63),
        (Opcode::Send, 1..=63),
    ];
    for (opcode, allowed) in forms {
        for segments in 0..64 {
            let mut bytes = [0; MAX_BLOCKS * BLOCK_BYTES];
            bytes[3] = opcode as u8;
            bytes[7] = segments;
            let result = WorkRequest::decode(&bytes);
            if allowed.contains(&segments) {
                assert!(result.is_ok(), "{opcode} of {segments}: {result:?}");
            } else {
                assert_eq!(result, Err(Error::SegmentCount { opcode, segments }));
            }
        }
    }
}

#[test]
fn inline_data_must_fill_its_segments() {
    let mut bytes = [0; 80];
    bytes[3] = Opcode::Write as u8;
    bytes[7] = 4;
    let mut with = |length: u32| {
        bytes[32..36].copy_from_slice(&(0x8000_0000 | length).to_be_bytes());
        WorkRequest::decode(&bytes).map(|_| ())
    };
    let opcode = Opcode::Write;
    assert_eq!(
        with(0),
        Err(Error::InlineLength {
            length: 0,
            room: 28
        })
    );
    assert_eq!(
        with(12),
        Err(Error::SegmentCount {
            opcode,
            segments: 4
        })
    );
    assert_eq!(with(13), Ok(()));
    assert_eq!(with(28), Ok(()));
    assert_eq!(
        with(29),
        Err(Error::InlineLength {
            length: 29,
            room: 28
        })
    );
    assert_eq!(
        with(0x7fff_ffff),
        Err(Error::InlineLength {
            length: 0x7fff_ffff,
            room: 28
        })
    );
}

#[test]
fn results_and_mixed_payloads_cannot_be_inline() {
    let mut bytes = [0; 64];
    bytes[7] = 3;
    bytes[3] = Opcode::Read as u8;
    bytes[32..36].copy_from_slice(&0x8000_000c_u32.to_be_bytes());
    let opcode = Opcode::Read;
    assert_eq!(
        WorkRequest::decode(&bytes),
        Err(Error::InlineResult { opcode })
    );
    bytes[7] = 4;
    for (opcode, at) in [(Opcode::FetchAdd, 48), (Opcode::CompareSwap, 48)] {
        bytes[3] = opcode as u8;
        bytes[32] = 0;
        bytes[at] = 0x80;
        assert_eq!(
            WorkRequest::decode(&bytes),
            Err(Error::InlineResult { opcode })
        );
    }
    bytes[3] = Opcode::Write as u8;
    assert_eq!(
        WorkRequest::decode(&bytes),
        Err(Error::MixedPayload { segments: 1 })
    );
}
