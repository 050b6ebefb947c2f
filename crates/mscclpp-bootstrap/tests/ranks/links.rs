// SPDX-License-Identifier: MIT
//! Links between two ends, over TCP and over a Unix socket.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::link::{Acceptor, LinkId, LinkKey};
use mscclpp_bootstrap::{BootstrapError, Deadline, JobKey};

use crate::body::{LOCALHOST, secs, soon};
use crate::on_both_ways;
#[cfg(target_os = "linux")]
use crate::ways::Unix;
use crate::ways::{Way, stranger};

on_both_ways! {
    both_ends_get_a_stream
    a_steady_flood_delays_a_link_little
    a_link_needs_the_same_key_on_both_ends
    a_connector_may_come_before_it_is_expected
    an_impostor_that_listens_is_not_believed
    links_end_by_their_deadline_whatever_the_other_end_does
    those_who_wait_learn_that_the_acceptor_is_gone
}

fn both_ends_get_a_stream<W: Way>() {
    let acceptor = Acceptor::bind(LOCALHOST).unwrap();
    let address = W::address(&acceptor);
    let job = JobKey::random().unwrap();
    for i in 0..20_u32 {
        let key = LinkKey::derive(Some(&job), "test", &i.to_le_bytes());
        let id = LinkId::random().unwrap();
        let accept = W::expect(&acceptor, id, key.clone());
        let caller = thread::spawn(move || W::connect(address, id, &key, soon()));
        let mut accepted = accept(soon()).unwrap();
        let mut connected = caller.join().unwrap().unwrap();
        for stream in [&accepted, &connected] {
            assert_eq!(W::timeouts(stream), [None; 2]);
        }
        connected.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        // Blocking mode: it waits.
        accepted.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
        accepted.write_all(b"there").unwrap();
        connected.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"there");
    }
}

fn a_steady_flood_delays_a_link_little<W: Way>() {
    let acceptor = Acceptor::bind(LOCALHOST).unwrap();
    let address = W::address(&acceptor);
    let stop = Arc::new(AtomicBool::new(false));
    let flood = {
        let stop = Arc::clone(&stop);
        thread::spawn(move || {
            let mut held = std::collections::VecDeque::new();
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                held.extend(stranger::<W>(count, address));
                if held.len() > 400 {
                    held.pop_front();
                }
                count += 1;
            }
            count
        })
    };
    let job = JobKey::random().unwrap();
    thread::sleep(Duration::from_millis(200));
    for i in 0..20_u32 {
        let key = LinkKey::derive(Some(&job), "test", &i.to_le_bytes());
        let id = LinkId::random().unwrap();
        let accept = W::expect(&acceptor, id, key.clone());
        let start = Instant::now();
        let caller = thread::spawn(move || W::connect(address, id, &key, soon()));
        let mut accepted = accept(soon()).unwrap();
        let mut connected = caller.join().unwrap().unwrap();
        assert!(start.elapsed() < secs(2), "{:?}", start.elapsed());
        connected.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        accepted.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
    }
    stop.store(true, Ordering::Relaxed);
    assert!(flood.join().unwrap() > 100);
}

fn a_link_needs_the_same_key_on_both_ends<W: Way>() {
    let acceptor = Acceptor::bind(LOCALHOST).unwrap();
    let address = W::address(&acceptor);
    let job = JobKey::random().unwrap();
    let id = LinkId::random().unwrap();
    let right = LinkKey::derive(Some(&job), "test", b"0-1");
    let accept = W::expect(&acceptor, id, right.clone());
    for wrong in [
        LinkKey::derive(Some(&job), "test", b"0-2"),
        LinkKey::derive(Some(&job), "other", b"0-1"),
        LinkKey::derive(None, "test", b"0-1"),
        LinkKey::derive(Some(&JobKey::random().unwrap()), "test", b"0-1"),
    ] {
        let mut limit = Duration::from_millis(300);
        let error = loop {
            let start = Instant::now();
            let deadline = Deadline::after(limit);
            let error = W::connect(address, id, &wrong, deadline).err().unwrap();
            assert!(start.elapsed() < limit + Duration::from_millis(1700));
            match &error {
                // A busy machine may not have come to the first proof.
                BootstrapError::LinkTimeout { hint, .. }
                    if hint.ends_with("said nothing") && limit < secs(20) => {}
                _ => break error,
            }
            limit *= 2;
        };
        assert!(
            matches!(error, BootstrapError::ProofRefused { .. }),
            "{error}"
        );
    }
    // The right one still gets in.
    let caller = thread::spawn(move || W::connect(address, id, &right, soon()));
    accept(soon()).unwrap();
    caller.join().unwrap().unwrap();
}

fn a_connector_may_come_before_it_is_expected<W: Way>() {
    let acceptor = Acceptor::bind(LOCALHOST).unwrap();
    let address = W::address(&acceptor);
    let id = LinkId::random().unwrap();
    let key = LinkKey::derive(None, "test", b"early");
    let caller = {
        let key = key.clone();
        thread::spawn(move || W::connect(address, id, &key, soon()))
    };
    thread::sleep(Duration::from_millis(300));
    W::expect(&acceptor, id, key)(soon()).unwrap();
    caller.join().unwrap().unwrap();
}

