// SPDX-License-Identifier: MIT
//! Kernels of two ranks through channels.

use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::Deadline;
use mscclpp_port::{Buffer, Device, Error, Host2HostSemaphore, PortChannel, ProxyService, Status};

use crate::local::Local;
use crate::pair::{pair, pair_of, soon};
use crate::support::{Call, PATIENCE, PingPongArgs, Words, call, kernel, threads};

const OK: [Status; 1] = [Status::Ok];

#[test]
fn a_put_lands_before_its_signal() {
    let [a, b] = pair(4096);
    for round in 1..=50_u8 {
        a.buffer.write(100, &[round; 1000]).unwrap();
        let waiting = call(b.handle(), Call::Wait, (0, 0), 1);
        let putting = call(a.handle(), Call::PutWithSignal, (100, 1000), 1);
        assert_eq!(waiting.end(), OK);
        assert_eq!(b.bytes(100, 1000), [round; 1000]);
        assert_eq!((b.bytes(99, 1), b.bytes(1100, 1)), (vec![0], vec![0]));
        assert_eq!(putting.end(), OK);
        assert_eq!(call(a.handle(), Call::Flush, (0, 0), 1).end(), OK);
    }
}

#[test]
fn offsets_are_relative_to_registrations_of_different_sizes() {
    let [a, b] = pair(16384);
    // A part of b's buffer in the middle of it, and a smaller source at an odd place.
    let part = b
        .communicator
        .register_memory(&b.buffer, 4096..12288)
        .unwrap();
    b.communicator.send_memory(&part, 0, 5).unwrap();
    let remote = a
        .communicator
        .recv_memory(1, 5)
        .unwrap()
        .get_by(soon())
        .unwrap();
    let source = a
        .communicator
        .register_memory(&a.buffer, 1001..1011)
        .unwrap();
    let dst = a
        .service
        .add_memory(remote.sub_range(1000, 100).unwrap())
        .unwrap();
    let src = a.service.add_memory(source).unwrap();
    let channel = a.service.port_channel(a.semaphore, dst, src).unwrap();
    a.buffer.write(1000, b"0123456789a").unwrap();
    let handle = channel.device_handle();
    assert_eq!(
        call(handle, Call::PutWithSignalAndFlush, (4, 6), 1).end(),
        OK
    );
    assert_eq!(b.bytes(4096 + 1000 + 3, 8), b"\x0056789a\0");
}

#[test]
fn concurrent_flushes_of_one_channel_all_return() {
    let [a, b] = pair(64);
    for _ in 0..20 {
        let waiting = call(b.handle(), Call::Wait, (0, 0), 4);
        let putting = call(a.handle(), Call::PutWithSignalAndFlush, (0, 8), 4);
        assert_eq!(putting.end(), [Status::Ok; 4]);
        assert_eq!(waiting.end(), [Status::Ok; 4]);
    }
}

#[test]
fn sums_of_many_threads_are_exact() {
    let [a, b] = pair(64);
    let value = 3 * (1_u64 << 32) + 7;
    assert_eq!(
        call(a.handle(), Call::Accumulate, (16, value), 8).end(),
        [Status::Ok; 8]
    );
    assert_eq!(
        call(a.handle(), Call::Accumulate, (16, u64::MAX), 1).end(),
        OK
    );
    assert_eq!(call(a.handle(), Call::Flush, (0, 0), 1).end(), OK);
    assert_eq!(b.buffer.load_u64(16).unwrap(), 8 * value - 1);
}

