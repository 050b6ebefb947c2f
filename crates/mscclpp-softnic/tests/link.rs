// SPDX-License-Identifier: MIT
//! Devices that are linked by a stream, in one process and in two.

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mlx5_queue::*;
use mscclpp_softnic::{Error, *};
use support::*;

const PATIENCE: Duration = Duration::from_secs(10);

/// One end: a device, a poster, and memory that the other end may reach.
struct End {
    device: Device,
    poster: Poster,
    memory: HostBuffer,
    registration: Registration,
}

impl End {
    fn new(config: DeviceConfig, setup: &Setup) -> Self {
        let device = Device::open("soft0", config).unwrap();
        let domain = device.allocate_domain().unwrap();
        let memory = HostBuffer::new(8 << 20);
        let range = memory.range();
        let registration = domain
            .register(range, AccessFlags::ALL, WriteOrdering::Strict)
            .unwrap();
        let poster = Poster::new(&domain, setup);
        Self {
            device,
            poster,
            memory,
            registration,
        }
    }

    fn local(&self, offset: usize, length: u32) -> DataSegment {
        let address = self.memory.address() + offset as u64;
        DataSegment::new(address, self.registration.key(), length).unwrap()
    }

    fn remote(&self, offset: usize) -> RemoteAddress {
        let address = self.memory.address() + offset as u64;
        RemoteAddress {
            address,
            key: self.registration.key(),
        }
    }
}

/// Gives up after 0.8 s without an answer.
fn quick() -> Setup {
    let send = SendAttributes {
        timeout: Duration::from_millis(200),
        retry_count: 3,
        ..SendAttributes::default()
    };
    Setup {
        send,
        receive_queue: true,
        ..Setup::default()
    }
}

/// Does not give up because the machine is busy.
fn steady() -> Setup {
    let setup = quick();
    let send = SendAttributes {
        timeout: Duration::from_secs(1),
        ..setup.send
    };
    Setup { send, ..setup }
}

fn tcp() -> (LinkStream, LinkStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near.into(), listener.accept().unwrap().0.into())
}

fn unix() -> (LinkStream, LinkStream) {
    let (near, far) = UnixStream::pair().unwrap();
    (near.into(), far.into())
}

fn link(a: &End, b: &End, (near, far): (LinkStream, LinkStream)) {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| b.device.link(far, PATIENCE).unwrap());
        assert_eq!(a.device.link(near, PATIENCE).unwrap(), b.device.address());
        assert_eq!(other.join().unwrap(), a.device.address());
    });
}

fn linked(config: &DeviceConfig, setup: &Setup, streams: (LinkStream, LinkStream)) -> (End, End) {
    let (a, b) = (
        End::new(config.clone(), setup),
        End::new(config.clone(), setup),
    );
    link(&a, &b, streams);
    a.poster
        .connect(b.poster.pair.address(), setup, setup.mtu.0);
    b.poster
        .connect(a.poster.pair.address(), setup, setup.mtu.1);
    (a, b)
}

fn works(a: &mut End, b: &mut End) {
    let length = 3_000_000;
    let data: Vec<u8> = (0..length as u32)
        .map(|i| (i * 7 + i / 1000) as u8)
        .collect();
    a.memory.write(1, &data);
    let list = [a.local(1, 1_000_000), a.local(1_000_001, 2_000_000)].map(DataSegment::encode);
    a.poster.post(write(b.remote(5), &list));
    let result = a.local(4 << 20, 8);
    let remote = b.remote(4 << 20);
    a.poster.post(Operation::FetchAdd {
        remote,
        add: 5,
        result,
    });
    let list = [a.local(5 << 20, length as u32).encode()];
    let scatter = DataSegments::new(&list);
    a.poster.post(Operation::Read {
        remote: b.remote(5),
        scatter,
    });
    b.poster.post_receive(&[b.local(6 << 20, 64)]);
    let payload = Payload::Inline(b"a message");
    a.poster.post(Operation::Send {
        payload,
        immediate: Some(8),
    });
    for _ in 0..4 {
        assert_eq!(a.poster.wait().failure(), None);
    }
    let mut seen = vec![0; length];
    b.memory.read(5, &mut seen);
    assert!(seen == data, "written");
    a.memory.read(5 << 20, &mut seen);
    assert!(seen == data, "read back");
    assert_eq!(b.memory.read_u64(4 << 20), 5);
    let received = wait_for("a message", || b.poster.poll_receive());
    assert!(matches!(received.entry, Entry::Responder { bytes: 9, .. }));
}

#[test]
fn every_operation_crosses_a_stream() {
    for streams in [tcp(), unix()] {
        let (mut a, mut b) = linked(&DeviceConfig::default(), &steady(), streams);
        works(&mut a, &mut b);
        works(&mut b, &mut a);
    }
}

