// SPDX-License-Identifier: MIT
//! What needs no GPU: descriptors over sockets, and errors without a driver.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::link::Acceptor;
use mscclpp_bootstrap::{Deadline, JobKey};
use rustix::fs::{MemfdFlags, memfd_create};

use super::descriptor;
use super::server::{ExportServer, ask};
use crate::error::Error;

fn file(text: &str) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(fd);
    file.write_all(text.as_bytes()).unwrap();
    file.into()
}

fn text(fd: OwnedFd) -> String {
    let mut file = File::from(fd);
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

#[test]
fn a_descriptor_goes_over_a_socket() {
    let (a, b) = UnixStream::pair().unwrap();
    descriptor::send(&a, b"with", Some(file("hello").as_fd())).unwrap();
    let mut bytes = [0; 16];
    let (len, fd) = descriptor::receive(&b, &mut bytes).unwrap();
    assert_eq!(&bytes[..len], b"with");
    assert_eq!(text(fd.unwrap()), "hello");
    descriptor::send(&a, b"without", None).unwrap();
    let (len, fd) = descriptor::receive(&b, &mut bytes).unwrap();
    assert!(&bytes[..len] == b"without" && fd.is_none());
    drop(a);
    assert!(descriptor::receive(&b, &mut bytes).is_err());
}

fn server(job_key: Option<&JobKey>) -> ExportServer {
    let acceptor = Arc::new(Acceptor::bind(Ipv4Addr::LOCALHOST.into()).unwrap());
    let export = |key: u64| match key {
        0 => Err("there is no such memory".to_owned()),
        key => Ok(file(&key.to_string())),
    };
    ExportServer::start(acceptor, job_key, Duration::from_secs(2), export).unwrap()
}

#[test]
fn many_ask_at_once_and_each_gets_its_own() {
    let key = JobKey::from_bytes([7; 32]);
    let server = server(Some(&key));
    let place = server.place();
    thread::scope(|scope| {
        for i in 1..=16 {
            let key = &key;
            scope.spawn(move || {
                let fd = ask(place, Some(key), i, Some(3), soon()).unwrap();
                assert_eq!(text(fd), i.to_string());
            });
        }
    });
    let refused = ask(place, Some(&key), 0, None, soon()).unwrap_err();
    assert!(matches!(refused, Error::Record { .. }), "{refused}");
    assert!(refused.to_string().contains("no such memory"), "{refused}");
}

#[test]
fn who_lacks_the_jobs_key_or_asks_nobody_is_told_in_time() {
    let server = server(Some(&JobKey::from_bytes([7; 32])));
    let place = server.place();
    let short = || Deadline::after(Duration::from_millis(300));
    let stranger = JobKey::from_bytes([8; 32]);
    let begun = Instant::now();
    let error = ask(place, Some(&stranger), 1, Some(4), short()).unwrap_err();
    assert!(error.to_string().contains("rank 4"), "{error}");
    // A stranger holds up nobody.
    ask(place, Some(&JobKey::from_bytes([7; 32])), 1, None, soon()).unwrap();
    drop(server);
    assert!(ask(place, None, 1, None, short()).is_err());
    assert!(begun.elapsed() < Duration::from_secs(10));
}

/// Somebody who has the key, comes, and says nothing.
#[test]
fn who_asks_nothing_holds_up_others_for_a_moment_only() {
    use mscclpp_bootstrap::link::{self, LinkId, UnixAddress};
    let server = server(None);
    let (socket, id) = server.place();
    let (address, link_id) = (UnixAddress::from_bytes(socket), LinkId::from_bytes(id));
    let key = super::server::link_key(None, link_id);
    let _silent = link::connect_unix(address, link_id, &key, soon()).unwrap();
    let fd = ask((socket, id), None, 5, None, soon()).unwrap();
    assert_eq!(text(fd), "5");
}
