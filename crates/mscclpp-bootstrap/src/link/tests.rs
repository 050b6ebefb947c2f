// SPDX-License-Identifier: MIT
//! What a listener in between sees of a link.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::*;
use crate::{Deadline, socket};

type Heard = Arc<Mutex<Vec<u8>>>;

fn forward(mut from: impl Read, mut to: impl Write, heard: &Heard) {
    let mut buffer = [0; 256];
    while let Ok(count) = from.read(&mut buffer)
        && count > 0
    {
        heard.lock().unwrap().extend_from_slice(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
}

/// Carries one connection over, and writes down what is said in each direction.
fn tap<S>(near: S, far: S, split: impl Fn(&S) -> io::Result<S>, heard: &Heard)
where
    S: Read + Write + Send + 'static,
{
    let (near_out, far_out) = (split(&near).unwrap(), split(&far).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| forward(near, far_out, heard));
        forward(far, near_out, heard);
    });
}

fn shows_no_key(heard: &Heard, key: &LinkKey, job: &JobKey) {
    let heard = heard.lock().unwrap();
    assert!(heard.len() >= 72 + 44 + 32 + 36, "{}", heard.len());
    for secret in [&key.0[..], &job.expose()[..]] {
        for part in secret.windows(6) {
            assert!(!heard.windows(6).any(|window| window == part));
        }
    }
}

#[test]
fn the_key_never_travels() {
    let deadline = || Deadline::after(Duration::from_secs(10));
    let job = JobKey::random().unwrap();
    let acceptor = Acceptor::bind(Ipv4Addr::LOCALHOST.into()).unwrap();
    let key = LinkKey::derive(Some(&job), "test", b"tapped");
    let id = LinkId::random().unwrap();

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let tapped = listener.local_addr().unwrap();
    let heard = Heard::default();
    let expected = acceptor.expect(id, key.clone());
    thread::scope(|scope| {
        scope.spawn(|| {
            let near = listener.accept().unwrap().0;
            let far = TcpStream::connect(acceptor.local_addr()).unwrap();
            tap(near, far, TcpStream::try_clone, &heard);
        });
        let ours = connect(tapped, id, &key, deadline()).unwrap();
        let theirs = expected.accept(deadline()).unwrap();
        for stream in [ours, theirs] {
            stream.shutdown(Shutdown::Both).unwrap();
        }
    });
    shows_no_key(&heard, &key, &job);

    let tapped = UnixAddress::random().unwrap();
    let listener = socket::listen_unix(&tapped.name()).unwrap();
    listener.set_nonblocking(false).unwrap();
    let behind = acceptor.unix_address().unwrap().name();
    let heard = Heard::default();
    let expected = acceptor.expect_unix(id, key.clone()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let near = listener.accept().unwrap().0;
            let far = socket::connect_unix(&behind, Duration::from_secs(5)).unwrap();
            tap(near, far, |stream| stream.try_clone(), &heard);
        });
        let ours = connect_unix(tapped, id, &key, deadline()).unwrap();
        let theirs = expected.accept(deadline()).unwrap();
        for stream in [ours, theirs] {
            stream.shutdown(Shutdown::Both).unwrap();
        }
    });
    shows_no_key(&heard, &key, &job);
}