/// Also while posters wait, and although each queue pair is looked at now and
/// then.
#[test]
fn linked_engines_without_work_sleep() {
    let setup = steady();
    let ends: Vec<(End, Vec<Poster>)> = [(); 2]
        .map(|()| {
            // A name of their own: other tests of this file have engines too.
            let mut end = End::new(DeviceConfig::default(), &setup);
            end.device = Device::open("soft78", DeviceConfig::default()).unwrap();
            let domain = end.device.allocate_domain().unwrap();
            let posters = (0..64)
                .map(|_| {
                    let poster = Poster::new(&domain, &setup);
                    poster.connect(poster.pair.address(), &setup, Mtu::Bytes4096);
                    // Their audits are not to coincide.
                    std::thread::sleep(Duration::from_millis(3));
                    poster
                })
                .collect();
            (end, posters)
        })
        .into();
    link(&ends[0].0, &ends[1].0, unix());
    let before = engine_ticks("soft78");
    std::thread::scope(|scope| {
        for (end, _) in &ends {
            scope.spawn(|| assert_eq!(end.device.next_event(Duration::from_secs(2)), None));
        }
    });
    let used = engine_ticks("soft78").saturating_sub(before);
    assert!(used <= 2 * 20, "{used} of 2 times 200 ticks");
}

#[test]
fn a_lossy_link_is_still_reliable() {
    let network = NetworkConfig {
        loss: 0.02,
        ..NetworkConfig::default()
    };
    let config = DeviceConfig {
        network,
        seed: 4,
        ..DeviceConfig::default()
    };
    let mut setup = steady();
    setup.send.timeout = Duration::from_millis(5);
    setup.send.retry_count = 200;
    let (mut a, mut b) = linked(&config, &setup, unix());
    works(&mut a, &mut b);
    for i in 0..500 {
        let operation = Operation::FetchAdd {
            remote: b.remote(0),
            add: 1,
            result: a.local(0, 8),
        };
        b.memory.write_u64(8, i);
        a.poster.post(operation);
        assert_eq!(a.poster.wait().failure(), None);
    }
    assert!(a.device.counters().packets_lost > 0);
}

#[test]
fn both_ends_post_at_once() {
    let (mut a, mut b) = linked(&DeviceConfig::default(), &steady(), tcp());
    let (remote_a, remote_b) = (a.remote(0), b.remote(0));
    let post = |end: &mut End, remote| {
        for i in 0..200u64 {
            end.memory.write_u64(64, i);
            let list = [end.local(64, 65536).encode()];
            let target = RemoteAddress {
                address: remote_address(remote) + (1 << 20),
                ..remote
            };
            end.poster.write(Flags::UNSIGNALLED, write(target, &list));
            let result = end.local(32, 8);
            end.poster.post(Operation::FetchAdd {
                remote,
                add: 1,
                result,
            });
            assert_eq!(end.poster.wait().failure(), None);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| post(&mut a, remote_b));
        scope.spawn(|| post(&mut b, remote_a));
    });
    for end in [&a, &b] {
        assert_eq!(end.memory.read_u64(0), 200);
        assert_eq!(end.memory.read_u64(1 << 20), 199);
    }
}

fn remote_address(remote: RemoteAddress) -> u64 {
    remote.address
}

#[test]
fn without_a_link_no_one_answers() {
    let setup = quick();
    let (mut a, b) = (
        End::new(DeviceConfig::default(), &setup),
        End::new(DeviceConfig::default(), &setup),
    );
    a.poster
        .connect(b.poster.pair.address(), &setup, Mtu::Bytes4096);
    a.poster.post(Operation::Write {
        remote: b.remote(0),
        payload: Payload::Inline(&[1]),
        immediate: None,
    });
    assert_eq!(a.poster.wait_failure(), Syndrome::TRANSPORT_RETRY_EXCEEDED);
    assert_eq!(a.device.links(), []);
}

