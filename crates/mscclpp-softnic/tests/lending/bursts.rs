// SPDX-License-Identifier: MIT
//! Offers wait for their answers with a descriptor each, of which a process has
//! not many: no more than so many at a time.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mlx5_queue::*;
use mscclpp_softnic::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::ends::*;
use crate::peer::*;
use crate::support::shared_memory::*;
use crate::support::*;

/// Offers that may wait for an answer.
const UNANSWERED: usize = 32;
/// Registrations that one request names.
const BURST: usize = 60;
/// The key of an offer without a descriptor.
const NOTHING: u32 = 0x7777;

/// Registrations of a buffer each, and 8 bytes of every one.
fn registrations(end: &End) -> (Vec<Registration>, Vec<[u8; 16]>) {
    let registrations: Vec<_> = (0..BURST)
        .map(|_| {
            let range = end.memory.range(&SharedBuffer::new(4096));
            (end.domain)
                .register(range, AccessFlags::ALL, WriteOrdering::Relaxed)
                .unwrap()
        })
        .collect();
    let segment = |registration: &Registration| {
        let address = registration.range().address();
        DataSegment::new(address, registration.key(), 8).unwrap()
    };
    let list = registrations
        .iter()
        .map(|registration| segment(registration).encode());
    let list = list.collect();
    (registrations, list)
}

/// What is said up to a frame of this kind: the keys that are offered. Writes are acknowledged.
fn offers_until(peer: &mut Peer, last: u8) -> Vec<[u8; 4]> {
    let mut offered = Vec::new();
    loop {
        let (kind, body) = peer.heard();
        match kind {
            OFFERED => offered.push(body[..4].try_into().unwrap()),
            WRITE => peer.acknowledge(body[8..16].try_into().unwrap()),
            DECLINED => assert_eq!(body, NOTHING.to_le_bytes()),
            _ => panic!("a frame of kind {kind}"),
        }
        if kind == last {
            return offered;
        }
    }
}

/// What is offered until an offer that cannot be taken is answered. By then the device has read what it
/// was told before, and its thread, which does one thing after the other, has offered what it was to.
fn offers(peer: &mut Peer) -> Vec<[u8; 4]> {
    peer.say(&offer(NOTHING, 0, 1, false, 0));
    offers_until(peer, DECLINED)
}

#[test]
fn only_so_many_registrations_are_offered_at_a_time() {
    let mut end = end();
    let mut peer = Peer::of(&end);
    let (_registrations, list) = registrations(&end);
    let remote = RemoteAddress {
        address: 0,
        key: MemoryKey::new(1),
    };
    let mut all = Vec::new();
    for expected in [UNANSWERED, BURST - UNANSWERED, 0] {
        end.poster.post(write(remote, &list));
        let mut offered = offers_until(&mut peer, WRITE);
        assert_eq!(end.poster.wait().failure(), None);
        offered.extend(offers(&mut peer));
        assert_eq!(offered.len(), expected);
        for key in &offered {
            peer.say(&frame(DECLINED, &[key]));
        }
        all.extend(offered);
        assert_eq!(offers(&mut peer), [[0; 4]; 0], "offered for no request");
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), BURST);
}

#[test]
fn in_the_end_all_are_lent() {
    let (mut a, b) = linked(Keeps::Order);
    let (_registrations, list) = registrations(&a);
    wait_for("all mappings", || {
        a.poster.post(write(b.remote(0), &list));
        assert_eq!(a.poster.wait().failure(), None);
        (b.device.counters().mappings == BURST as u64).then_some(())
    });
}

#[test]
fn who_offers_more_at_a_time_loses_its_link() {
    for (more, ends) in [(0, false), (1, true)] {
        let end = end();
        end.memory.hold_imports(true);
        let mut peer = Peer::of(&end);
        let lent = SharedBuffer::new(4096);
        for key in 0..UNANSWERED + more {
            let offered = offer(key as u32, 0x10000, 4096, true, 0);
            peer.say_with(&offered, lent.memory());
        }
        if ends {
            peer.expect_hang_up();
            end.memory.hold_imports(false);
        } else {
            end.memory.hold_imports(false);
            for _ in 0..UNANSWERED {
                assert_eq!(peer.heard().0, TAKEN);
            }
        }
    }
}

