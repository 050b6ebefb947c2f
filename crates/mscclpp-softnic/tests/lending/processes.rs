// SPDX-License-Identifier: MIT
//! Two processes: this binary starts itself.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;

use mlx5_queue::*;
use mscclpp_softnic::*;

use crate::ends::*;
use crate::order::{ROUNDS, put_and_signal, watch};
use crate::support::shared_memory::*;
use crate::support::*;

const SOCKET: &str = "SOFTNIC_TEST_SOCKET";
const NAME: &str = "processes::two_processes_fetch_from_each_other";

/// Kills when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the peer needs to know of an end.
fn card(end: &End) -> [u8; 32] {
    let address = end.poster.pair.address();
    let mut card = [0; 32];
    card[..16].copy_from_slice(&address.device.0);
    card[16..20].copy_from_slice(&address.queue.get().to_le_bytes());
    card[20..28].copy_from_slice(&end.buffer.address().to_le_bytes());
    card[28..].copy_from_slice(&end.registration.key().get().to_le_bytes());
    card
}

fn half(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().unwrap())
}

/// Connects an end to the one at the other end of the streams; where its memory
/// is.
fn join(
    end: &End,
    wire: UnixStream,
    control: &mut UnixStream,
) -> impl Fn(usize) -> RemoteAddress + use<> {
    end.device.link(wire, PATIENCE).unwrap();
    control.write_all(&card(end)).unwrap();
    let mut card = [0; 32];
    control.read_exact(&mut card).unwrap();
    let peer = QueueAddress {
        device: DeviceAddress(card[..16].try_into().unwrap()),
        queue: QueueNumber::new(half(&card[16..20])).unwrap(),
    };
    end.poster.connect(peer, &setup(), Mtu::Bytes4096);
    let address = u64::from_le_bytes(card[20..28].try_into().unwrap());
    let key = MemoryKey::new(half(&card[28..]));
    // Both queues are there before either is used.
    control.write_all(b"1").unwrap();
    control.read_exact(&mut [0]).unwrap();
    move |offset| RemoteAddress {
        address: address + offset as u64,
        key,
    }
}

/// The child: puts and signals, then reads back what the parent has.
fn child(socket: &str) {
    let (wire, mut control) = (
        UnixStream::connect(socket).unwrap(),
        UnixStream::connect(socket).unwrap(),
    );
    let mut end = End::new(SharedMemory::new(Keeps::Order));
    let remote = join(&end, wire, &mut control);
    // Until the parent has mapped this end's memory.
    wait_for("a mapping at the parent", || {
        let list = [end.local(0, 8).encode()];
        end.poster.post(write(remote(8 << 10), &list));
        assert_eq!(end.poster.wait().failure(), None);
        control.write_all(b"?").unwrap();
        let mut mapped = [0];
        control.read_exact(&mut mapped).unwrap();
        (mapped == [1]).then_some(())
    });
    put_and_signal(&mut end, &remote);
    wait_for("a mapping here", || {
        let list = [end.local(1 << 20, 100_000).encode()];
        let scatter = DataSegments::new(&list);
        let remote = remote(0);
        end.poster.post(Operation::Read { remote, scatter });
        assert_eq!(end.poster.wait().failure(), None);
        let last = vec![ROUNDS as u8; 100_000];
        assert!(end.buffer.read(1 << 20, 100_000) == last, "what was read");
        (end.device.counters().bytes_mapped >= 100_000).then_some(())
    });
    control.write_all(b"!").unwrap();
    let _ = control.read(&mut [0]);
}

#[test]
fn two_processes_fetch_from_each_other() {
    if let Ok(socket) = std::env::var(SOCKET) {
        return child(&socket);
    }
    let directory = std::env::temp_dir().join(format!("softnic-lending-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let socket = directory.join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let process = Command::new(std::env::current_exe().unwrap())
        .args([NAME, "--exact", "--nocapture", "--test-threads=1"])
        .env(SOCKET, &socket)
        .stdin(Stdio::null())
        // Its harness would speak of another run of tests.
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut process = Process(process);
    let (wire, mut control) = (listener.accept().unwrap().0, listener.accept().unwrap().0);
    std::fs::remove_dir_all(&directory).unwrap();
    let end = End::new(SharedMemory::new(Keeps::Order));
    let _remote = join(&end, wire, &mut control);
    let stale = watch(&end);
    loop {
        let mut said = [0];
        control.read_exact(&mut said).unwrap();
        if said == *b"!" {
            break;
        }
        let used = end.device.counters().bytes_mapped > 0;
        control.write_all(&[used.into()]).unwrap();
    }
    let counters = end.device.counters();
    assert!(counters.bytes_mapped >= ROUNDS * 100_000, "{counters:?}");
    assert_eq!(stale.load(SeqCst), 0);
    drop(control);
    assert!(process.0.wait().unwrap().success());
    wait_for("the end of the mapping", || {
        (end.memory.mapped() == 0).then_some(())
    });
}