#[test]
fn two_services_and_a_direct_channel_share_a_connection() {
    let [a, b] = pair(64);
    let second = ProxyService::new(8).unwrap();
    let semaphores = thread::scope(|scope| {
        let other = scope.spawn(|| {
            let made = b.communicator.build_semaphore(&b.connection, 0, 9).unwrap();
            Host2HostSemaphore::new(made.get_by(soon()).unwrap()).unwrap()
        });
        let made = a.communicator.build_semaphore(&a.connection, 1, 9).unwrap();
        let id = second.add_semaphore(made.get_by(soon()).unwrap()).unwrap();
        (id, other.join().unwrap())
    });
    let (id, host) = semaphores;
    let dst = second.add_memory(a.remote.clone()).unwrap();
    let src = second.add_memory(a.local.clone()).unwrap();
    let semaphore = second.semaphore(id).unwrap();
    let channel = PortChannel::new(&second, id, semaphore, dst, src).unwrap();
    second.start_proxy().unwrap();
    a.buffer.write(8, b"direct").unwrap();
    for _ in 0..3 {
        let one = call(
            channel.device_handle(),
            Call::PutWithSignalAndFlush,
            (8, 6),
            1,
        );
        let two = call(a.handle(), Call::PutWithSignalAndFlush, (0, 8), 1);
        assert_eq!((one.end(), two.end()), (OK.to_vec(), OK.to_vec()));
        host.wait(soon()).unwrap();
        assert_eq!(call(b.handle(), Call::Wait, (0, 0), 1).end(), OK);
    }
    assert_eq!(b.bytes(8, 6), b"direct");
    // Its own signals only.
    assert!(!host.poll().unwrap());
}

#[test]
fn puts_reach_beyond_four_gib_by_sub_ranges() {
    const GIB: u64 = 1 << 30;
    let [a, b] = pair(64);
    let large = Buffer::new(Device::cpu(), 5 * GIB).unwrap();
    let registered = b.communicator.register_memory(&large, 0..5 * GIB).unwrap();
    b.communicator.send_memory(&registered, 0, 5).unwrap();
    let remote = a
        .communicator
        .recv_memory(1, 5)
        .unwrap()
        .get_by(soon())
        .unwrap();
    assert_eq!(remote.size(), 5 * GIB);
    let upper = a
        .service
        .add_memory(remote.sub_range(4 * GIB, GIB).unwrap())
        .unwrap();
    let channel = a.service.port_channel(a.semaphore, upper, a.src).unwrap();
    a.buffer.store_u64(8, 77).unwrap();
    let put = call(
        channel.device_handle(),
        Call::PutWithSignalAndFlush,
        (8, 8),
        1,
    );
    assert_eq!(put.end(), OK);
    assert_eq!(large.load_u64(4 * GIB + 8).unwrap(), 77);
    // The host needs no sub-range.
    a.connection
        .write(&remote, 5 * GIB - 8, &a.local, 8, 8)
        .unwrap();
    a.connection.flush(soon()).unwrap();
    assert_eq!(large.load_u64(5 * GIB - 8).unwrap(), 77);
}

#[test]
fn a_bad_put_ends_its_connection_and_releases_its_kernels() {
    let [a, b] = pair(64);
    let waiting = call(a.handle(), Call::Wait, (0, 0), 2);
    let put = call(a.handle(), Call::PutUnknownMemory, (0, 8), 1);
    assert_eq!(put.end(), OK, "a put does not wait");
    assert_eq!(waiting.end(), [Status::QueueError; 2]);
    assert_eq!(
        call(a.handle(), Call::Flush, (0, 0), 1).end(),
        [Status::QueueError]
    );
    let error = a.connection.status().unwrap();
    assert!(
        error.to_string().contains("memory id 511 is unknown"),
        "{error}"
    );
    // The other end does not wait for ever either.
    let status = call(b.handle(), Call::Wait, (0, 0), 1).end();
    assert!(
        status == [Status::PeerDown] || status == [Status::QueueError],
        "{status:?}"
    );
}

#[test]
fn a_put_beyond_the_peers_memory_ends_the_connection() {
    let [a, _b] = pair(64);
    let put = call(a.handle(), Call::PutWithSignalAndFlush, (60, 8), 1);
    assert_eq!(put.end(), [Status::QueueError]);
    let error = a.connection.status().unwrap();
    assert!(error.to_string().contains("out of bounds"), "{error}");
}

#[test]
fn stopping_releases_kernels_in_every_call() {
    let [a, _b] = pair(64);
    let waiting = call(a.handle(), Call::Wait, (0, 0), 2);
    let putting = call(a.handle(), Call::PutForever, (0, 8), 2);
    thread::sleep(Duration::from_millis(50));
    assert!(waiting.all_waiting() && putting.all_waiting());
    a.service.stop_proxy_by(soon()).unwrap();
    assert_eq!(waiting.end(), [Status::Aborted; 2]);
    assert_eq!(putting.end(), [Status::Aborted; 2]);
    // Pushing to a full FIFO, and waiting for a flush that nobody will execute.
    assert_eq!(
        call(a.handle(), Call::Flush, (0, 0), 3).end(),
        [Status::Aborted; 3]
    );
    assert!(
        a.connection.status().is_none(),
        "the connection is unharmed"
    );
}