/// Of these nothing has to be mapped.
#[test]
fn who_offers_more_at_a_time_than_is_taken_loses_its_link() {
    for (more, ends) in [(0, false), (1, true)] {
        let end = end();
        let mut peer = Peer::of(&end);
        let lent = SharedBuffer::new(4096);
        let mut taken = 0;
        while taken < 4096 {
            for key in taken..taken + UNANSWERED {
                let offered = offer(key as u32, 0x10000, 4096, true, 0);
                peer.say_with(&offered, lent.memory());
            }
            for _ in 0..UNANSWERED {
                assert_eq!(peer.heard().0, TAKEN);
            }
            taken += UNANSWERED;
        }
        // At once, so that they are read before an answer is sent.
        let keys = (taken..).take(UNANSWERED + more);
        let offers = keys.map(|key| offer(key as u32, 0x10000, 4096, false, 0));
        peer.say(&offers.collect::<Vec<_>>().concat());
        if ends {
            peer.expect_hang_up();
        } else {
            for _ in 0..UNANSWERED {
                assert_eq!(peer.heard().0, DECLINED);
            }
        }
    }
}

/// Makes offers, few at a time, to a device whose link is full, because the peer reads nothing;
/// whether it lost it.
fn offers_over_a_full_link(offers: usize) -> bool {
    let end = end();
    let (mut peer, device) = Peer::link(&end.device);
    // More than may wait to be sent, of which one queue has a MiB under way.
    let queue = QueueNumber::new(0x77).unwrap();
    let list = [end.local(0, 8 << 20).encode()];
    let remote = RemoteAddress {
        address: 0,
        key: MemoryKey::new(1),
    };
    let _posters: Vec<_> = (0..16)
        .map(|_| {
            let mut poster = Poster::new(&end.domain, &setup());
            let to = QueueAddress { device, queue };
            poster.connect(to, &setup(), Mtu::Bytes4096);
            poster.post(write(remote, &list));
            poster
        })
        .collect();
    let mut said = 0;
    while said < offers && !end.device.links().is_empty() {
        let few = (said..offers).take(4);
        let few = few.map(|key| offer(key as u32, 0x10000, 4096, false, 0));
        let few: Vec<_> = few.collect();
        said += few.len();
        // It may have ended meanwhile.
        let _ = peer.stream.write_all(&few.concat());
        std::thread::sleep(Duration::from_millis(1));
    }
    end.device.links().is_empty()
}

#[test]
fn who_offers_more_than_it_hears_of_loses_its_link() {
    assert!(!offers_over_a_full_link(UNANSWERED));
    // A device gives up on a peer that reads nothing for 100 ms: then its packets are lost, and there
    // is room for answers. On a busy machine that may be before so many offers are made.
    let until = Instant::now() + Duration::from_secs(60);
    while !offers_over_a_full_link(20 * UNANSWERED) {
        assert!(Instant::now() < until, "the link never ends");
    }
}

/// In a process of its own: a limit is for all threads of one.
#[test]
fn an_offer_whose_descriptor_is_lost_is_declined() {
    const NAME: &str = "bursts::an_offer_whose_descriptor_is_lost_is_declined";
    const ALONE: &str = "SOFTNIC_TEST_ALONE";
    const DONE: i32 = 3;
    if std::env::var_os(ALONE).is_none() {
        let ended = Command::new(std::env::current_exe().unwrap())
            .args([NAME, "--exact", "--nocapture", "--test-threads=1"])
            .env(ALONE, "1")
            .stdin(Stdio::null())
            // Its harness would speak of another run of tests.
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(ended.code(), Some(DONE));
        return;
    }
    let (end, buffer) = (end(), SharedBuffer::new(8192));
    let mut peer = lending(&end, &buffer);
    let limit = Rlimit {
        current: Some(64),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let all: Vec<_> = std::iter::from_fn(|| buffer.memory().try_clone_to_owned().ok()).collect();
    assert!(!all.is_empty());
    peer.say_with(&offer(6, 0x20000, 4096, true, 64), buffer.memory());
    assert_eq!(peer.heard(), (DECLINED, 6u32.to_le_bytes().to_vec()));
    // The link lasts, and what is offered later can be mapped.
    drop(all);
    peer.say_with(&offer(7, 0x30000, 4096, true, 64), buffer.memory());
    assert_eq!(peer.heard(), (TAKEN, 7u32.to_le_bytes().to_vec()));
    peer.write(end.remote(0), 4096, (5, 0x10000));
    assert_eq!(peer.heard().0, ACKNOWLEDGE);
    std::process::exit(DONE);
}
