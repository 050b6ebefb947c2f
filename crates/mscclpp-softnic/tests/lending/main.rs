// SPDX-License-Identifier: MIT
//! Devices of one host that reach each other's memory themselves.

#[path = "../support/mod.rs"]
mod support;

mod bursts;
mod ending;
mod ends;
mod hostile;
mod order;
mod peer;
mod processes;

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use ends::*;
use mlx5_queue::*;
use mscclpp_softnic::*;
use support::shared_memory::*;
use support::*;

#[test]
fn payload_is_fetched_from_the_senders_memory_in_both_directions() {
    for keeps in [Keeps::Order, Keeps::Nothing] {
        let (mut a, mut b) = linked(keeps);
        lend(&mut a, &b);
        lend(&mut b, &a);
        for (from, to) in [(0, 1), (1, 0)] {
            let (mut near, mut far) = (&mut a, &mut b);
            if from > to {
                std::mem::swap(&mut near, &mut far);
            }
            let data = pattern(from, 3_000_000);
            near.buffer.write(1, &data);
            let before = far.device.counters().bytes_mapped;
            let list = [near.local(1, 1_000_000), near.local(1_000_001, 2_000_000)];
            let list = list.map(DataSegment::encode);
            near.poster.post(write(far.remote(4_000_003), &list));
            assert_eq!(near.poster.wait().failure(), None);
            assert!(far.buffer.read(4_000_003, 3_000_000) == data);
            assert_eq!(far.device.counters().bytes_mapped - before, 3_000_000);
        }
    }
}

#[test]
fn what_is_read_is_fetched_from_the_peers_memory() {
    let (mut a, mut b) = linked(Keeps::Order);
    lend(&mut b, &a);
    let data = pattern(9, 2_500_000);
    b.buffer.write(11, &data);
    let before = a.device.counters().bytes_mapped;
    let list = [a.local(5_000_000, 2_500_000).encode()];
    let scatter = DataSegments::new(&list);
    let remote = b.remote(11);
    a.poster.post(Operation::Read { remote, scatter });
    assert_eq!(a.poster.wait().failure(), None);
    assert!(a.buffer.read(5_000_000, 2_500_000) == data);
    assert_eq!(a.device.counters().bytes_mapped - before, 2_500_000);
}

#[test]
fn messages_are_fetched_too() {
    let (mut a, mut b) = linked(Keeps::Order);
    lend(&mut a, &b);
    let data = pattern(4, 5000);
    a.buffer.write(0, &data);
    b.poster
        .post_receive(&[b.local(100, 1000), b.local(3000, 4000)]);
    let before = b.device.counters().bytes_mapped;
    let list = [a.local(0, 5000).encode()];
    a.poster.post(Operation::Send {
        payload: Payload::Gather(DataSegments::new(&list)),
        immediate: None,
    });
    assert_eq!(a.poster.wait().failure(), None);
    assert!(b.buffer.read(100, 1000) == data[..1000]);
    assert!(b.buffer.read(3000, 4000) == data[1000..]);
    assert_eq!(b.device.counters().bytes_mapped - before, 5000);
}

/// Into memory that does not reach the mapping itself.
#[test]
fn memory_of_another_kind_gets_it_by_the_one_that_maps_it() {
    let (mut a, b) = linked(Keeps::Order);
    lend(&mut a, &b);
    let host = HostBuffer::new(100_000);
    let registration = b
        .domain
        .register(host.range(), AccessFlags::ALL, WriteOrdering::Relaxed)
        .unwrap();
    let data = pattern(3, 90_000);
    a.buffer.write(7, &data);
    let remote = RemoteAddress {
        address: host.address() + 3,
        key: registration.key(),
    };
    let before = b.device.counters().bytes_mapped;
    let list = [a.local(7, 90_000).encode()];
    a.poster.post(write(remote, &list));
    assert_eq!(a.poster.wait().failure(), None);
    let mut seen = vec![0; 90_000];
    host.read(3, &mut seen);
    assert!(seen == data);
    assert_eq!(b.device.counters().bytes_mapped - before, 90_000);
}

#[test]
fn where_it_cannot_be_mapped_bytes_go_over_the_link() {
    type Break = fn(&End, &End);
    let cases: [(&str, (LinkStream, LinkStream), bool, Break); 3] = [
        ("another host", tcp(), true, |_, _| {}),
        ("no export", unix(), true, |a, _| {
            a.memory.set_exports(false)
        }),
        ("no import", unix(), false, |_, _| {}),
    ];
    for (why, streams, imports, breaks) in cases {
        let mut a = End::new(SharedMemory::new(Keeps::Order));
        let b = End::new(SharedMemory::with(Keeps::Order, imports));
        breaks(&a, &b);
        connect(&a, &b, streams);
        for round in 0..20 {
            let data = pattern(round, 10_000);
            a.buffer.write(0, &data);
            let list = [a.local(0, 10_000).encode()];
            a.poster.post(write(b.remote(50), &list));
            assert_eq!(a.poster.wait().failure(), None, "{why}");
            assert!(b.buffer.read(50, 10_000) == data, "{why}");
        }
        let counters = b.device.counters();
        assert_eq!((counters.mappings, counters.bytes_mapped), (0, 0), "{why}");
    }
}

