// SPDX-License-Identifier: MIT
//! A peer's process that is stopped, but not dead.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_port::Status;
use mscclpp_softnic::{Device, DeviceConfig};

use crate::support::{At, Call, call, start};
use crate::world::{gpu, nic, pair_on};

/// Passes on what comes, until told to stop, when it takes no more either.
fn pass_on(mut from: UnixStream, mut to: UnixStream, stopped: Arc<AtomicBool>) {
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            while stopped.load(SeqCst) {
                thread::sleep(Duration::from_millis(5));
            }
            if to.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
    });
}

/// Links two devices by a wire that stops when told to.
fn link(devices: [&Device; 2]) -> Arc<AtomicBool> {
    let stopped = Arc::new(AtomicBool::new(false));
    let wires = [(); 2].map(|()| UnixStream::pair().unwrap());
    let [(near, a), (far, b)] = wires;
    let again = |stream: &UnixStream| stream.try_clone().unwrap();
    pass_on(again(&a), again(&b), Arc::clone(&stopped));
    pass_on(b, a, Arc::clone(&stopped));
    let first = devices[0].clone();
    let greeting = thread::spawn(move || first.link(near, Duration::from_secs(5)).unwrap());
    devices[1].link(far, Duration::from_secs(5)).unwrap();
    greeting.join().unwrap();
    stopped
}

#[test]
fn gpunetio_a_stalled_peer_holds_up_nobody_else() {
    const BYTES: u64 = 16 << 20;
    let [a, b, c] = [(); 3].map(|()| nic(DeviceConfig::default()));
    let stopped = link([&a, &c]);
    let pairs: Vec<_> = (0..8)
        .map(|_| pair_on(&[a.clone(), c.clone()], BYTES, gpu()))
        .collect();
    let [other, _peer] = pair_on(&[a, b], 4096, gpu());
    stopped.store(true, SeqCst);
    let posts: Vec<_> = (pairs.iter())
        .map(|[end, _]| {
            let whole = At::both(0, BYTES);
            start(end.handle(), Call::PutWithSignalAndFlush, whole, (1, 1))
        })
        .collect();
    thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    let post = call(other.handle(), Call::PutWithSignalAndFlush, At::both(0, 8));
    let took = begun.elapsed();
    // Its own posts fail when their retries are used up.
    let ended: Vec<_> = posts.into_iter().map(|post| post.end()[0]).collect();
    stopped.store(false, SeqCst);
    assert_eq!(post, Status::Ok);
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(ended, [Status::QueueError; 8]);
}
