// SPDX-License-Identifier: MIT
//! NICs in software of two processes that fetch payload from each other's GPU memory. One GPU is
//! enough for both.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::Bootstrap;
use mscclpp_port::{IbConfig, QueueForm, QueuePlacement, Status};
use mscclpp_softnic as softnic;

use crate::Test;
use crate::common::pattern;
use crate::processes::Peer;
use crate::queue::{CallsArgs, End, end, nic, own_kernel, start_ping_pong};
use crate::support::{Running, StreamArgs, gpu_of, kernel};

pub(crate) const TESTS: &[Test] = &[("queue_processes_fetch_from_each_other", 1, fetch)];
pub(crate) const JOB: &str = "lent";

const BYTES: u64 = 300_000;
/// Each puts and gets so often. The first ones may be over before the memory is mapped.
const ROUNDS: u64 = 20;
const MAPPED_ROUNDS: u64 = 15;

fn fetch() {
    let (peer, bootstrap) = Peer::start(JOB, &[]);
    play(bootstrap);
    peer.succeeds();
}

/// One rank's part.
pub(crate) fn play(bootstrap: Arc<dyn Bootstrap>) {
    let device = gpu_of(bootstrap.rank());
    for name in ["ping_pong", "put_stream"] {
        kernel(device, name);
    }
    own_kernel(device, "queue_calls");
    for queue_placement in [QueuePlacement::Device, QueuePlacement::Host] {
        let ib = IbConfig {
            queue_form: QueueForm::Exclusive,
            queue_placement,
            ..IbConfig::default()
        };
        let nic = nic();
        let end = end(Arc::clone(&bootstrap), &nic, device, 8 << 20, ib);
        bootstrap.barrier().unwrap();
        calls(&*bootstrap, &nic, &end);
        ping_pong(&*bootstrap, &nic, &end);
        stream(&*bootstrap, &nic, &end, queue_placement);
        assert_eq!(nic.take_violations(), []);
        drop(end);
        bootstrap.barrier().unwrap();
        nothing_is_left(&nic);
    }
}

/// Each in its turn: put, accumulate, flush, get, flush; all by a kernel.
fn calls(bootstrap: &dyn Bootstrap, nic: &softnic::Device, end: &End) {
    let rank = bootstrap.rank();
    for turn in 0..2 {
        for round in 0..ROUNDS {
            let seed = |rank: usize| (1 + 2 * round + rank as u64) as _;
            let (ours, theirs) = (
                pattern(seed(turn), BYTES as usize),
                pattern(seed(1 - turn), BYTES as usize),
            );
            let mine = rank == turn;
            let (at, data) = if mine { (0, &ours) } else { (BYTES, &theirs) };
            end.buffer.write(at, data).unwrap();
            end.buffer.store_u64(2 * BYTES, 30).unwrap();
            bootstrap.barrier().unwrap();
            if mine {
                let calls = own_kernel(end.buffer.device(), "queue_calls");
                let device = end.buffer.device();
                let running = Running::start((device, calls), 1, |report| CallsArgs {
                    channel: end.channel.device_handle(),
                    bytes: BYTES,
                    report,
                });
                let why = || end.connection.status();
                assert_eq!(running.end().word(0), Status::Ok as u64, "{:?}", why());
            }
            bootstrap.barrier().unwrap();
            let (at, expected) = if mine { (BYTES, &theirs) } else { (0, &ours) };
            let mut found = vec![0; BYTES as usize];
            end.buffer.read(at, &mut found).unwrap();
            assert!(
                found == *expected,
                "rank {rank}, round {round}: what was put or got"
            );
            if !mine {
                assert_eq!(end.buffer.load_u64(2 * BYTES).unwrap(), 42);
            }
            bootstrap.barrier().unwrap();
        }
    }
    // What the peer put here, and what was got from there.
    let counters = nic.counters();
    println!(
        "rank {rank}: {} of {} bytes were fetched from the peer's memory, {} mappings",
        counters.bytes_mapped,
        2 * ROUNDS * BYTES,
        counters.mappings
    );
    assert_eq!(counters.mappings, 1, "rank {rank}");
    assert!(
        counters.bytes_mapped >= 2 * MAPPED_ROUNDS * BYTES,
        "rank {rank}: {counters:?}"
    );
    bootstrap.barrier().unwrap();
}

/// Kernels of both at once: where they share a GPU, they take turns on it.
fn ping_pong(bootstrap: &dyn Bootstrap, nic: &softnic::Device, end: &End) {
    const WORDS: u64 = 4096;
    const ITERATIONS: u64 = 50;
    let before = nic.counters().bytes_mapped;
    bootstrap.barrier().unwrap();
    let report = start_ping_pong(end, WORDS, ITERATIONS, true).end();
    let (rank, why) = (bootstrap.rank(), end.connection.status());
    assert_eq!(report.word(0), u64::MAX, "rank {rank} failed: {why:?}");
    assert_eq!(report.word(1), 0, "words that were not the round's");
    bootstrap.barrier().unwrap();
    let mapped = nic.counters().bytes_mapped - before;
    assert!(
        mapped >= (ITERATIONS - 1) * WORDS * 8,
        "rank {rank}: {mapped} bytes"
    );
    if rank == 0 {
        let each = report.word(2) as f64 / ITERATIONS as f64 / 1000.0;
        println!(
            "two processes: {} bytes there and back with flush: {each:.1} us",
            WORDS * 8
        );
    }
}

fn stream(bootstrap: &dyn Bootstrap, nic: &softnic::Device, end: &End, place: QueuePlacement) {
    const COUNT: u64 = 128;
    for bytes in [64 << 10, 1 << 20, 8 << 20] {
        let before = nic.counters().bytes_mapped;
        bootstrap.barrier().unwrap();
        if bootstrap.rank() == 0 {
            let device = end.buffer.device();
            let running = Running::start((device, kernel(device, "put_stream")), 1, |report| {
                StreamArgs {
                    channel: end.channel.device_handle(),
                    offset: 0,
                    bytes,
                    count: COUNT,
                    report,
                }
            });
            let report = running.end();
            assert_eq!(
                report.word(0),
                Status::Ok as u64,
                "{:?}",
                end.connection.status()
            );
            let speed = (bytes * COUNT) as f64 / report.word(2) as f64;
            println!(
                "two processes, queue in memory of {place:?}: puts of {bytes} bytes: {speed:.2} GB/s"
            );
        }
        bootstrap.barrier().unwrap();
        if bootstrap.rank() == 1 {
            let mapped = nic.counters().bytes_mapped - before;
            assert_eq!(mapped, COUNT * bytes, "bytes that were fetched");
        }
    }
}

/// A peer's memory is unmapped when its registration has ended.
fn nothing_is_left(nic: &softnic::Device) {
    let begun = Instant::now();
    loop {
        let counters = nic.counters();
        if counters.live == softnic::LiveObjects::default() && counters.mappings == 0 {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{counters:?}");
        thread::sleep(Duration::from_millis(5));
    }
}
