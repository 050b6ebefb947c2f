// SPDX-License-Identifier: MIT
//! A process that dies while a kernel waits for it.

use std::time::{Duration, Instant};

use mscclpp_port::{Error, Status, TransportKind};

use crate::Test;
use crate::common;
use crate::processes::Peer;
use crate::support::{Running, WaitArgs, end, gpu_of, kernel};

pub(crate) const TESTS: &[Test] = &[
    ("a_dead_peer_is_noticed", 1, a_dead_peer_is_noticed),
    (
        "a_dead_peer_releases_kernels",
        1,
        a_dead_peer_releases_kernels,
    ),
];

fn a_dead_peer_is_noticed() {
    let (mut peer, bootstrap) = Peer::start("stay", &[]);
    let end = end(bootstrap, TransportKind::CudaIpc, gpu_of(0), 4096).unwrap();
    peer.kill();
    let error = common::failure(&end.connection);
    assert!(
        matches!(error, Error::PeerDown { rank: Some(1), .. }),
        "{error}"
    );
}

fn a_dead_peer_releases_kernels() {
    let (mut peer, bootstrap) = Peer::start("stay", &[]);
    let end = end(bootstrap, TransportKind::CudaIpc, gpu_of(0), 4096).unwrap();
    let device = end.buffer.device();
    let waiting = Running::start((device, kernel(device, "wait_once")), 1, |report| {
        WaitArgs {
            channel: end.channel.device_handle(),
            report,
        }
    });
    std::thread::sleep(Duration::from_millis(50));
    peer.kill();
    let killed = Instant::now();
    assert_eq!(waiting.end().word(0), Status::PeerDown as u64);
    assert!(killed.elapsed() < Duration::from_secs(5));
}