#[test]
fn a_device_that_is_dropped_takes_its_link_down_and_another_can_follow() {
    let setup = quick();
    let (mut a, b) = linked(&DeviceConfig::default(), &setup, tcp());
    let remote = b.remote(0);
    let gone = b.device.address();
    drop(b);
    // An engine that has nothing to do hears of it too.
    let event = a.device.next_event(PATIENCE);
    assert!(matches!(event, Some(Event::LinkDown { peer, .. }) if peer == gone));
    assert_eq!(a.device.links(), []);
    let payload = Payload::Inline(&[1]);
    a.poster.post(Operation::Write {
        remote,
        payload,
        immediate: None,
    });
    assert_eq!(a.poster.wait_failure(), Syndrome::TRANSPORT_RETRY_EXCEEDED);
    let event = a.device.next_event(PATIENCE);
    assert!(matches!(event, Some(Event::QueuePairFailed { .. })));
    assert_eq!(a.device.next_event(Duration::ZERO), None);

    let mut b = End::new(DeviceConfig::default(), &setup);
    link(&a, &b, unix());
    let mut poster = Poster::new(&a.device.allocate_domain().unwrap(), &setup);
    std::mem::swap(&mut a.poster, &mut poster);
    drop(poster);
    // The registration is of another domain than the new queue pair.
    a.poster
        .connect(b.poster.pair.address(), &setup, Mtu::Bytes4096);
    b.poster
        .connect(a.poster.pair.address(), &setup, Mtu::Bytes4096);
    let operation = Operation::Write {
        remote: b.remote(0),
        payload,
        immediate: None,
    };
    a.poster.post(operation);
    assert_eq!(a.poster.wait().failure(), None);
    let list = [b.local(0, 8).encode()];
    b.poster.post(write(a.remote(0), &list));
    assert_eq!(b.poster.wait_failure(), Syndrome::REMOTE_ACCESS);
}

#[test]
fn strangers_are_turned_away() {
    let end = End::new(DeviceConfig::default(), &quick());
    for (said, why) in [
        (
            &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
            "no NIC in software",
        ),
        (b"softnic\x01................", "no NIC in software"),
        (b"short", "timed out"),
    ] {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(said).unwrap();
        let error = end
            .device
            .link(near, Duration::from_millis(200))
            .unwrap_err();
        let Error::Link { source, .. } = &error else {
            panic!("{error}")
        };
        let told = source.to_string();
        let timed_out = source.kind() == std::io::ErrorKind::TimedOut && why == "timed out";
        assert!(told.contains(why) || timed_out, "{told}");
    }
    let (near, far) = UnixStream::pair().unwrap();
    drop(far);
    assert!(matches!(
        end.device.link(near, PATIENCE),
        Err(Error::Link { .. })
    ));
}

/// The other end could take the place of a third device's link.
#[test]
fn an_end_that_says_it_is_another_device_is_refused() {
    let (mut a, mut b) = linked(&DeviceConfig::default(), &steady(), unix());
    let other = DeviceAddress([7; 16]);
    let (near, mut far) = UnixStream::pair().unwrap();
    let mut hello = b"softnic\x02".to_vec();
    hello.extend(b.device.address().0);
    far.write_all(&hello).unwrap();
    let error = a.device.link_to(other, near, PATIENCE).unwrap_err();
    let Error::Link { source, .. } = &error else {
        panic!("{error}")
    };
    assert!(source.to_string().contains("another device"), "{source}");
    // The link to the device that it said it was is as it was.
    works(&mut a, &mut b);
    let (near, far) = unix();
    std::thread::scope(|scope| {
        let (a, b) = (&a.device, &b.device);
        let other = scope.spawn(move || b.link_to(a.address(), far, PATIENCE));
        a.link_to(b.address(), near, PATIENCE).unwrap();
        other.join().unwrap().unwrap();
    });
    assert_eq!(a.device.links(), [b.device.address()]);
}

#[test]
fn a_link_may_take_as_long_as_it_likes() {
    let open = || Device::open("soft0", DeviceConfig::default()).unwrap();
    let (a, b) = (open(), open());
    let (near, far) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| b.link(far, Duration::MAX).unwrap());
        assert_eq!(a.link(near, Duration::MAX).unwrap(), b.address());
        assert_eq!(other.join().unwrap(), a.address());
    });
}

#[test]
fn a_link_that_replaces_another_goes_down_once() {
    let (mut a, mut b) = linked(&DeviceConfig::default(), &steady(), unix());
    for streams in [tcp(), unix(), tcp()] {
        link(&a, &b, streams);
    }
    works(&mut a, &mut b);
    assert_eq!(a.device.links().len(), 1);
    // The end that was replaced last may have seen the old stream close.
    while a.device.next_event(Duration::ZERO).is_some() {}
    drop(b);
    let event = a.device.next_event(PATIENCE);
    assert!(matches!(event, Some(Event::LinkDown { .. })));
    assert_eq!(a.device.next_event(Duration::ZERO), None);
}

/// What comes over a link after the greeting is not believed either.
#[test]
fn garbage_takes_the_link_down_and_nothing_else() {
    let mut rng = fastrand::Rng::with_seed(6);
    let (mut a, mut b) = linked(&DeviceConfig::default(), &steady(), unix());
    for _ in 0..40 {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut hello = *b"softnic\x02................";
        rng.fill(&mut hello[8..]);
        far.write_all(&hello).unwrap();
        a.device.link(near, PATIENCE).unwrap();
        let mut bytes = vec![0; 2000];
        rng.fill(&mut bytes);
        // Often in the shape of a frame.
        if rng.bool() {
            let length = rng.u32(..200);
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            bytes[4] = rng.u8(..12);
            bytes[5..13].fill(0);
            bytes[6] = 1;
        }
        let _ = far.write_all(&bytes);
        let mut rest = Vec::new();
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        // The device closes its end.
        let _ = far.read_to_end(&mut rest);
    }
    works(&mut a, &mut b);
}