fn an_impostor_that_listens_is_not_believed<W: Way>() {
    // It echoes what it hears, and answers with a challenge and a made-up verdict.
    let (listener, address) = W::foreign();
    thread::spawn(move || {
        loop {
            let mut stream = W::accept(&listener);
            let mut hello = [0; 72];
            let mut proof = [0; 32];
            let mut challenge = b"MSCCLPPC\x01\0\0\0".to_vec();
            challenge.extend([9; 32]);
            let _ = stream
                .read_exact(&mut hello)
                .and_then(|()| stream.write_all(&challenge))
                .and_then(|()| stream.read_exact(&mut proof))
                .and_then(|()| stream.write_all(&[1, 0, 0, 0]))
                .and_then(|()| stream.write_all(&proof));
        }
    });
    let key = LinkKey::derive(None, "test", b"x");
    let id = LinkId::random().unwrap();
    let error = W::connect(address, id, &key, Deadline::after(secs(1)));
    let error = error.err().unwrap();
    assert!(
        matches!(error, BootstrapError::ProofRefused { .. }),
        "{error}"
    );
}

fn links_end_by_their_deadline_whatever_the_other_end_does<W: Way>() {
    // Nobody listens.
    let gone = W::foreign().1;
    // Somebody listens and is silent, or drips.
    let (_silent, silent_at) = W::foreign();
    let (dripping, dripping_at) = W::foreign();
    thread::spawn(move || {
        let mut stream = W::accept(&dripping);
        while stream.write_all(b"M").is_ok() {
            thread::sleep(Duration::from_millis(50));
        }
    });
    for address in [gone, silent_at, dripping_at] {
        let said = times_out::<W>(address);
        let about_the_host = said.contains("of this host");
        assert_eq!(about_the_host, W::NAMES_THE_HOST && address == gone);
        // Also where the deadline comes in the midst of an attempt.
        assert_eq!(said.contains("said nothing"), address != gone, "{said}");
    }
}

/// Connecting there ends by its deadline; what the error says.
pub(crate) fn times_out<W: Way>(address: W::Address) -> String {
    let key = LinkKey::derive(None, "test", b"x");
    let id = LinkId::random().unwrap();
    let start = Instant::now();
    let deadline = Deadline::after(Duration::from_millis(500));
    let error = W::connect(address, id, &key, deadline).err().unwrap();
    assert!(
        matches!(error, BootstrapError::LinkTimeout { .. }),
        "{error}"
    );
    assert!(start.elapsed() < secs(1), "{:?}", start.elapsed());
    error.to_string()
}

fn those_who_wait_learn_that_the_acceptor_is_gone<W: Way>() {
    let acceptor = Acceptor::bind(LOCALHOST).unwrap();
    let address = W::address(&acceptor);
    let key = LinkKey::derive(None, "test", b"x");
    let id = LinkId::random().unwrap();
    let start = Instant::now();
    let accept = W::expect(&acceptor, id, key.clone());
    let error = accept(Deadline::after(Duration::from_millis(200)));
    assert!(error.err().unwrap().is_timeout());
    assert!(start.elapsed() < secs(1));
    // And when the acceptor goes first.
    let accept = W::expect(&acceptor, id, key);
    let start = Instant::now();
    let waiting = thread::spawn(move || accept(soon()).map(drop));
    drop(acceptor);
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(error, BootstrapError::AcceptorGone), "{error}");
    assert!(start.elapsed() < secs(5));
    // Its socket is gone with it.
    assert!(W::dial(address).is_err());
}

#[cfg(target_os = "linux")]
mod of_unix_sockets {
    use std::os::unix::net::UnixStream;

    use mscclpp_bootstrap::link::{self, UnixAddress};

    use super::*;

    #[test]
    fn an_acceptor_has_one_address_and_no_two_have_the_same() {
        let acceptor = Acceptor::bind(LOCALHOST).unwrap();
        let address = acceptor.unix_address().unwrap();
        assert_eq!(acceptor.unix_address().unwrap(), address);
        assert_eq!(UnixAddress::from_bytes(address.to_bytes()), address);
        let other = Acceptor::bind(LOCALHOST).unwrap();
        assert_ne!(other.unix_address().unwrap(), address);
    }

    #[test]
    fn a_full_queue_of_connections_is_no_reason_to_wait_longer() {
        // Nobody accepts, and the queue of one place is full: then connecting itself blocks.
        let (full, at) = Unix::foreign();
        rustix::net::listen(&full, 0).unwrap();
        let _first: UnixStream = Unix::dial(at).unwrap();
        assert!(!times_out::<Unix>(at).contains("of this host"));
    }

    #[test]
    fn the_two_ways_do_not_meet() {
        let acceptor = Acceptor::bind(LOCALHOST).unwrap();
        let (tcp, unix) = (acceptor.local_addr(), acceptor.unix_address().unwrap());
        let key = LinkKey::derive(None, "test", b"ways");
        let id = LinkId::random().unwrap();
        let short = || Deadline::after(Duration::from_millis(200));

        let expected = acceptor.expect_unix(id, key.clone()).unwrap();
        assert!(link::connect(tcp, id, &key, short()).is_err());
        assert!(expected.accept(short()).unwrap_err().is_timeout());

        let expected = acceptor.expect(id, key.clone());
        assert!(link::connect_unix(unix, id, &key, short()).is_err());
        assert!(expected.accept(short()).unwrap_err().is_timeout());
    }
}
