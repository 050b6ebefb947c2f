// SPDX-License-Identifier: MIT
//! What needs no GPU: descriptors over sockets, and errors without a driver.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::link::Acceptor;
use mscclpp_bootstrap::{Deadline, Deadlines, JobKey};
use rustix::fs::{MemfdFlags, memfd_create};

use super::descriptor;
use super::server::{ExportServer, ask};
use crate::error::Error;
use crate::testing::eventually;

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
    exports(job_key, &Deadlines::default(), |key: u64| match key {
        0 => Err("there is no such memory".to_owned()),
        key => Ok(file(&key.to_string())),
    })
}

fn exports(
    job_key: Option<&JobKey>,
    deadlines: &Deadlines,
    export: impl Fn(u64) -> Result<OwnedFd, String> + Send + 'static,
) -> ExportServer {
    let acceptor = Arc::new(Acceptor::bind(Ipv4Addr::LOCALHOST.into()).unwrap());
    ExportServer::start(acceptor, job_key, deadlines, export).unwrap()
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

/// Where the memory that it looks at for an asker is the last to own it.
#[test]
fn a_server_that_goes_while_it_answers_ends_itself() {
    let last: Arc<Mutex<Option<ExportServer>>> = Arc::default();
    let (told, tells) = channel();
    let slot = Arc::clone(&last);
    let server = exports(None, &Deadlines::default(), move |_| {
        drop(slot.lock().unwrap().take());
        told.send(()).unwrap();
        Ok(file("the last"))
    });
    let place = server.place();
    *last.lock().unwrap() = Some(server);
    let asker = thread::spawn(move || ask(place, None, 1, None, soon()));
    tells.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(text(asker.join().unwrap().unwrap()), "the last");
    // Its thread let go of all.
    eventually("the thread's end", || Arc::strong_count(&last) == 1);
}

/// A call of the driver may hang.
#[test]
fn a_server_whose_export_hangs_is_left_behind() {
    let (hangs, it_hangs) = channel();
    let (release, held) = channel::<()>();
    let mut deadlines = Deadlines::default();
    deadlines.teardown = Duration::from_millis(50);
    let server = exports(None, &deadlines, move |_| {
        hangs.send(()).unwrap();
        let _ = held.recv();
        Err("late".into())
    });
    let place = server.place();
    let asker = thread::spawn(move || ask(place, None, 1, None, soon()));
    it_hangs.recv_timeout(Duration::from_secs(20)).unwrap();
    let (dropped, drops) = channel();
    thread::spawn(move || {
        drop(server);
        dropped.send(()).unwrap();
    });
    drops.recv_timeout(Duration::from_secs(20)).unwrap();
    drop(release);
    let error = asker.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("late"), "{error}");
}

/// Somebody who has the key, and asks a byte at a time.
#[test]
fn who_asks_slowly_is_not_listened_to_for_long() {
    use mscclpp_bootstrap::link::{self, LinkId, UnixAddress};
    let mut deadlines = Deadlines::default();
    deadlines.ipc_answer = Duration::from_secs(1);
    let server = exports(None, &deadlines, |_| Err("asked".into()));
    let (socket, id) = server.place();
    let (address, link_id) = (UnixAddress::from_bytes(socket), LinkId::from_bytes(id));
    let key = super::server::link_key(None, link_id);
    let mut slow = link::connect_unix(address, link_id, &key, soon()).unwrap();
    let taken = (0..7)
        .take_while(|_| {
            thread::sleep(Duration::from_millis(500));
            slow.write_all(&[1]).is_ok()
        })
        .count();
    assert!(taken < 7, "all but the last byte was waited for");
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
