// SPDX-License-Identifier: MIT
//! A peer that says what no device says.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::ends::*;
use crate::peer::*;
use crate::support::shared_memory::*;
use crate::support::*;

#[test]
fn a_peer_that_keeps_to_the_rules_is_served() {
    let (end, buffer) = (end(), SharedBuffer::new(8192));
    buffer.write(64, &pattern(1, 4096));
    let mut peer = lending(&end, &buffer);
    peer.write(end.remote(0), 4096, (5, 0x10000));
    assert_eq!(peer.heard().0, ACKNOWLEDGE);
    assert!(end.buffer.read(0, 4096) == pattern(1, 4096));
    peer.say(&notice(WITHDRAWN, 5));
    assert_eq!(peer.heard(), (RELEASED, 5u32.to_le_bytes().to_vec()));
    assert_eq!(end.device.counters().mappings, 0);
}

#[test]
fn nothing_is_fetched_from_where_the_peer_has_lent_nothing() {
    // Beside its own, and registered memory of the device itself: its keys are
    // no keys of the peer's.
    let own = |end: &End| (end.registration.key().get(), end.buffer.address());
    type Piece<'a> = &'a dyn Fn(&End) -> (u32, u64);
    let cases: [Piece<'_>; 7] = [
        &|_| (5, 0xffff),
        &|_| (5, 0x10001),
        &|_| (5, 0x11000),
        &|_| (5, u64::MAX - 4000),
        &|_| (6, 0x10000),
        &|end| (5, end.buffer.address()),
        &own,
    ];
    for (i, piece) in cases.iter().enumerate() {
        let (end, buffer) = (end(), SharedBuffer::new(8192));
        let secret = pattern(2, 4096);
        end.buffer.write(0, &secret);
        let mut peer = lending(&end, &buffer);
        let target = 1 << 20;
        peer.write(end.remote(target), 4096, piece(&end));
        let (kind, body) = peer.heard();
        assert_eq!((kind, body[16]), (REFUSE, OPERATION), "case {i}");
        assert!(end.buffer.read(target, 4096) == [0; 4096], "case {i}");
        assert_eq!(end.device.counters().bytes_mapped, 0, "case {i}");
    }
}

#[test]
fn what_was_withdrawn_is_not_used_any_more() {
    let (end, buffer) = (end(), SharedBuffer::new(8192));
    let mut peer = lending(&end, &buffer);
    peer.say(&notice(WITHDRAWN, 5));
    assert_eq!(peer.heard().0, RELEASED);
    buffer.write(0, &[7; 8192]);
    peer.write(end.remote(0), 4096, (5, 0x10000));
    let (kind, body) = peer.heard();
    assert_eq!((kind, body[16]), (REFUSE, OPERATION));
    assert!(end.buffer.read(0, 4096) == [0; 4096]);
    wait_for("the end of the mapping", || {
        (end.memory.mapped() == 0).then_some(())
    });
}

#[test]
fn offers_that_cannot_be_mapped_are_declined() {
    let (end, buffer) = (end(), SharedBuffer::new(8192));
    let mut peer = Peer::of(&end);
    for (key, length, offset) in [
        (1, 8193, 0),
        (2, 4096, 4097),
        (3, 1, u64::MAX),
        (4, 1 << 50, 1),
    ] {
        peer.say_with(&offer(key, 0, length, true, offset), buffer.memory());
        assert_eq!(peer.heard(), (DECLINED, key.to_le_bytes().to_vec()));
    }
    // No description that anybody knows, and no descriptor.
    let mut strange = offer(7, 0, 1, false, 0);
    strange[30] ^= 1;
    peer.say(&strange);
    assert_eq!(peer.heard(), (DECLINED, 7u32.to_le_bytes().to_vec()));
    assert_eq!(end.memory.mapped(), 0);
}

#[test]
fn notices_out_of_step_end_the_link() {
    type Said<'a> = &'a dyn Fn(&mut Peer, &SharedBuffer);
    let said: [Said<'_>; 8] = [
        &|peer, _| peer.say(&notice(TAKEN, 9)),
        &|peer, _| peer.say(&notice(DECLINED, 9)),
        &|peer, _| peer.say(&notice(RELEASED, 9)),
        &|peer, _| peer.say(&notice(WITHDRAWN, 9)),
        &|peer, buffer| peer.say_with(&offer(5, 0x10000, 64, true, 0), buffer.memory()),
        &|peer, _| peer.say(&offer(9, 0x10000, 64, true, 0)),
        &|peer, _| peer.say(&offer(9, 0x10000, 0, false, 0)),
        // Descriptors that belong to nothing.
        &|peer, buffer| {
            for _ in 0..20 {
                let mut body = vec![0; 100];
                body[0] = 1;
                let zero = frame(WRITE, &[&body]);
                // The device may have hung up already.
                let mut space =
                    [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                let descriptors = [buffer.memory()];
                ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
                let part = [std::io::IoSlice::new(&zero[..1])];
                let flags = SendFlags::NOSIGNAL;
                let _ = sendmsg(&peer.stream, &part, &mut ancillary, flags);
            }
        },
    ];
    let (mut other, mut third) = linked(Keeps::Order);
    for (i, say) in said.iter().enumerate() {
        let (end, buffer) = (end(), SharedBuffer::new(8192));
        let mut peer = lending(&end, &buffer);
        say(&mut peer, &buffer);
        peer.expect_hang_up();
        wait_for("the end of the mapping", || {
            (end.memory.mapped() == 0).then_some(())
        });
        assert_eq!(end.device.links(), [], "case {i}");
    }
    lend(&mut other, &third);
    lend(&mut third, &other);
}

/// There nothing can be handed over.
#[test]
fn notices_of_another_host_end_the_link() {
    let end = end();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let near = listener.accept().unwrap().0;
    std::thread::scope(|scope| {
        scope.spawn(|| end.device.link(near, PATIENCE).unwrap());
        hello(&mut stream);
    });
    stream.write_all(&offer(1, 0, 64, false, 0)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
}
