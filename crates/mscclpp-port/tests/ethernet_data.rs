// SPDX-License-Identifier: MIT
//! Bytes arrive where they were sent, whatever the sizes and offsets.

mod common;

use common::{Memory, connect, context, pair, patience, pattern};
use mscclpp_port::{Access, Buffer, Device, EndpointConfig, Error, TransportKind};
use proptest::prelude::*;

const SPACE: u64 = 3 << 20;

/// Small sizes, and sizes around those at which the transport changes its ways.
fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 1u64..300,
        2 => (60u64 << 10)..(70 << 10),
        2 => (250u64 << 10)..(260 << 10),
        1 => (1u64 << 20) - 64..(1 << 20) + 64,
        1 => 2u64 << 20..(2 << 20) + 9,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn writes_of_any_size_and_offset_arrive_whole_and_alone(
        writes in proptest::collection::vec((sizes(), any::<u64>(), any::<u64>()), 1..12),
        seed in any::<u64>(),
    ) {
        let pair = pair(SPACE);
        let source = pattern(seed, SPACE as usize);
        pair.at_a.buffer.write(0, &source).unwrap();
        let mut expected = vec![0; SPACE as usize];
        for (len, to, from) in writes {
            let (to, from) = (to % (SPACE - len), from % (SPACE - len));
            pair.a_to_b.write(&pair.b_from_a, to, &pair.at_a.local, from, len).unwrap();
            expected[to as usize..(to + len) as usize]
                .copy_from_slice(&source[from as usize..(from + len) as usize]);
        }
        pair.a_to_b.flush(patience()).unwrap();
        prop_assert!(pair.at_b.bytes(0, SPACE as usize) == expected);
    }
}

#[test]
fn both_directions_carry_large_writes_at_once() {
    const LEN: u64 = 32 << 20;
    let pair = pair(2 * LEN);
    let (a, b) = (pattern(1, LEN as usize), pattern(2, LEN as usize));
    pair.at_a.buffer.write(0, &a).unwrap();
    pair.at_b.buffer.write(0, &b).unwrap();
    for _ in 0..3 {
        pair.a_to_b
            .write(&pair.b_from_a, LEN, &pair.at_a.local, 0, LEN)
            .unwrap();
        pair.b_to_a
            .write(&pair.a_from_b, LEN, &pair.at_b.local, 0, LEN)
            .unwrap();
    }
    pair.a_to_b.flush(patience()).unwrap();
    pair.b_to_a.flush(patience()).unwrap();
    assert!(pair.at_b.bytes(LEN, LEN as usize) == a);
    assert!(pair.at_a.bytes(LEN, LEN as usize) == b);
}

#[test]
fn offsets_are_relative_to_the_registration() {
    let (a, b) = (context(0), context(1));
    let (a_to_b, _b_to_a) = connect(&a, &b);
    let source = Memory::new(&a, 64);
    source.buffer.write(0, &[9; 64]).unwrap();
    // Another size than the source's, and not at the start of its buffer.
    let buffer = Buffer::new(Device::cpu(), 16384).unwrap();
    let registered = b.register_memory(&buffer, 4096..12288).unwrap();
    let record = registered.serialize().unwrap();
    let target = mscclpp_port::RegisteredMemory::deserialize(&a, &record).unwrap();
    assert_eq!((target.size(), target.owner_rank()), (8192, Some(1)));
    assert!(target.data().is_none() && registered.data().is_some());
    a_to_b.write(&target, 100, &source.local, 8, 32).unwrap();
    a_to_b.flush(patience()).unwrap();
    let mut bytes = [0; 34];
    buffer.read(4096 + 99, &mut bytes).unwrap();
    assert_eq!((bytes[0], bytes[33]), (0, 0));
    assert_eq!(bytes[1..33], [9; 32]);
}

#[test]
fn a_registration_of_5_gib_is_reached_above_4_gib() {
    const SIZE: u64 = 5 << 30;
    const FAR: u64 = (4 << 30) + 12_344;
    let (a, b) = (context(0), context(1));
    let (a_to_b, _b_to_a) = connect(&a, &b);
    let (source, target) = (Memory::new(&a, SIZE), Memory::new(&b, SIZE));
    let remote = target.seen_by(&a);
    let bytes = pattern(5, 100_000);
    source.buffer.write(FAR, &bytes).unwrap();
    a_to_b
        .write(&remote, FAR + 8, &source.local, FAR, 100_000)
        .unwrap();
    a_to_b.accumulate(&remote, SIZE - 8, -1).unwrap();
    a_to_b.flush(patience()).unwrap();
    assert!(target.bytes(FAR + 8, 100_000) == bytes);
    assert_eq!(target.buffer.load_u64(SIZE - 8).unwrap(), u64::MAX);
    assert!(a_to_b.accumulate(&remote, SIZE, 1).is_err());

    // As a trigger would, whose offsets have 32 bits: through a range of its own.
    let far_source = source.local.sub_range(FAR, 4096).unwrap();
    let far_remote = remote.sub_range(FAR + 200_000, 4096).unwrap();
    a_to_b
        .write(&far_remote, 16, &far_source, 32, 1000)
        .unwrap();
    a_to_b.flush(patience()).unwrap();
    assert!(target.bytes(FAR + 200_016, 1000) == bytes[32..1032]);
    let beyond = a_to_b.write(&far_remote, 4000, &far_source, 0, 97);
    assert!(matches!(beyond, Err(Error::OutOfBounds { size: 4096, .. })));
}

