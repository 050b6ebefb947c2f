// SPDX-License-Identifier: MIT
//! What channels on queues do.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mlx5_queue::{Opcode, Syndrome};
use mscclpp_bootstrap::Bootstrap;
use mscclpp_port::{Access, Error, Status};
use mscclpp_softnic::{Capabilities, DeviceConfig, Landing, NetworkConfig};

use crate::binding::{entry, reserved};
use crate::local::Local;
use crate::support::{At, Call, call, eventually, ping_pong, start};
use crate::world::{
    assert_empty, communicator, forms, gpu, ib, inline, nic, nics, pair, pair_on, soon,
    without_atomics,
};

#[test]
fn gpunetio_ping_pong_without_a_proxy_in_every_form() {
    let mut audited = DeviceConfig::default();
    // Longer than a thread is kept waiting between a record and its doorbell.
    audited.checks.audit_interval = Duration::from_secs(2);
    let made = forms().map(|config| {
        let devices = [(); 2].map(|()| nic(audited.clone()));
        let [a, b] = pair_on(&devices, 8192, config);
        let ends = [(a.handle(), a.address()), (b.handle(), b.address())];
        ping_pong(ends, 1000, 100);
        (devices, [a, b])
    });
    // Two audits of each.
    thread::sleep(3 * audited.checks.audit_interval);
    for device in made.iter().flat_map(|(devices, _)| devices) {
        assert_eq!(device.take_violations(), []);
    }
}

#[test]
fn gpunetio_ping_pong_on_hcas_without_atomics() {
    let devices = [(); 2].map(|()| nic(without_atomics()));
    let [a, b] = pair_on(&devices, 8192, inline());
    let ends = [(a.handle(), a.address()), (b.handle(), b.address())];
    ping_pong(ends, 1000, 50);
    let accumulated = call(a.handle(), Call::Accumulate, At::both(0, 1));
    assert_eq!(accumulated, Status::Unsupported);
}

#[test]
fn gpunetio_results_of_atomics_never_land_in_user_memory() {
    let [a, b] = pair(1 << 16);
    let pattern: Vec<u8> = (0..1_u32 << 16).map(|i| (i * 31 + i / 256) as u8).collect();
    a.buffer.write(0, &pattern).unwrap();
    b.buffer.write(0, &pattern).unwrap();
    let signalling = start(a.handle(), Call::Signal, At::NOWHERE, (2, 50_000));
    let waiting = start(b.handle(), Call::Wait, At::NOWHERE, (1, 100_000));
    assert_eq!(signalling.end(), [Status::Ok; 2]);
    assert_eq!(waiting.end(), [Status::Ok]);
    assert_eq!(call(a.handle(), Call::Flush, At::NOWHERE), Status::Ok);
    assert_eq!(a.bytes(0, 1 << 16), pattern);
    assert_eq!(b.bytes(0, 1 << 16), pattern);
    let scratch = a.handle().base.queue.queue.scratch;
    assert!(!(a.address()..a.address() + (1 << 16)).contains(&scratch));
}

#[test]
fn gpunetio_gets_accumulates_and_splits() {
    let small = DeviceConfig {
        capabilities: Capabilities {
            max_message: 1000,
            ..Capabilities::default()
        },
        ..DeviceConfig::default()
    };
    let devices = [nic(small.clone()), nic(small)];
    let [a, b] = pair_on(&devices, 1 << 16, gpu());
    let pattern: Vec<u8> = (0..10_000_u32).map(|i| (i * 7 + i / 256) as u8).collect();
    a.buffer.write(0, &pattern).unwrap();
    let at = At {
        dst: 1001,
        src: 0,
        size: 10_000,
    };
    assert_eq!(
        call(a.handle(), Call::PutWithSignalAndFlush, at),
        Status::Ok
    );
    assert_eq!(call(b.handle(), Call::Wait, At::NOWHERE), Status::Ok);
    assert_eq!(b.bytes(1001, 10_000), pattern);
    // Back again, as a read: from the peer's memory at the first offset to the own at the second.
    let back = At {
        dst: 1001,
        src: 30_000,
        size: 10_000,
    };
    assert_eq!(call(a.handle(), Call::Get, back), Status::Ok);
    assert_eq!(call(a.handle(), Call::Flush, At::NOWHERE), Status::Ok);
    assert_eq!(a.bytes(30_000, 10_000), pattern);
    let value = 3 * (1_u64 << 32) + 7;
    let add = |size| At::both(40_000, size);
    let adding = start(a.handle(), Call::Accumulate, add(value), (4, 10));
    assert_eq!(adding.end(), [Status::Ok; 4]);
    assert_eq!(
        call(a.handle(), Call::Accumulate, add(u64::MAX)),
        Status::Ok
    );
    assert_eq!(call(a.handle(), Call::Flush, At::NOWHERE), Status::Ok);
    assert_eq!(b.buffer.load_u64(40_000).unwrap(), 40 * value - 1);
    assert!(devices[0].counters().requests_of(Opcode::Read) >= 10);
}

