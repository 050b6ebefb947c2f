// SPDX-License-Identifier: MIT
//! Strangers at the door.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::link::{self, Acceptor, LinkId, LinkKey};
use mscclpp_bootstrap::{BootstrapError, Deadline, JobKey, TcpBootstrap};

use crate::body::{LOCALHOST, body, run, secs, soon};

/// What one stranger does; the connection is held until it is dropped.
fn stranger(kind: usize, to: SocketAddr) -> Option<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&to, secs(2)).ok()?;
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
            // A hello and a proof made of nothing.
            let mut answer = [0; 44];
            stream
                .write_all(&hello)
                .and_then(|()| stream.set_read_timeout(Some(secs(1))))
                .and_then(|()| stream.read_exact(&mut answer))
                .and_then(|()| stream.write_all(&[1; 32]))
        }
    };
    Some(stream)
}

#[test]
fn a_thousand_strangers_during_a_join_do_no_harm() {
    let world = 6;
    let zero = TcpBootstrap::new(0, world).unwrap();
    let id = zero.create_unique_id_at(LOCALHOST).unwrap();
    let address = id.address();
    let came = Arc::new(AtomicUsize::new(0));
    let strangers: Vec<_> = (0..4)
        .map(|s| {
            let came = Arc::clone(&came);
            thread::spawn(move || {
                let held: Vec<_> = (0..250).map(|i| stranger(s + i, address)).collect();
                came.fetch_add(held.iter().flatten().count(), Ordering::SeqCst);
                held
            })
        })
        .collect();
    let zero = Arc::new(std::sync::Mutex::new(Some(zero)));
    let outcome = run(world, move |r| {
        let b = match r {
            0 => zero.lock().unwrap().take().unwrap(),
            _ => TcpBootstrap::new(r, world).unwrap(),
        };
        if r != 0 {
            // The flood is there first.
            let begun = Instant::now();
            while came.load(Ordering::SeqCst) < 250 && begun.elapsed() < secs(10) {
                thread::sleep(Duration::from_millis(5));
            }
        }
        let start = Instant::now();
        b.initialize(&id, secs(30)).unwrap();
        let took = start.elapsed();
        body(&b);
        (took, came.load(Ordering::SeqCst))
    });
    let (took, came) = outcome[world - 1];
    println!("with {came} strangers before it, the last rank joined in {took:?}");
    assert!(took < secs(3), "{took:?}");
    strangers.into_iter().for_each(|s| drop(s.join().unwrap()));
}

#[test]
fn a_steady_flood_delays_a_link_little() {
    let acceptor = Acceptor::bind(LOCALHOST).unwrap();
    let address = acceptor.local_addr();
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
        let expected = acceptor.expect(id, key.clone());
        let start = Instant::now();
        let caller = thread::spawn(move || link::connect(address, id, &key, soon()));
        let mut accepted = expected.accept(soon()).unwrap();
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

#[test]
fn a_link_needs_the_same_key_on_both_ends() {
    let acceptor = Acceptor::bind(LOCALHOST).unwrap();
    let address = acceptor.local_addr();
    let job = JobKey::random().unwrap();
    let id = LinkId::random().unwrap();
    let right = LinkKey::derive(Some(&job), "test", b"0-1");
    let expected = acceptor.expect(id, right.clone());
    for wrong in [
        LinkKey::derive(Some(&job), "test", b"0-2"),
        LinkKey::derive(Some(&job), "other", b"0-1"),
        LinkKey::derive(None, "test", b"0-1"),
        LinkKey::derive(Some(&JobKey::random().unwrap()), "test", b"0-1"),
    ] {
        let start = Instant::now();
        let deadline = Deadline::after(Duration::from_millis(300));
        let error = link::connect(address, id, &wrong, deadline).unwrap_err();
        assert!(
            matches!(
                error,
                BootstrapError::ProofRefused { .. } | BootstrapError::LinkTimeout { .. }
            ),
            "{error}"
        );
        assert!(start.elapsed() < secs(2));
    }
    // The right one still gets in.
    let caller = thread::spawn(move || link::connect(address, id, &right, soon()));
    expected.accept(soon()).unwrap();
    caller.join().unwrap().unwrap();
}

#[test]
fn a_connector_may_come_before_it_is_expected() {
    let acceptor = Acceptor::bind(LOCALHOST).unwrap();
    let address = acceptor.local_addr();
    let id = LinkId::random().unwrap();
    let key = LinkKey::derive(None, "test", b"early");
    let caller = {
        let key = key.clone();
        thread::spawn(move || link::connect(address, id, &key, soon()))
    };
    thread::sleep(Duration::from_millis(300));
    acceptor.expect(id, key).accept(soon()).unwrap();
    caller.join().unwrap().unwrap();
}

#[test]
fn an_impostor_that_listens_learns_nothing_and_is_not_believed() {
    // It echoes what it hears, and answers with a challenge and a made-up verdict.
    let listener = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
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
    let error = link::connect(address, id, &key, Deadline::after(secs(1))).unwrap_err();
    assert!(
        matches!(error, BootstrapError::ProofRefused { .. }),
        "{error}"
    );
}

#[test]
fn links_end_by_their_deadline_whatever_the_other_end_does() {
    // Nobody listens.
    let gone = {
        let listener = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap();
        listener.local_addr().unwrap()
    };
    // Somebody listens and is silent, or drips.
    let silent = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap();
    let silent_at = silent.local_addr().unwrap();
    let dripping = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap();
    let dripping_at = dripping.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = dripping.accept().unwrap();
        while stream.write_all(b"M").is_ok() {
            thread::sleep(Duration::from_millis(50));
        }
    });
    let key = LinkKey::derive(None, "test", b"x");
    for address in [gone, silent_at, dripping_at] {
        let id = LinkId::random().unwrap();
        let start = Instant::now();
        let deadline = Deadline::after(Duration::from_millis(500));
        let error = link::connect(address, id, &key, deadline).unwrap_err();
        assert!(
            matches!(error, BootstrapError::LinkTimeout { .. }),
            "{error}"
        );
        assert!(start.elapsed() < secs(1), "{:?}", start.elapsed());
    }
    let acceptor = Acceptor::bind(LOCALHOST).unwrap();
    let id = LinkId::random().unwrap();
    let start = Instant::now();
    let expected = acceptor.expect(id, key.clone());
    let error = expected.accept(Deadline::after(Duration::from_millis(200)));
    assert!(error.unwrap_err().is_timeout());
    assert!(start.elapsed() < secs(1));
    // And when the acceptor goes first.
    let expected = acceptor.expect(id, key);
    drop(acceptor);
    let error = expected.accept(soon()).unwrap_err();
    assert!(matches!(error, BootstrapError::AcceptorGone), "{error}");
}
