// SPDX-License-Identifier: MIT
//! Nothing is lost or doubled: many threads, small queues, counters that wrap.

use anyhow::{Context as _, ensure};
use mscclpp_port::{IbConfig, QueueForm};

use crate::backend::{Backend, Setup};
use crate::fixture::{Fixture, Link};
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, Count, OwnFlush, Posts, Steps};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let suffix = backend.suffix;
    let name = |test: &str| format!("PortChannelOneToOneTest.{test}{suffix}");
    registry
        .add_on(
            backend,
            name("GpuNetIoThirtyTwoThreadsOnASharedQueue"),
            shared,
        )
        .ranks(2, 2)
        .seconds(120);
    for (test, form, threads) in [
        (
            "GpuNetIoManyPostsThroughASmallExclusiveQueue",
            QueueForm::Exclusive,
            1,
        ),
        (
            "GpuNetIoManyPostsThroughASmallSharedQueue",
            QueueForm::Shared,
            8,
        ),
    ] {
        registry
            .add(name(test), move |context| {
                many(context, backend, form, threads)
            })
            .ranks(2, 2)
            .seconds(180);
    }
}

/// No signal is left.
fn no_more(context: &Context, link: &Link) -> TestResult {
    let done = Steps::launch(&[link.base()], &[(0, Call::Poll(1))])?.finish(context.deadline())?;
    ensure!(!done[0].polled(), "there is a signal too many");
    Ok(())
}

/// Each thread's own flush covers its own put: it may change its word then. And each signal counts.
fn shared(context: &Context, backend: &'static Backend) -> TestResult {
    const THREADS: u32 = 32;
    let iterations = context.profile().pick(40, 400);
    let places = u64::from(THREADS) * iterations;
    let fixture = Fixture::new(context, backend)?;
    let words = fixture.buffer(8 * u64::from(THREADS))?;
    let into = fixture.buffer(8 * places)?;
    let link = fixture.pair(0, &fixture.register(&words)?, &fixture.register(&into)?)?;
    let kernel = OwnFlush {
        channel: link.channel.clone(),
        words,
        iterations,
    };
    context.stage("both ranks post from all threads");
    kernel.launch(THREADS)?.finish(context.deadline())?;
    let waits = vec![(0, Call::Wait); places as usize];
    Steps::run(&[link.base()], &waits, context.deadline())?;
    fixture.meet()?;
    no_more(context, &link)?;
    let mut found = vec![0; into.len() as usize];
    into.read(0, &mut found)?;
    let expected = kernel.expected(THREADS);
    let wrong = (0..found.len() / 8)
        .map(|place| place * 8..place * 8 + 8)
        .find(|word| found[word.clone()] != expected[word.clone()]);
    if let Some(word) = wrong {
        let value = u64::from_le_bytes(found[word.clone()].try_into()?);
        anyhow::bail!("place {} holds {value:#x}", word.start / 8);
    }
    fixture.meet()
}

/// Far more posts than the queue has room for and than its 16-bit counters count.
fn many(
    context: &Context,
    backend: &'static Backend,
    queue_form: QueueForm,
    threads: u32,
) -> TestResult {
    const POSTS: u64 = 200_000;
    let setup = Setup {
        queue: IbConfig {
            queue_form,
            max_send_wr: Some(64),
            ..IbConfig::default()
        },
        ..Setup::default()
    };
    let fixture = Fixture::with(context, backend, &setup)?;
    let buffer = fixture.buffer(8 * u64::from(threads))?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let before = Posts::of(&link.base()).context("a queue")?;
    // Each post is a put and a signal, which are a request each.
    let posts = context.profile().pick(POSTS / 2, 2 * POSTS);
    let sends = context.rank() == 0;
    let kernel = Count {
        channel: link.channel.clone(),
        count: if sends {
            posts / u64::from(threads)
        } else {
            posts
        },
        sends,
    };
    context.stage(format!("{} requests", 2 * posts));
    let took = kernel
        .launch(if sends { threads } else { 1 })?
        .finish(context.deadline())?;
    fixture.meet()?;
    if sends {
        let after = Posts::of(&link.base()).context("a queue")?;
        let made = after.posted - before.posted;
        ensure!(
            made == 2 * posts && after.completed == after.posted,
            "{made} requests instead of {}; {after:?}",
            2 * posts
        );
        let rate = made as f64 / took.as_secs_f64() * 1e-6;
        context.measure("requests through 64 slots", rate, "million/s");
    } else {
        no_more(context, &link)?;
    }
    fixture.meet()
}
