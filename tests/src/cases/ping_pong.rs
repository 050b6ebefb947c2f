// SPDX-License-Identifier: MIT
//! Two ranks send a buffer back and forth: correctness, and time.

use anyhow::Context as _;
use mscclpp_port::{IbConfig, QueueForm};

use crate::backend::{Backend, Executor, MANY, Setup};
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Bidirectional, PingPong};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let suffix = backend.suffix;
    let name = |test: String| format!("PortChannelOneToOneTest.{test}");
    registry
        .add(name(format!("PingPong{suffix}")), move |context| {
            correct(context, backend, None, QueueForm::Shared)
        })
        .ranks(2, 2)
        .seconds(300);
    if backend.posts_to_queue() {
        registry
            .add(name(format!("PingPong{suffix}Exclusive")), move |context| {
                correct(context, backend, None, QueueForm::Exclusive)
            })
            .ranks(2, 2)
            .seconds(300);
    }
    // On CPU threads a poll takes nanoseconds and the peer may have to wait for a core: the budget
    // is far above upstream's million. On a GPU it takes a microsecond.
    let polls = Some(match backend.executor {
        Executor::Host => 2_000_000_000,
        Executor::Cuda => 100_000_000,
    });
    registry
        .add(name(format!("PingPong{suffix}WithPoll")), move |context| {
            correct(context, backend, polls, QueueForm::Shared)
        })
        .ranks(2, 2)
        .seconds(300);
    registry
        .add_on(backend, name(format!("PingPongPerf{suffix}")), perf)
        .perf()
        .ranks(2, 2)
        .seconds(120);
    registry
        .add_on(backend, name(format!("Bandwidth{suffix}")), bandwidth)
        .perf()
        .ranks(2, 2)
        .seconds(300);
}

/// 32-bit words and round trips.
fn sizes(context: &Context, backend: &Backend) -> &'static [(u64, u64)] {
    let full: &[_] = match backend.executor {
        Executor::Host => &[(1, 1000), (1024, 1000), (1 << 20, 100), (4 << 20, 30)],
        Executor::Cuda => &[(1, 1000), (1024, 1000), (1 << 20, 300), (4 << 20, 100)],
    };
    let quick: &[_] = &[(1, 300), (1024, 200), (64 << 10, 40), (1 << 20, 5)];
    context.profile().pick(quick, full)
}

fn correct(
    context: &Context,
    backend: &'static Backend,
    polls: Option<u64>,
    queue_form: QueueForm,
) -> TestResult {
    let setup = Setup {
        queue: IbConfig {
            queue_form,
            ..IbConfig::default()
        },
        ..Setup::strict()
    };
    let fixture = Fixture::with(context, backend, &setup)?;
    let threads = backend.threads(context.profile().pick(8, 32), MANY);
    for (tag, &(elements, iterations)) in sizes(context, backend).iter().enumerate() {
        let buffer = fixture.buffer(elements * 4)?;
        let link = fixture.pair_in_place(tag as u32, &buffer)?;
        context.stage(format!("{elements} words"));
        let kernel = PingPong {
            channel: link.channel,
            buffer,
            elements,
            iterations,
            polls,
            rank: context.rank(),
            flush: true,
            check: true,
            answers_last: false,
        };
        kernel
            .launch(threads)?
            .finish(context.deadline())
            .with_context(|| format!("{elements} words, {iterations} round trips"))?;
    }
    fixture.meet()
}

fn perf(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::with(context, backend, &Setup::default())?;
    let buffer = fixture.buffer(4)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    for (flush, label) in [
        (true, "round trip with flush"),
        (false, "round trip without flush"),
    ] {
        let iterations = 1000;
        let kernel = PingPong {
            channel: link.channel.clone(),
            buffer: buffer.clone(),
            elements: 1,
            iterations,
            polls: None,
            rank: context.rank(),
            flush,
            check: false,
            answers_last: true,
        };
        context.stage(label);
        kernel.launch(1)?.finish(context.deadline())?;
        fixture.meet()?;
        let took = kernel.launch(1)?.finish(context.deadline())?;
        context.measure(label, took.as_secs_f64() * 1e6 / iterations as f64, "us");
    }
    fixture.meet()
}

fn bandwidth(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::with(context, backend, &Setup::default())?;
    let sizes: &[(u64, u64)] = context.profile().pick(
        &[
            (1 << 10, 300),
            (64 << 10, 200),
            (1 << 20, 50),
            (16 << 20, 5),
        ],
        &[
            (1 << 10, 1000),
            (64 << 10, 1000),
            (1 << 20, 300),
            (16 << 20, 30),
            (128 << 20, 5),
        ],
    );
    let largest = sizes.last().map_or(0, |(bytes, _)| *bytes);
    let buffer = fixture.buffer(2 * largest)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    for &(bytes, iterations) in sizes {
        context.stage(format!("{bytes} bytes"));
        let kernel = |iterations| Bidirectional {
            channel: link.channel.clone(),
            bytes,
            iterations,
            rank: context.rank(),
        };
        kernel(10.min(iterations))
            .launch()?
            .finish(context.deadline())?;
        fixture.meet()?;
        let took = kernel(iterations).launch()?.finish(context.deadline())?;
        let rate = bytes as f64 * iterations as f64 / took.as_secs_f64() * 1e-9;
        context.measure(
            format!("{bytes} bytes, one direction of both"),
            rate,
            "GB/s",
        );
    }
    fixture.meet()
}
