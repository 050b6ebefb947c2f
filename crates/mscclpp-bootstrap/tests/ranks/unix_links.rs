// SPDX-License-Identifier: MIT
//! Links over a Unix socket: what holds of TCP ones holds of them.
#![cfg(target_os = "linux")]

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::link::{self, Acceptor, LinkId, LinkKey, UnixAddress};
use mscclpp_bootstrap::{BootstrapError, Deadline, JobKey};

use crate::body::{LOCALHOST, secs, soon};

fn named(address: UnixAddress) -> SocketAddr {
    SocketAddr::from_abstract_name(address.to_string()).unwrap()
}

/// Somebody else's listener, at an address of its own.
fn foreign() -> (UnixListener, UnixAddress) {
    let address = UnixAddress::from_bytes(LinkId::random().unwrap().to_bytes());
    (UnixListener::bind_addr(&named(address)).unwrap(), address)
}

/// What one stranger does; the connection is held until it is dropped.
fn stranger(kind: usize, to: UnixAddress) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect_addr(&named(to))?;
    let hello: Vec<u8> = b"MSCCLPPH\x01\0\0\0"
        .iter()
        .copied()
        .chain([0; 60])
        .collect();
    // A stranger that is dropped sees errors; that is what this is about.
    let _ = match kind % 6 {
        0 => Ok(()),
        1 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"),
        2 => stream.write_all(&hello[..30]),
        3 => stream.write_all(&hello),
        4 => stream.write_all(&[0xff; 4096]),
        _ => {
            let mut answer = [0; 44];
            stream
                .write_all(&hello)
                .and_then(|()| stream.set_read_timeout(Some(secs(1))))
                .and_then(|()| stream.read_exact(&mut answer))
                .and_then(|()| stream.write_all(&[1; 32]))
        }
    };
    Ok(stream)
}

