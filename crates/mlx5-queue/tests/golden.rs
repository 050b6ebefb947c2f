// SPDX-License-Identifier: MIT
//! Bytes that GPUNetIO's own prepare functions produced (3.0.0 and 4.0.0,
//! compiled for a CPU; both versions agree). `..` marks bytes that they leave
//! alone. Bytes 8 to 10, and 12 to 15 where there is no immediate, are not
//! compared: the library leaves them unset in a local variable.

use mlx5_queue::*;

const QUEUE: u32 = 0x12_3456;
const INDEX: u16 = 0xabcd;
const REMOTE: RemoteAddress = RemoteAddress {
    address: 0x1122_3344_5566_7788,
    key: MemoryKey::new(0x00b1_b25a),
};

fn local(length: u32) -> DataSegment {
    DataSegment::new(0xa1a2_a3a4_a5a6_a7a8, MemoryKey::new(0x00c1_c25a), length).unwrap()
}

fn parse(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .bytes()
        .filter(|b| !b.is_ascii_whitespace() && *b != b'.')
        .collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// Encodes to the golden bytes under their mask, and decodes them, whatever
/// the masked bytes hold.
fn check(operation: Operation<'_>, golden: &str) {
    let golden = parse(golden);
    let request = WorkRequest {
        queue: QueueNumber::new(QUEUE).unwrap(),
        index: INDEX,
        flags: Flags::SIGNALLED,
        operation,
    };
    let mut slot = [0xee; BLOCK_BYTES];
    let written = request.encode(&mut slot).unwrap();
    assert_eq!(
        written,
        golden.len(),
        "writes exactly what the library writes"
    );
    assert!(
        slot[written..].iter().all(|&byte| byte == 0xee),
        "and nothing after it"
    );
    let masked = |i: usize| (8..11).contains(&i) || (12..16).contains(&i);
    for (i, (ours, theirs)) in slot.iter().zip(&golden).enumerate() {
        assert!(
            masked(i) || ours == theirs,
            "byte {i}: {ours:02x}, not {theirs:02x}"
        );
    }
    for noise in [0x00, 0x5a, 0xff] {
        let mut bytes = golden.clone();
        for (i, byte) in bytes.iter_mut().enumerate() {
            if masked(i) {
                *byte = noise;
            }
        }
        bytes.resize(BLOCK_BYTES, 0xee);
        assert_eq!(WorkRequest::decode(&bytes), Ok(request));
    }
}

#[test]
fn nop() {
    check(Operation::Nop, "00abcd00 12345601 00000008 00000000 ..");
}

#[test]
fn write() {
    check(
        Operation::Write {
            remote: REMOTE,
            payload: Payload::Gather(DataSegments::new(&[local(0x40).encode()])),
            immediate: None,
        },
        "00abcd08 12345603 00000008 00000000  11223344 55667788 00b1b25a 00000000
         00000040 00c1c25a a1a2a3a4 a5a6a7a8 ..",
    );
}

#[test]
fn read() {
    check(
        Operation::Read {
            remote: REMOTE,
            scatter: DataSegments::new(&[local(0x40).encode()]),
        },
        "00abcd10 12345603 00000008 00000000  11223344 55667788 00b1b25a 00000000
         00000040 00c1c25a a1a2a3a4 a5a6a7a8 ..",
    );
}

#[test]
fn fetch_and_add() {
    check(
        Operation::FetchAdd {
            remote: REMOTE,
            add: 0x0102_0304_0506_0708,
            result: local(8),
        },
        "00abcd12 12345604 00000008 00000000  11223344 55667788 00b1b25a 00000000
         01020304 05060708 01020304 05060708  00000008 00c1c25a a1a2a3a4 a5a6a7a8",
    );
}

#[test]
fn fetch_and_add_with_any_second_half() {
    let bytes = parse(
        "00abcd12 12345604 00000008 00000000  11223344 55667788 00b1b25a 00000000
         01020304 05060708 00000000 00000000  00000008 00c1c25a a1a2a3a4 a5a6a7a8",
    );
    let operation = WorkRequest::decode(&bytes).unwrap().operation;
    assert!(matches!(
        operation,
        Operation::FetchAdd {
            add: 0x0102_0304_0506_0708,
            ..
        }
    ));
}

#[test]
fn compare_and_swap() {
    check(
        Operation::CompareSwap {
            remote: REMOTE,
            compare: 0x0102_0304_0506_0708,
            swap: 0x1112_1314_1516_1718,
            result: local(8),
        },
        "00abcd11 12345604 00000008 00000000  11223344 55667788 00b1b25a 00000000
         11121314 15161718 01020304 05060708  00000008 00c1c25a a1a2a3a4 a5a6a7a8",
    );
}

#[test]
fn inline_write_in_one_segment() {
    let data: Vec<u8> = (0x80..0x8c).collect();
    check(
        Operation::Write {
            remote: REMOTE,
            payload: Payload::Inline(&data),
            immediate: None,
        },
        "00abcd08 12345603 00000008 00000000  11223344 55667788 00b1b25a 00000000
         8000000c 80818283 84858687 88898a8b ..",
    );
}

#[test]
fn inline_write_in_two_segments() {
    let data: Vec<u8> = (0x80..0x9c).collect();
    check(
        Operation::Write {
            remote: REMOTE,
            payload: Payload::Inline(&data),
            immediate: None,
        },
        "00abcd08 12345604 00000008 00000000  11223344 55667788 00b1b25a 00000000
         8000001c 80818283 84858687 88898a8b  8c8d8e8f 90919293 94959697 98999a9b",
    );
}

#[test]
fn wait() {
    check(
        Operation::Wait {
            queue: QueueNumber::new(0x65_4321).unwrap(),
            index: 0x77,
        },
        "00abcd0f 12345602 00000008 00000000  00000000 00000000 00000077 00654321 ..",
    );
}

#[test]
fn dump() {
    check(
        Operation::Dump { source: local(8) },
        "00abcd23 12345602 00000008 00000000  00000008 00c1c25a a1a2a3a4 a5a6a7a8 ..",
    );
}

#[test]
fn doorbell_and_record() {
    let queue = QueueNumber::new(QUEUE).unwrap();
    let index = QueueIndex::new(0x1_abcd);
    let golden = parse("01abcd00 12345600");
    assert_eq!(Doorbell::new(queue, index).encode()[..], golden);
    assert_eq!(DoorbellRecord::send_word(index)[..], parse("0000abcd"));
    // rdma-core rings with the first bytes of the request itself.
    for bytes in [
        [1, 0xab, 0xcd, 0],
        [0, 0xab, 0xcd, 0x08],
        [0xff, 0xab, 0xcd, 0xff],
    ] {
        let [a, b, c, d] = bytes;
        let doorbell = Doorbell::decode([a, b, c, d, 0x12, 0x34, 0x56, 0x03]);
        assert_eq!((doorbell.queue, doorbell.low16()), (queue, 0xabcd));
    }
}