#[test]
fn a_registration_that_has_ended_is_unmapped_and_only_then_let_go() {
    let (mut a, b) = linked(Keeps::Order);
    lend(&mut a, &b);
    assert_eq!(b.memory.mapped(), 1);
    let second = SharedBuffer::new(8192);
    let owner = Arc::downgrade(&second.0);
    let register = |a: &End, range| {
        let registered = a
            .domain
            .register(range, AccessFlags::ALL, WriteOrdering::Relaxed);
        registered.unwrap()
    };
    let registration = register(&a, a.memory.range(&second));
    let segment = |registration: &Registration| {
        let address = registration.range().address();
        DataSegment::new(address, registration.key(), 8192).unwrap()
    };
    lend_all(&mut a, &b, &[segment(&registration)], 2);
    drop(second);
    assert!(owner.upgrade().is_some());
    let stale = segment(&registration);
    drop(registration);
    wait_for("the end of the mapping", || {
        (b.memory.mapped() == 1).then_some(())
    });
    wait_for("the end of the memory", || {
        owner.upgrade().is_none().then_some(())
    });
    assert_eq!(b.device.counters().mappings, 1);
    // The first one's is as it was.
    let before = b.device.counters().bytes_mapped;
    let list = [a.local(0, 100).encode()];
    a.poster.post(write(b.remote(0), &list));
    assert_eq!(a.poster.wait().failure(), None);
    assert_eq!(b.device.counters().bytes_mapped - before, 100);
    let list = [stale.encode()];
    a.poster.post(write(b.remote(0), &list));
    assert_eq!(a.poster.wait_failure(), Syndrome::LOCAL_PROTECTION);
    // So it is with a link, and with the peer.
    drop(a);
    wait_for("the end of all mappings", || {
        (b.memory.mapped() == 0).then_some(())
    });
}

/// An acknowledgement lets the sender use its memory again.
#[test]
fn nothing_is_acknowledged_before_it_was_fetched() {
    let early = DeviceConfig {
        acknowledge: Acknowledge::Accepted,
        ..DeviceConfig::default()
    };
    let mut a = End::new(SharedMemory::new(Keeps::Nothing));
    let b = End::with(early, SharedMemory::new(Keeps::Nothing));
    connect(&a, &b, unix());
    lend(&mut a, &b);
    for round in 1..100 {
        let data = vec![round; 100_000];
        a.buffer.write(0, &data);
        let list = [a.local(0, 100_000).encode()];
        a.poster.post(write(b.remote(0), &list));
        assert_eq!(a.poster.wait().failure(), None);
        a.buffer.write(0, &vec![0; 100_000]);
        wait_for("what was written", || {
            (b.buffer.read_u64(0) == u64::from_ne_bytes([round; 8])).then_some(())
        });
        assert!(b.buffer.read(0, 100_000) == data, "round {round}");
    }
}

/// In parts, of which the last completes the message, and may land before others.
#[test]
fn no_part_of_a_message_is_acknowledged_before_it_was_fetched() {
    const LENGTH: usize = 200_000;
    let small = DeviceConfig {
        network: NetworkConfig {
            single_packets: true,
            ..NetworkConfig::default()
        },
        ..DeviceConfig::default()
    };
    let early = DeviceConfig {
        acknowledge: Acknowledge::Accepted,
        ..DeviceConfig::default()
    };
    let mut a = End::with(small, SharedMemory::new(Keeps::Nothing));
    let mut b = End::with(early, SharedMemory::new(Keeps::Nothing));
    connect(&a, &b, unix());
    lend(&mut a, &b);
    // Slow enough for the sender to come in between.
    b.memory.after_write(|_| sleep(Duration::from_micros(200)));
    for round in 1..20 {
        let data = vec![round; LENGTH];
        a.buffer.write(0, &data);
        b.poster.post_receive(&[b.local(0, LENGTH as u32)]);
        let list = [a.local(0, LENGTH as u32).encode()];
        a.poster.post(Operation::Send {
            payload: Payload::Gather(DataSegments::new(&list)),
            immediate: None,
        });
        assert_eq!(a.poster.wait().failure(), None);
        a.buffer.write(0, &vec![0; LENGTH]);
        wait_for("the message", || b.poster.poll_receive());
        assert!(b.buffer.read(0, LENGTH) == data, "message {round}");
    }
}
