// SPDX-License-Identifier: MIT
//! Remote additions.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use mscclpp_port::{Error, Status};

use crate::backend::Backend;
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Accumulate, Call, FanIn, Steps};

/// Needs all 64 bits, and carries across the middle.
const OPERAND: i64 = 3 * (1 << 32) + 7;

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let suffix = backend.suffix;
    if !backend.accumulate {
        registry
            .add_on(
                backend,
                format!("PortChannelOneToOneTest.Accumulate{suffix}IsRefused"),
                is_refused,
            )
            .ranks(2, 2);
        return;
    }
    registry
        .add_on(
            backend,
            format!("PortChannelOneToOneTest.Accumulate{suffix}"),
            both_ways,
        )
        .ranks(2, 2);
    registry
        .add_on(
            backend,
            format!("PortChannelOneToOneTest.Accumulate{suffix}RejectsInvalidTargets"),
            rejects,
        )
        .ranks(2, 2);
    registry
        .add_on(
            backend,
            format!("PortChannelFanInTest.Accumulate{suffix}"),
            fan_in,
        )
        .ranks(3, usize::MAX);
}

fn both_ways(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let target = fixture.buffer(8)?;
    let link = fixture.pair_in_place(0, &target)?;
    let (blocks, rounds) = context.profile().pick((8, 20), (32, 20));
    context.stage("accumulate from all blocks");
    Accumulate {
        channel: link.channel.clone(),
        target: target.clone(),
        rounds,
    }
    .launch(blocks)?
    .finish(context.deadline())?;
    fixture.meet()?;

    // The sum wraps.
    target.store_u64(0, u64::MAX)?;
    fixture.meet()?;
    context.stage("add one to the largest");
    FanIn {
        channel: link.channel,
        offset: 0,
        operand: 1,
        count: 1,
    }
    .launch()?
    .finish(context.deadline())?;
    fixture.meet()?;
    let found = target.load_u64(0)?;
    ensure!(found == 0, "the largest number plus one is {found}");
    fixture.meet()
}

fn rejects(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(16)?;
    let whole = fixture.register(&buffer)?;
    let short = fixture.register_range(&buffer, 0..7)?;
    let link = fixture.pair(0, &whole, &whole)?;
    let shorter = fixture.pair(1, &whole, &short)?;
    let add = |target: &_, offset| link.connection.accumulate(target, offset, 1);
    let bad = [
        (&shorter, 0),
        (&link, 16),
        (&link, 12),
        (&link, u64::MAX - 3),
        (&link, 1 << 63),
        (&link, 1),
    ];
    if backend.posts_to_queue() {
        let calls = bad.map(|(target, offset)| (0, Call::Accumulate(target.dst, offset, 1)));
        let done = Steps::launch(&[link.base()], &calls)?.finish(context.deadline())?;
        for (done, (_, call)) in done.iter().zip(calls) {
            let status = done.status()?;
            ensure!(
                status == Status::InvalidArgument,
                "{call:?} returns {status:?}"
            );
        }
    } else {
        for (target, offset) in bad {
            let error = add(&target.remote, offset)
                .err()
                .with_context(|| format!("offset {offset} is taken"))?;
            let (right, word) = match offset {
                1 => (matches!(error, Error::Misaligned { .. }), "aligned"),
                _ => (matches!(error, Error::OutOfBounds { .. }), "out of bounds"),
            };
            let text = error.to_string();
            ensure!(right && text.contains(word), "offset {offset}: {text}");
        }
    }
    // The connection is none the worse.
    fixture.meet()?;
    if backend.posts_to_queue() {
        let calls = [(0, Call::Accumulate(link.dst, 8, 1)), (0, Call::Flush)];
        Steps::run(&[link.base()], &calls, context.deadline())?;
    } else {
        add(&link.remote, 8)?;
        link.connection.flush(context.deadline())?;
    }
    fixture.meet()?;
    let words = (buffer.load_u64(0)?, buffer.load_u64(8)?);
    ensure!(words == (0, 1), "the words are {words:?}");
    fixture.meet()
}

/// Where peers cannot add, the host is told at once and a kernel by its flush.
fn is_refused(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(64)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let error = (link.connection.accumulate(&link.remote, 0, 1).err()).context("it is taken")?;
    ensure!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    // The connection is none the worse.
    let exchange = [
        (0, Call::PutWithSignal(link.first(64))),
        (0, Call::Wait),
        (0, Call::Flush),
    ];
    Steps::run(&[link.base()], &exchange, context.deadline())?;
    fixture.meet()?;
    let calls = [(0, Call::Accumulate(link.dst, 0, 1)), (0, Call::Flush)];
    let done = Steps::launch(&[link.base()], &calls)?.finish(context.deadline())?;
    let status = done[1].status()?;
    // The peer's end fails by its own, and may be heard of first.
    let ended = matches!(status, Status::QueueError | Status::PeerDown);
    ensure!(ended, "a flush after an accumulate returns {status:?}");
    fixture.meet()
}

fn fan_in(context: &Context, backend: &'static Backend) -> TestResult {
    const COUNT: u64 = 200;
    /// Not at the start of the registration.
    const OFFSET: u64 = 24;
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(64)?;
    let memory = fixture.register(&buffer)?;
    let peers = if context.rank() == 0 {
        fixture.peers()
    } else {
        vec![0]
    };
    let links = fixture.link(&peers, 0, &memory, &memory)?;
    if context.rank() == 0 {
        let adders = context.ranks() as u64 - 1;
        let expected = (OPERAND as u64).wrapping_mul(COUNT).wrapping_mul(adders);
        context.stage(format!("wait for the sum of {adders} ranks"));
        while buffer.load_u64(OFFSET)? != expected {
            let found = buffer.load_u64(OFFSET)?;
            ensure!(
                !context.deadline().expired(),
                "the sum is {found} instead of {expected}"
            );
            thread::sleep(Duration::from_millis(1));
        }
        for at in (0..64).step_by(8).filter(|at| *at != OFFSET) {
            ensure!(buffer.load_u64(at)? == 0, "the word at {at} was written");
        }
    } else {
        let channel = links[0].channel.clone();
        context.stage("accumulate");
        FanIn {
            channel,
            offset: OFFSET,
            operand: OPERAND,
            count: COUNT,
        }
        .launch()?
        .finish(context.deadline())?;
    }
    fixture.meet()?;
    let found = buffer.load_u64(OFFSET)?;
    let adders = if context.rank() == 0 {
        context.ranks() as u64 - 1
    } else {
        0
    };
    let expected = (OPERAND as u64).wrapping_mul(COUNT).wrapping_mul(adders);
    ensure!(
        found == expected,
        "the sum ends as {found} instead of {expected}"
    );
    fixture.meet()
}