#[test]
fn both_ends_get_a_stream() {
    let acceptor = Acceptor::bind(LOCALHOST).unwrap();
    let address = acceptor.unix_address().unwrap();
    assert_eq!(acceptor.unix_address().unwrap(), address);
    assert_eq!(UnixAddress::from_bytes(address.to_bytes()), address);
    assert_ne!(
        Acceptor::bind(LOCALHOST).unwrap().unix_address().unwrap(),
        address
    );
    let job = JobKey::random().unwrap();
    for i in 0..20_u32 {
        let key = LinkKey::derive(Some(&job), "test", &i.to_le_bytes());
        let id = LinkId::random().unwrap();
        let expected = acceptor.expect_unix(id, key.clone()).unwrap();
        let caller = thread::spawn(move || link::connect_unix(address, id, &key, soon()));
        let mut accepted = expected.accept(soon()).unwrap();
        let mut connected = caller.join().unwrap().unwrap();
        for stream in [&accepted, &connected] {
            assert_eq!(stream.read_timeout().unwrap(), None);
            assert_eq!(stream.write_timeout().unwrap(), None);
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

#[test]
fn a_steady_flood_delays_a_link_little() {
    let acceptor = Acceptor::bind(LOCALHOST).unwrap();
    let address = acceptor.unix_address().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let flood = {
        let stop = Arc::clone(&stop);
        thread::spawn(move || {
            let mut held = std::collections::VecDeque::new();
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                held.extend(stranger(count, address));
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
        let expected = acceptor.expect_unix(id, key.clone()).unwrap();
        let start = Instant::now();
        let caller = thread::spawn(move || link::connect_unix(address, id, &key, soon()));
        expected.accept(soon()).unwrap();
        caller.join().unwrap().unwrap();
        assert!(start.elapsed() < secs(2), "{:?}", start.elapsed());
    }
    stop.store(true, Ordering::Relaxed);
    assert!(flood.join().unwrap() > 100);
}

#[test]
fn a_link_needs_the_same_key_on_both_ends() {
    let acceptor = Acceptor::bind(LOCALHOST).unwrap();
    let address = acceptor.unix_address().unwrap();
    let job = JobKey::random().unwrap();
    let id = LinkId::random().unwrap();
    let right = LinkKey::derive(Some(&job), "test", b"0-1");
    let expected = acceptor.expect_unix(id, right.clone()).unwrap();
    for wrong in [
        LinkKey::derive(Some(&job), "test", b"0-2"),
        LinkKey::derive(Some(&job), "other", b"0-1"),
        LinkKey::derive(None, "test", b"0-1"),
        LinkKey::derive(Some(&JobKey::random().unwrap()), "test", b"0-1"),
    ] {
        let deadline = Deadline::after(Duration::from_millis(300));
        let error = link::connect_unix(address, id, &wrong, deadline).unwrap_err();
        assert!(
            matches!(error, BootstrapError::ProofRefused { .. }),
            "{error}"
        );
    }
    let caller = thread::spawn(move || link::connect_unix(address, id, &right, soon()));
    expected.accept(soon()).unwrap();
    caller.join().unwrap().unwrap();
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

#[test]
fn a_connector_may_come_before_it_is_expected() {
    let acceptor = Acceptor::bind(LOCALHOST).unwrap();
    let address = acceptor.unix_address().unwrap();
    let id = LinkId::random().unwrap();
    let key = LinkKey::derive(None, "test", b"early");
    let caller = {
        let key = key.clone();
        thread::spawn(move || link::connect_unix(address, id, &key, soon()))
    };
    thread::sleep(Duration::from_millis(300));
    let expected = acceptor.expect_unix(id, key).unwrap();
    expected.accept(soon()).unwrap();
    caller.join().unwrap().unwrap();
}

#[test]
fn an_impostor_at_the_address_is_not_believed() {
    let (listener, address) = foreign();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
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
    let error = link::connect_unix(address, id, &key, Deadline::after(secs(1))).unwrap_err();
    assert!(
        matches!(error, BootstrapError::ProofRefused { .. }),
        "{error}"
    );
}

#[test]
fn links_end_by_their_deadline_whatever_the_other_end_does() {
    let gone = foreign().1;
    let (_silent, silent_at) = foreign();
    let (dripping, dripping_at) = foreign();
    thread::spawn(move || {
        let (mut stream, _) = dripping.accept().unwrap();
        while stream.write_all(b"M").is_ok() {
            thread::sleep(Duration::from_millis(50));
        }
    });
    // Nobody accepts, and the queue of one place is full: then connecting itself
    // blocks.
    let (full, full_at) = foreign();
    rustix::net::listen(&full, 0).unwrap();
    let _first = UnixStream::connect_addr(&named(full_at)).unwrap();
    let key = LinkKey::derive(None, "test", b"x");
    for address in [gone, silent_at, dripping_at, full_at] {
        let id = LinkId::random().unwrap();
        let start = Instant::now();
        let deadline = Deadline::after(Duration::from_millis(500));
        let error = link::connect_unix(address, id, &key, deadline).unwrap_err();
        assert!(
            matches!(error, BootstrapError::LinkTimeout { .. }),
            "{error}"
        );
        let about_the_host = error.to_string().contains("of this host");
        assert_eq!(about_the_host, address == gone, "{error}");
        assert!(start.elapsed() < secs(1), "{:?}", start.elapsed());
    }
}

#[test]
fn those_who_wait_learn_that_the_acceptor_is_gone() {
    let acceptor = Acceptor::bind(LOCALHOST).unwrap();
    let address = acceptor.unix_address().unwrap();
    let key = LinkKey::derive(None, "test", b"x");
    let id = LinkId::random().unwrap();
    let short = Deadline::after(Duration::from_millis(200));
    let expected = acceptor.expect_unix(id, key.clone()).unwrap();
    assert!(expected.accept(short).unwrap_err().is_timeout());

    let (unix, tcp) = (
        acceptor.expect_unix(id, key.clone()).unwrap(),
        acceptor.expect(id, key.clone()),
    );
    let start = Instant::now();
    let waiting = [
        thread::spawn(move || unix.accept(soon()).map(drop)),
        thread::spawn(move || tcp.accept(soon()).map(drop)),
    ];
    drop(acceptor);
    for wait in waiting {
        let error = wait.join().unwrap().unwrap_err();
        assert!(matches!(error, BootstrapError::AcceptorGone), "{error}");
    }
    assert!(start.elapsed() < secs(5));
    // Its socket is gone with it.
    assert!(UnixStream::connect_addr(&named(address)).is_err());
}