/// The child: a device whose memory the parent writes and counts in.
fn serve() {
    let mut control = std::io::stdin().lock();
    let mut line = [0; 6];
    control.read_exact(&mut line).unwrap();
    let port: u16 = std::str::from_utf8(&line[..5])
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let setup = quick();
    let end = End::new(DeviceConfig::default(), &setup);
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    end.device.link(stream, PATIENCE).unwrap();
    let mut parent = [0; 20];
    control.read_exact(&mut parent).unwrap();
    end.poster
        .connect(decode_address(&parent), &setup, Mtu::Bytes4096);
    let mut out = std::io::stdout().lock();
    let mut card = encode_address(end.poster.pair.address()).to_vec();
    card.extend(end.memory.address().to_le_bytes());
    card.extend(end.registration.key().get().to_le_bytes());
    out.write_all(b"ready:").unwrap();
    out.write_all(&card).unwrap();
    out.flush().unwrap();
    // Until the parent closes its end, or kills.
    let _ = control.read(&mut [0]);
}

fn encode_address(address: QueueAddress) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..16].copy_from_slice(&address.device.0);
    bytes[16..].copy_from_slice(&address.queue.get().to_le_bytes());
    bytes
}

fn decode_address(bytes: &[u8; 20]) -> QueueAddress {
    let queue = u32::from_le_bytes(bytes[16..].try_into().unwrap());
    QueueAddress {
        device: DeviceAddress(bytes[..16].try_into().unwrap()),
        queue: QueueNumber::new(queue).unwrap(),
    }
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn two_processes_and_the_death_of_one() {
    if std::env::var_os("SOFTNIC_TEST_CHILD").is_some() {
        return serve();
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "two_processes_and_the_death_of_one",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("SOFTNIC_TEST_CHILD", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Process(child);
    let mut input = child.0.stdin.take().unwrap();
    let mut output = child.0.stdout.take().unwrap();
    let port = listener.local_addr().unwrap().port();
    writeln!(input, "{port:>5}").unwrap();
    let setup = quick();
    let mut end = End::new(DeviceConfig::default(), &setup);
    end.device
        .link(listener.accept().unwrap().0, PATIENCE)
        .unwrap();
    input
        .write_all(&encode_address(end.poster.pair.address()))
        .unwrap();
    input.flush().unwrap();
    // The test harness of the child talks before it does.
    let mut said = Vec::new();
    while !said.ends_with(b"ready:") {
        let mut byte = [0];
        output.read_exact(&mut byte).unwrap();
        said.push(byte[0]);
    }
    let mut card = [0; 32];
    output.read_exact(&mut card).unwrap();
    end.poster.connect(
        decode_address(card.first_chunk().unwrap()),
        &setup,
        Mtu::Bytes4096,
    );
    let address = u64::from_le_bytes(card[20..28].try_into().unwrap());
    let key = MemoryKey::new(u32::from_le_bytes(card[28..].try_into().unwrap()));
    let remote = RemoteAddress { address, key };

    let data: Vec<u8> = (0..1_000_000u32).map(|i| (i / 3) as u8).collect();
    end.memory.write(0, &data);
    let list = [end.local(0, 1_000_000).encode()];
    end.poster.write(Flags::UNSIGNALLED, write(remote, &list));
    let counter = RemoteAddress {
        address: address + (2 << 20),
        key,
    };
    for _ in 0..20 {
        let result = end.local(3 << 20, 8);
        let operation = Operation::FetchAdd {
            remote: counter,
            add: 1,
            result,
        };
        end.poster.write(Flags::UNSIGNALLED, operation);
    }
    let back = [end.local(4 << 20, 1_000_000).encode()];
    let scatter = DataSegments::new(&back);
    end.poster.post(Operation::Read { remote, scatter });
    assert_eq!(end.poster.wait().failure(), None);
    let mut seen = vec![0; 1_000_000];
    end.memory.read(4 << 20, &mut seen);
    assert!(seen == data);
    assert_eq!(end.memory.read_u64(3 << 20), 19);

    assert_eq!(end.device.next_event(Duration::ZERO), None);
    child.0.kill().unwrap();
    let start = Instant::now();
    let event = end.device.next_event(PATIENCE);
    let peer = decode_address(card.first_chunk().unwrap()).device;
    assert!(matches!(event, Some(Event::LinkDown { peer: gone, .. }) if gone == peer));
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
    end.poster.post(write(remote, &list));
    assert_eq!(
        end.poster.wait_failure(),
        Syndrome::TRANSPORT_RETRY_EXCEEDED
    );
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
}
