// SPDX-License-Identifier: MIT
//! Reads of the peer's memory.

use anyhow::ensure;
use mscclpp_port::{MemoryId, Status};
use mscclpp_softnic::{Acknowledge, DeviceConfig, Landing};
use std::time::Duration;

use super::{KINDS, requests, setup};
use crate::backend::Backend;
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, Range, Steps};

pub(super) fn register_unsupported(registry: &mut Registry, backend: &'static Backend) {
    if backend.posts_to_queue() {
        return;
    }
    let name = format!("PortChannelErrorTest.GetIsUnsupported{}", backend.suffix);
    registry.add_on(backend, name, unsupported).ranks(2, 2);
}

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let suffix = backend.suffix;
    let name = |test: &str| format!("PortChannelOneToOneTest.{test}{suffix}");
    registry
        .add_on(backend, name("GpuNetIoGet"), get)
        .ranks(2, 2);
    registry
        .add_on(
            backend,
            name("GpuNetIoGetAfterThePeersSignal"),
            after_a_signal,
        )
        .ranks(2, 2)
        .seconds(120);
    registry
        .add_on(backend, name("GpuNetIoGetOutOfBounds"), out_of_bounds)
        .ranks(2, 2);
}

/// A proxy does not read: nothing is pushed, and the channel is none the worse.
fn unsupported(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(64)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let calls = [
        (0, Call::Get(link.first(8))),
        (0, Call::PutWithSignal(link.first(8))),
        (0, Call::Wait),
        (0, Call::Flush),
    ];
    let done = Steps::launch(&[link.base()], &calls)?.finish(context.deadline())?;
    let status = done[0].status()?;
    ensure!(
        status == Status::Unsupported,
        "a get over a proxy returns {status:?}"
    );
    ensure!(
        done[1..].iter().all(|done| done.is_ok()),
        "a later call fails"
    );
    fixture.meet()
}

fn pattern(rank: usize, bytes: u64) -> Vec<u8> {
    (0..bytes)
        .map(|i| (i * 29 + i / 253 + 97 * rank as u64 + 1) as u8)
        .collect()
}

/// Both ranks read the other's memory: small and large pieces, at offsets that differ.
fn get(context: &Context, backend: &'static Backend) -> TestResult {
    const SIZE: u64 = 1 << 20;
    let fixture = Fixture::new(context, backend)?;
    let (exposed, into) = (fixture.buffer(SIZE)?, fixture.buffer(SIZE)?);
    exposed.write(0, &pattern(context.rank(), SIZE))?;
    // The remote memory of the channel is what the peer exposes.
    let link = fixture.pair(0, &fixture.register(&into)?, &fixture.register(&exposed)?)?;
    fixture.meet()?;
    let theirs = pattern(1 - context.rank(), SIZE);
    for (from, to, size) in [
        (0, 0, 8),
        (5, 4091, 1),
        (4093, 17, 4099),
        (77, 77, 0),
        (0, 0, SIZE),
        (SIZE - 1, 0, 1),
    ] {
        into.write(0, &vec![0; SIZE as usize])?;
        let range = Range {
            dst_offset: from,
            src_offset: to,
            ..link.first(size)
        };
        let calls = [(0, Call::Get(range)), (0, Call::Flush)];
        Steps::run(&[link.base()], &calls, context.deadline())?;
        let mut found = vec![0; SIZE as usize];
        into.read(0, &mut found)?;
        let (from, to, size) = (from as usize, to as usize, size as usize);
        ensure!(
            found[to..to + size] == theirs[from..from + size],
            "{size} bytes from {from}: other bytes"
        );
        found[to..to + size].fill(0);
        ensure!(
            found.iter().all(|byte| *byte == 0),
            "{size} bytes from {from}: more was written"
        );
    }
    fixture.meet()
}

/// What a peer wrote before its signal is what a get after the wait reads, on a NIC that lets
/// everything land as late as it may.
fn after_a_signal(context: &Context, backend: &'static Backend) -> TestResult {
    const WORDS: u64 = 700;
    let rounds = context.profile().pick(40, 400);
    for kind in KINDS {
        let nic = DeviceConfig {
            seed: 31 + context.rank() as u64,
            landing: Landing::Scattered {
                linger: Duration::from_micros(100),
            },
            acknowledge: Acknowledge::Accepted,
            ..DeviceConfig::default()
        };
        let fixture = Fixture::with(context, backend, &setup(kind, nic))?;
        let buffer = fixture.buffer(8 * WORDS)?;
        let link = fixture.pair_in_place(0, &buffer)?;
        context.stage(format!("{kind:?}"));
        for round in 0..rounds {
            let value = |word: u64| (round << 32) | (word + 1);
            if context.rank() == 1 {
                for word in 0..WORDS {
                    buffer.store_u64(8 * word, value(word))?;
                }
                let calls = [(0, Call::Signal), (0, Call::Wait)];
                Steps::run(&[link.base()], &calls, context.deadline())?;
            } else {
                let calls = [
                    (0, Call::Wait),
                    (0, Call::Get(link.first(8 * WORDS))),
                    (0, Call::Flush),
                    (0, Call::Signal),
                ];
                Steps::run(&[link.base()], &calls, context.deadline())?;
                for word in 0..WORDS {
                    let found = buffer.load_u64(8 * word)?;
                    ensure!(
                        found == value(word),
                        "{kind:?}, round {round}: word {word} is {found:#x}"
                    );
                }
            }
        }
        fixture.meet()?;
    }
    Ok(())
}

fn out_of_bounds(context: &Context, backend: &'static Backend) -> TestResult {
    const SIZE: u64 = 256;
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(SIZE)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    fixture.meet()?;
    let before = requests(&fixture)?;
    let sound = link.first(8);
    let at = |dst_offset, src_offset, size| Range {
        dst_offset,
        src_offset,
        size,
        ..sound
    };
    let calls = [
        at(SIZE - 7, 0, 8),
        at(0, SIZE - 7, 8),
        at(SIZE + 1, 0, 0),
        at(u64::MAX, 0, 2),
        at(0, u64::MAX - 3, 8),
        at(8, 0, u64::MAX),
        Range {
            dst: MemoryId::from(100),
            ..sound
        },
        Range {
            src: MemoryId::from(512),
            ..sound
        },
        Range {
            dst: link.src,
            ..sound
        },
        Range {
            src: link.dst,
            ..sound
        },
    ]
    .map(|range| (0, Call::Get(range)));
    let done = Steps::launch(&[link.base()], &calls)?.finish(context.deadline())?;
    for (done, (_, call)) in done.iter().zip(&calls) {
        let status = done.status()?;
        ensure!(
            status == Status::InvalidArgument,
            "{call:?} returns {status:?}"
        );
    }
    ensure!(requests(&fixture)? == before, "something was posted");
    fixture.meet()
}
