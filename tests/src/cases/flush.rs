// SPDX-License-Identifier: MIT
//! Flushes of several threads at once, on one channel and on several.

use anyhow::{Context as _, ensure};
use mscclpp_port::{PortChannel, Status};

use crate::backend::Backend;
use crate::fixture::{Fixture, Link};
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, ConcurrentFlush, Queues, Steps};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let suffix = backend.suffix;
    let name = |test: &str| format!("PortChannelOneToOneTest.{test}{suffix}");
    registry
        .add_on(backend, name("SameChanConcurrentFlush"), same_channel)
        .ranks(2, 2)
        .seconds(120);
    for (test, queues) in [
        ("SingleQpFlushStress", 1),
        ("TwoQpFlushStress", 2),
        ("MultiQpFlushStress", 4),
    ] {
        registry
            .add(name(test), move |context| stress(context, backend, queues))
            .ranks(2, 2)
            .seconds(300);
    }
    registry
        .add_on(backend, name("FlushIsNotStarved"), not_starved)
        .ranks(2, 2)
        .seconds(120);
}

fn same_channel(context: &Context, backend: &'static Backend) -> TestResult {
    const THREADS: u32 = 4;
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(u64::from(THREADS) * 4)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let kernel = |iterations| ConcurrentFlush {
        channel: link.channel.clone(),
        iterations,
    };
    context.stage("warm up");
    kernel(10).launch(THREADS)?.finish(context.deadline())?;
    fixture.meet()?;
    let iterations = context.profile().pick(200, 500);
    context.stage("concurrent flushes");
    let took = kernel(iterations)
        .launch(THREADS)?
        .finish(context.deadline())?;
    context.measure(
        "round of 4 threads",
        took.as_secs_f64() * 1e6 / iterations as f64,
        "us",
    );
    fixture.meet()
}

fn stress(context: &Context, backend: &'static Backend, queues: u32) -> TestResult {
    /// As upstream, so that queues of different tests never share one.
    const FIRST_TAG: u32 = 400;
    let fixture = Fixture::new(context, backend)?;
    let sizes: &[(u64, u64)] = context.profile().pick(
        &[
            (1 << 10, 200),
            (16 << 10, 100),
            (256 << 10, 30),
            (1 << 20, 8),
        ],
        &[
            (1 << 10, 2000),
            (16 << 10, 2000),
            (256 << 10, 400),
            (1 << 20, 100),
            (32 << 20, 5),
        ],
    );
    let largest = sizes.last().map_or(0, |(bytes, _)| *bytes);
    let rank = context.rank();
    let mut channels: Vec<PortChannel> = Vec::new();
    let mut incoming = Vec::new();
    for queue in 0..queues {
        let out = fixture.buffer(largest)?;
        let into = fixture.buffer(largest)?;
        out.write(0, &pattern(rank, queue, largest))?;
        let (out, memory) = (fixture.register(&out)?, fixture.register(&into)?);
        channels.push(fixture.pair(FIRST_TAG + queue, &out, &memory)?.channel);
        incoming.push(into);
    }
    for &(bytes, iterations) in sizes {
        context.stage(format!("{bytes} bytes over {queues} queues"));
        let kernel = |iterations| Queues {
            channels: channels.clone(),
            bytes,
            iterations,
            flush: true,
        };
        kernel(10.min(iterations))
            .launch()?
            .finish(context.deadline())?;
        fixture.meet()?;
        let took = kernel(iterations)
            .launch()?
            .finish(context.deadline())
            .with_context(|| format!("{bytes} bytes over {queues} queues"))?;
        let us = took.as_secs_f64() * 1e6 / iterations as f64;
        let total = bytes * u64::from(queues);
        context.measure(format!("{bytes} bytes a queue"), us, "us");
        context.measure(
            format!("{bytes} bytes a queue"),
            total as f64 / us * 1e-3,
            "GB/s",
        );
        for (queue, buffer) in incoming.iter().enumerate() {
            let mut found = vec![0; bytes as usize];
            buffer.read(0, &mut found)?;
            let same = found == pattern(1 - rank, queue as u32, bytes);
            ensure!(same, "queue {queue} delivered other bytes");
        }
    }
    fixture.meet()
}

fn pattern(rank: usize, queue: u32, bytes: u64) -> Vec<u8> {
    (0..bytes)
        .map(|i| (i * 31 + i / 251 + rank as u64 * 101 + u64::from(queue) * 7) as u8)
        .collect()
}

/// A thread that flushes is done while another one goes on posting to the same connection.
fn not_starved(context: &Context, backend: &'static Backend) -> TestResult {
    /// On a busy machine a thread may not run while another makes all of its calls.
    const TRIES: usize = 10;
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(64)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    if context.rank() == 0 {
        let mut seen = false;
        for _ in 0..TRIES {
            seen = seen || flush_beside_posts(context, &link)?;
        }
        ensure!(
            seen,
            "each of {TRIES} flushes waited until all posts were made"
        );
    }
    fixture.meet()
}

/// Whether a flush returned before another thread had made all of its posts.
fn flush_beside_posts(context: &Context, link: &Link) -> anyhow::Result<bool> {
    const POSTS: usize = 50_000;
    let posts = vec![(0, Call::Put(link.first(64))); POSTS];
    context.stage("flush while another thread posts");
    let kernel = Steps::launch_threads(&[link.base()], &[&posts, &[(0, Call::Flush)]])?;
    kernel.wait(1, 0, context.deadline())?;
    let seen = kernel.done(0, POSTS - 1)?.is_none();
    for done in kernel.finish_threads(context.deadline())?.iter().flatten() {
        ensure!(
            done.status()? == Status::Ok,
            "a call returns {:?}",
            done.status()
        );
    }
    Ok(seen)
}
