// SPDX-License-Identifier: MIT
//! Two ranks take turns in sending LL packets: correctness, and time.

use anyhow::Context as _;

use crate::backend::{Backend, MANY, Setup};
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::PacketPingPong;
use crate::pair::Pair;

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let suffix = backend.suffix;
    registry
        .add_on(
            backend,
            format!("PortChannelOneToOneTest.PacketPingPong{suffix}"),
            correct,
        )
        .ranks(2, 2)
        .seconds(300);
    registry
        .add_on(
            backend,
            format!("PortChannelOneToOneTest.PacketPingPongPerf{suffix}"),
            perf,
        )
        .perf()
        .ranks(2, 2)
        .seconds(120);
}

/// A kernel over connection `index` whose buffers hold so many words.
pub(super) fn kernel(pair: &dyn Pair, index: u32, elements: u64) -> anyhow::Result<PacketPingPong> {
    let outgoing = pair.buffer(elements * 8)?;
    let incoming = pair.buffer(elements * 8)?;
    Ok(PacketPingPong {
        channel: pair.channel(index, &outgoing, &incoming)?,
        buffer: pair.buffer(elements * 4)?,
        outgoing,
        incoming,
        elements,
        iterations: 0,
        first_flag: 1,
        rank: pair.context().rank(),
        check: true,
    })
}

fn correct(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let sizes: &[(u64, u64)] = context.profile().pick(
        &[(2, 400), (1024, 300), (64 << 10, 30)],
        &[(2, 1000), (1024, 1000), (1 << 20, 60), (4 << 20, 20)],
    );
    let threads = backend.threads(context.profile().pick(8, 32), MANY);
    for (tag, &(elements, iterations)) in sizes.iter().enumerate() {
        let kernel = PacketPingPong {
            iterations,
            ..kernel(&fixture, tag as u32, elements)?
        };
        context.stage(format!("{elements} words"));
        kernel
            .launch(threads)?
            .finish(context.deadline())
            .with_context(|| format!("{elements} words, {iterations} half trips"))?;
    }
    fixture.meet()
}

fn perf(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::with(context, backend, &Setup::default())?;
    let iterations = context.profile().pick(4000, 40_000);
    let first = PacketPingPong {
        iterations,
        check: false,
        ..kernel(&fixture, 0, 2)?
    };
    first.launch(1)?.finish(context.deadline())?;
    fixture.meet()?;
    let again = PacketPingPong {
        first_flag: 1 + iterations as u32,
        ..first
    };
    let took = again.launch(1)?.finish(context.deadline())?;
    context.measure(
        "half trip",
        took.as_secs_f64() * 1e6 / iterations as f64,
        "us",
    );
    fixture.meet()
}