#[test]
fn dropping_the_service_releases_its_channels_kernels() {
    let [a, _b] = pair(64);
    let waiting = call(a.handle(), Call::Wait, (0, 0), 1);
    let channel = a.channel.clone();
    drop(a);
    assert_eq!(waiting.end(), [Status::Aborted]);
    drop(channel);
}

#[test]
fn a_rank_that_dies_releases_the_kernels_that_wait_for_it() {
    let (world, kill) = Local::world(2);
    let [a, b] = pair_of(world, 64);
    let waiting = call(a.handle(), Call::Wait, (0, 0), 3);
    thread::sleep(Duration::from_millis(20));
    assert!(waiting.all_waiting());
    let begin = Instant::now();
    kill(1);
    assert_eq!(waiting.end(), [Status::PeerDown; 3]);
    assert!(
        begin.elapsed() < Duration::from_secs(2),
        "{:?}",
        begin.elapsed()
    );
    let error = a.connection.status().unwrap();
    assert!(
        matches!(error, Error::PeerDown { rank: Some(1), .. }),
        "{error}"
    );
    assert!(error.to_string().contains("killed by the test"), "{error}");
    // What comes later fails at once.
    assert_eq!(
        call(a.handle(), Call::Flush, (0, 0), 1).end(),
        [Status::PeerDown]
    );
    let late = a.communicator.build_semaphore(&a.connection, 1, 3);
    assert!(matches!(late, Err(Error::PeerDown { rank: Some(1), .. })));
    drop(b);
}

#[test]
fn a_host_semaphore_times_out_and_loses_nothing() {
    let [a, b] = pair(64);
    let host = |end: &crate::pair::End, peer| {
        let made = end
            .communicator
            .build_semaphore(&end.connection, peer, 1)
            .unwrap();
        Host2HostSemaphore::new(made.get_by(soon()).unwrap()).unwrap()
    };
    let (one, two) = thread::scope(|scope| {
        let two = scope.spawn(|| host(&b, 0));
        (host(&a, 1), two.join().unwrap())
    });
    let error = two
        .wait(Deadline::after(Duration::from_millis(20)))
        .unwrap_err();
    assert!(
        matches!(error, Error::Timeout { rank: Some(0), .. }),
        "{error}"
    );
    for _ in 0..10 {
        one.signal().unwrap();
    }
    thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                two.wait(soon()).unwrap();
                two.wait(soon()).unwrap();
            });
        }
    });
    assert!(!two.poll().unwrap());
}

#[test]
fn ping_pong_goes_back_and_forth() {
    let [a, b] = pair(1 << 20);
    for (bytes, flush, iterations) in [(4, 0, 2000), (4, 1, 1000), (4096, 0, 500), (1 << 20, 0, 30)]
    {
        let words = [Words::new(1), Words::new(1)];
        let times = [Words::new(iterations), Words::new(iterations)];
        let play = |end: &crate::pair::End, rank: usize| {
            let args = PingPongArgs {
                channel: end.handle(),
                bytes,
                iterations,
                rank: rank as u64,
                flush,
                status: words[rank].address(),
                times: times[rank].address(),
            };
            kernel("port_ping_pong").launch(threads(1), args).unwrap()
        };
        let (first, second) = (play(&a, 0), play(&b, 1));
        first.join(PATIENCE).unwrap();
        second.join(PATIENCE).unwrap();
        for words in words {
            assert_eq!(words.statuses(), [Some(Status::Ok)]);
        }
        let mut times = times[0].all();
        times.sort_unstable();
        let [p10, median, p90] = [10, 50, 90].map(|p| times[times.len() * p / 100] as f64 / 1e3);
        println!(
            "ping-pong of {bytes} bytes, flush {flush}: {median:.1} us a round trip \
             (p10 {p10:.1}, p90 {p90:.1})"
        );
    }
}