#[test]
fn sub_ranges_travel_and_keep_their_registration_alive() {
    let (a, b) = (context(0), context(1));
    let (a_to_b, _b_to_a) = connect(&a, &b);
    let source = Memory::new(&a, 64);
    source.buffer.write(0, &[3; 64]).unwrap();
    let Memory { buffer, local } = Memory::new(&b, 1000);
    let part = local
        .sub_range(100, 200)
        .unwrap()
        .sub_range(50, 60)
        .unwrap();
    drop(local);
    let record = part.serialize().unwrap();
    let remote = mscclpp_port::RegisteredMemory::deserialize(&a, &record).unwrap();
    assert_eq!(remote.size(), 60);
    a_to_b.write(&remote, 10, &source.local, 0, 50).unwrap();
    a_to_b.flush(patience()).unwrap();
    let mut bytes = [0; 52];
    buffer.read(159, &mut bytes).unwrap();
    assert_eq!((bytes[0], bytes[51]), (0, 0));
    assert_eq!(bytes[1..51], [3; 50]);
    for (offset, len) in [(0, 61), (60, 1), (u64::MAX, 2)] {
        assert!(matches!(
            remote.sub_range(offset, len),
            Err(Error::OutOfBounds { .. })
        ));
    }
    assert!(remote.sub_range(5, 0).is_err());
}

#[test]
fn a_rank_connects_to_itself() {
    let a = context(0);
    let config = EndpointConfig::new(TransportKind::Ethernet);
    let endpoint = a.create_endpoint(config).unwrap();
    let record = endpoint.serialize().unwrap();
    let connection = a.connect(endpoint, &record, patience()).unwrap();
    assert_eq!(connection.peer(), Some(0));
    let (source, target) = (Memory::new(&a, 5 << 20), Memory::new(&a, 5 << 20));
    let bytes = pattern(8, 3 << 20);
    source.buffer.write(7, &bytes).unwrap();
    let seen = target.seen_by(&a);
    assert!(seen.is_local());
    connection
        .write(&seen, 9, &source.local, 7, 3 << 20)
        .unwrap();
    connection.signal(&seen, 0).unwrap();
    connection.accumulate(&seen, 0, 41).unwrap();
    connection.flush(patience()).unwrap();
    assert!(target.bytes(9, 3 << 20) == bytes);
    assert_eq!(target.buffer.load_u64(0).unwrap(), 42);
    let far = connection.write(&seen, u64::MAX, &source.local, 0, 2);
    assert!(matches!(far, Err(Error::OutOfBounds { .. })));
    assert!(connection.status().is_none());

    let closed = Memory::with(&a, 64, Access::LOCAL);
    let denied = connection.write(&closed.local, 0, &source.local, 0, 1);
    assert!(matches!(denied, Err(Error::Refused { rank: Some(0), .. })));
}

#[test]
fn raw_memory_is_a_source_and_a_target() {
    let (a, b) = (context(0), context(1));
    let (a_to_b, b_to_a) = connect(&a, &b);
    let mut words = vec![0u64; 1000];
    words[999] = 77;
    let base = std::ptr::NonNull::new(words.as_mut_ptr()).unwrap().cast();
    // SAFETY: `words` outlives the registration and is not touched in between but by atomics.
    let raw = unsafe { a.register_raw(base, 8000, Access::FULL) }.unwrap();
    let target = Memory::new(&b, 8000);
    let record = raw.serialize().unwrap();
    let back = mscclpp_port::RegisteredMemory::deserialize(&b, &record).unwrap();
    a_to_b.write(&target.seen_by(&a), 0, &raw, 0, 8000).unwrap();
    a_to_b.flush(patience()).unwrap();
    assert_eq!(target.buffer.load_u64(7992).unwrap(), 77);
    b_to_a.accumulate(&back, 0, 5).unwrap();
    b_to_a.flush(patience()).unwrap();
    drop((raw, back));
    assert_eq!(words[0], 5);
}