#[test]
fn gpunetio_a_rank_reaches_itself_and_a_context_its_own_endpoints() {
    let device = nic(DeviceConfig::default());
    let bootstrap: Arc<dyn Bootstrap> = Local::world(1).0.remove(0);
    // Rank 0 with itself: one queue, connected to itself.
    let communicator = communicator(bootstrap, &device);
    let own = crate::world::end(communicator.clone(), 0, 4096, gpu()).unwrap();
    own.buffer.write(0, b"to myself").unwrap();
    let at = At {
        dst: 100,
        src: 0,
        size: 9,
    };
    assert_eq!(
        call(own.handle(), Call::PutWithSignalAndFlush, at),
        Status::Ok
    );
    assert_eq!(call(own.handle(), Call::Wait, At::NOWHERE), Status::Ok);
    assert_eq!(own.bytes(100, 9), b"to myself");
    let memory = own.handle().dst_memory;
    assert_eq!(entry(&own.handle(), own.dst.into())[0], memory.address);

    // Two endpoints of one context.
    let context = communicator.context();
    let ends = [(); 2].map(|()| context.create_endpoint(gpu()).unwrap());
    let records = [1, 0].map(|i: usize| ends[i].serialize().unwrap());
    let mut records = records.iter();
    let connections = ends.map(|end| {
        context
            .connect(end, records.next().unwrap(), soon())
            .unwrap()
    });
    for connection in &connections {
        connection.wait_connected(soon()).unwrap();
    }
    drop(own);
    let [first, second] = connections;
    drop(first);
    eventually("the other end notices", || second.status().is_some());
    assert!(matches!(second.status(), Some(Error::PeerDown { .. })));
    drop((second, communicator));
    assert_empty(&device);
}

#[test]
fn gpunetio_a_failed_request_is_named_on_both_ends() {
    eventually("this end's NIC says soon enough what failed", || {
        fails_by_its_own_nic(Duration::from_millis(250))
    });
}

/// A request that the peer refuses. Whether this end's NIC said so within `patience`, which is how long a
/// connection waits for that that has heard it from the peer; else it tells what it has heard.
fn fails_by_its_own_nic(patience: Duration) -> bool {
    let devices = nics();
    let [a, b] = pair_on(&devices, 4096, gpu());
    let waiting = start(b.handle(), Call::Wait, At::NOWHERE, (1, 1));
    let range = b
        .communicator
        .register_memory_with(&b.buffer, 0..64, ib(Access::FULL));
    let dropped = range.unwrap();
    b.communicator.send_memory(&dropped, 0, 3).unwrap();
    let dropped_at_a = a.communicator.recv_memory(1, 3).unwrap().get_by(soon());
    let dst = a.service.add_memory(dropped_at_a.unwrap()).unwrap();
    let channel = a.service.port_channel(a.semaphore, dst, a.src).unwrap();
    drop(dropped);
    let handle = channel.device_handle();
    let index = reserved(&a.channel);
    let started = Instant::now();
    let status = call(handle, Call::PutWithSignalAndFlush, At::both(0, 8));
    assert_eq!(status, Status::QueueError);
    // Later posts fail at once.
    assert_eq!(call(handle, Call::Put, At::both(0, 8)), Status::QueueError);
    eventually("the host notices", || a.connection.status().is_some());
    let late = started.elapsed() > patience;
    let error = a.connection.status().unwrap();
    if let Error::PeerFailed { reason, .. } = &error
        && late
        && reason == "it refused a request"
    {
        return false;
    }
    let Error::QueueFailed {
        rank: Some(1),
        queue,
        index: failed,
        syndrome: Syndrome::REMOTE_ACCESS,
        operation,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((queue, failed), (handle.base.queue.queue.number, index));
    assert!(operation.contains("put"), "{operation}");
    assert!(error.to_string().contains("REM_ACCESS_ERR"), "{error}");
    // Kernels of the other end are released, and its host knows, too.
    assert_eq!(waiting.end(), [Status::QueueError]);
    let error = b.connection.status().unwrap();
    assert!(
        matches!(
            error,
            Error::QueueRefused { rank: Some(0), .. } | Error::PeerFailed { .. }
        ),
        "{error}"
    );
    true
}

#[test]
fn gpunetio_two_contexts_share_a_nic() {
    let device = nic(DeviceConfig::default());
    let [a, b] = pair_on(&[device.clone(), device.clone()], 8192, gpu());
    let ends = [(a.handle(), a.address()), (b.handle(), b.address())];
    ping_pong(ends, 1000, 20);
    assert!(device.links().is_empty());
    drop(a);
    eventually("the other end notices", || b.connection.status().is_some());
    drop(b);
    assert_empty(&device);
}

#[test]
fn gpunetio_a_lossy_network_only_delays() {
    let lossy = |seed| DeviceConfig {
        seed,
        network: NetworkConfig {
            loss: 0.02,
            delay: Duration::from_micros(50),
            ..NetworkConfig::default()
        },
        landing: Landing::Scattered {
            linger: Duration::from_micros(50),
        },
        ..DeviceConfig::default()
    };
    let [a, b] = pair_on(&[nic(lossy(1)), nic(lossy(2))], 8192, gpu());
    let ends = [(a.handle(), a.address()), (b.handle(), b.address())];
    ping_pong(ends, 500, 40);
}
