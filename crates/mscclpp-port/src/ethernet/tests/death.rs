// SPDX-License-Identifier: MIT
//! Peers that die, stop or idle.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

use super::*;

#[test]
fn a_peer_that_vanishes_is_named_with_how_it_was_seen() {
    type End = fn(&mut Fixture);
    let cases: [(End, &str); 4] = [
        (
            |f| f.peer.shutdown(Shutdown::Both).unwrap(),
            "without a goodbye: it died, or its connection failed: look at that rank's own error",
        ),
        (
            |f| {
                let key = f.key;
                f.send(Frame::Write {
                    key,
                    offset: 0,
                    len: 100,
                });
                f.peer.write_all(&[1; 50]).unwrap();
                f.peer.shutdown(Shutdown::Write).unwrap();
            },
            "inside a frame",
        ),
        (
            |f| {
                // Closing over a linger of zero resets the connection.
                let socket = socket2::SockRef::from(&f.peer);
                socket.set_linger(Some(Duration::ZERO)).unwrap();
                f.peer = streams().0;
            },
            "receiving failed",
        ),
        (
            |f| f.send(Frame::Goodbye),
            "the peer closed the connection: a barrier before anybody lets go",
        ),
    ];
    for (end, text) in cases {
        let mut fixture = Fixture::new();
        fixture.settle(1);
        end(&mut fixture);
        let error = fixture.failure();
        assert!(
            matches!(error, Error::PeerDown { rank: Some(3), .. }),
            "{error}"
        );
        assert!(error.to_string().contains(text), "{error}");
        let (local, remote) = (&fixture.local, &fixture.remote);
        let late = fixture.transport.write(remote, 0, local, 0, 8);
        assert!(matches!(late, Err(Error::PeerDown { .. })));
    }
}

/// A stopped process: its socket takes what fits and nothing more.
#[test]
fn a_peer_that_takes_nothing_is_given_up() {
    let fixture = Fixture::new();
    let big = Buffer::new(Device::cpu(), 64 << 20).unwrap();
    let source = fixture.context.register_memory(&big, ..).unwrap();
    let started = Instant::now();
    fixture
        .transport
        .write(&fixture.remote, 0, &source, 0, 64 << 20)
        .unwrap();
    fixture.transport.kick();
    let error = fixture.failure();
    assert!(
        matches!(
            error,
            Error::Stalled {
                rank: Some(3),
                after: STALL
            }
        ),
        "{error}"
    );
    assert!(started.elapsed() >= STALL);
    drop(fixture.transport);
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_flush_that_is_never_acknowledged_is_given_up() {
    let fixture = Fixture::new();
    fixture.transport.request_flush().unwrap();
    fixture.transport.kick();
    let error = fixture.failure();
    assert!(matches!(error, Error::Stalled { .. }), "{error}");
}

/// The deregistration of raw memory waits for no peer: a write of it that has not left fails.
#[test]
fn raw_memory_can_be_taken_back_from_a_queued_write() {
    let fixture = Fixture::with(3, patient(), || {});
    let mut bytes = vec![0u64; 8 << 20];
    let base = std::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap().cast();
    // SAFETY: the registration is dropped before the bytes are.
    let raw = unsafe { (fixture.context).register_raw(base, 64 << 20, Access::LOCAL) }.unwrap();
    fixture
        .transport
        .write(&fixture.remote, 0, &raw, 0, 64 << 20)
        .unwrap();
    fixture.transport.kick();
    let started = Instant::now();
    drop(raw);
    assert!(started.elapsed() < patient().stall);
    drop(bytes);
    // Ours notices when there is room to send more.
    let mut peer = fixture.peer.try_clone().unwrap();
    while matches!(peer.read(&mut [0; 1 << 16]), Ok(1..)) {}
    let error = fixture.failure();
    assert!(
        matches!(error, Error::SourceGone { rank: Some(3) }),
        "{error}"
    );
}

/// Many queued writes of one raw registration are being sent while it ends: nobody waits for
/// anybody.
#[test]
fn raw_memory_can_be_taken_back_at_any_moment() {
    for _ in 0..200 {
        let fixture = Fixture::new();
        let mut peer = fixture.peer.try_clone().unwrap();
        let reader = std::thread::spawn(move || {
            while matches!(peer.read(&mut [0; 4096]), Ok(1..)) {}
            let _ = peer.shutdown(Shutdown::Both);
        });
        let mut bytes = vec![0u64; 1024];
        let base = std::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap().cast();
        // SAFETY: the registration is dropped before the bytes are.
        let raw = unsafe { (fixture.context).register_raw(base, 8192, Access::LOCAL) }.unwrap();
        let (transport, remote) = (&fixture.transport, &fixture.remote);
        eventually("the connection is made", || transport.is_connected());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Sends what is posted, as long as the connection lives.
            scope.spawn(|| {
                while !done.load(SeqCst) && transport.progress().is_ok() {
                    std::thread::yield_now();
                }
            });
            for _ in 0..200 {
                transport.write(remote, 0, &raw, 0, 64).unwrap();
            }
            drop(raw);
            done.store(true, SeqCst);
        });
        drop(bytes);
        drop(fixture);
        reader.join().unwrap();
    }
}

#[test]
fn an_idle_connection_takes_no_time() {
    // The thread is found by its name, which has the rank.
    let mut fixture = Fixture::of_rank(42);
    fixture.settle(1);
    let before = cpu_time("mscclpp-eth-42");
    std::thread::sleep(Duration::from_secs(1));
    let used = cpu_time("mscclpp-eth-42") - before;
    assert!(used < Duration::from_millis(20), "{used:?}");
}

/// The CPU time that the thread of this name has used.
fn cpu_time(name: &str) -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let read = |task: &std::fs::DirEntry, file| {
        std::fs::read_to_string(task.path().join(file)).unwrap_or_default()
    };
    let task = tasks
        .flatten()
        .find(|task| read(task, "comm").trim() == name)
        .unwrap();
    let nanos = read(&task, "schedstat");
    Duration::from_nanos(nanos.split(' ').next().unwrap().parse().unwrap())
}

/// A rank that died while ranks connected leaves many such connections.
#[test]
fn a_connection_that_failed_before_it_was_made_is_dropped_at_once() {
    let (context, status) = (Context::for_tests(), StickyStatus::new().unwrap());
    let settings = Settings {
        table: context.table_arc(),
        status: Arc::clone(&status),
        own: None,
        rank: Some(3),
        peer: context.id(),
        queue: None,
        deadlines: deadlines(),
        device: Device::cpu(),
        trace: None,
    };
    let (cancel, cancelled) = std::sync::mpsc::channel();
    let arrival = Arrival {
        wait: Box::new(move |_| {
            // Ends by the cancellation only.
            let _ = cancelled.recv_timeout(Duration::from_secs(20));
            let gone = std::io::ErrorKind::TimedOut.into();
            Err(Error::io("wait for the peer", gone))
        }),
        cancel: Box::new(move || {
            let _ = cancel.send(());
        }),
    };
    let transport = EthernetTransport::new(arrival, settings).unwrap();
    status.fail(Error::io(
        "see the peer",
        std::io::ErrorKind::TimedOut.into(),
    ));
    let start = Instant::now();
    drop(transport);
    assert!(
        start.elapsed() < deadlines().linger,
        "{:?}",
        start.elapsed()
    );
}
