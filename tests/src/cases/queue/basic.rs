// SPDX-License-Identifier: MIT
//! One value, packets, and channels that do not see each other.

use anyhow::{Context as _, ensure};
use mscclpp_port::{BasePortChannel, QueueForm, SignalMode};
use mscclpp_softnic::DeviceConfig;

use super::setup;
use crate::backend::{Backend, Setup};
use crate::cases::packet;
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, OneValue, PacketPingPong, Posts, Range, Steps};
use crate::pair::Way;

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let suffix = backend.suffix;
    let name = |test: &str| format!("PortChannelOneToOneTest.{test}{suffix}");
    for way in [Way::Endpoints(backend), Way::Service] {
        let name = |test: &str| format!("PortChannelOneToOneTest.{test}{}", way.suffix());
        registry
            .add(name("GpuNetIoP2P"), move |context| one_value(context, way))
            .ranks(2, 2);
        registry
            .add(name("GpuNetIoLLPingPong"), move |context| {
                packets(context, way)
            })
            .ranks(2, 2)
            .seconds(120);
    }
    for (test, connections) in [
        ("GpuNetIoIndependentChannelsOfOneQueue", 1),
        ("GpuNetIoIndependentChannelsOfTwoQueues", 2),
    ] {
        registry
            .add(name(test), move |context| {
                independent(context, backend, connections)
            })
            .ranks(2, 2);
    }
    for queues in [1, 2, 4] {
        registry
            .add(
                name(&format!("GpuNetIoEachChannelPostsOnItsOwnQueue{queues}")),
                move |context| own_queues(context, backend, queues),
            )
            .ranks(2, 2);
    }
}

fn one_value(context: &Context, way: Way) -> TestResult {
    let pair = way.open(context, &Setup::strict(), 1)?;
    let buffer = pair.buffer(4096)?;
    let kernel = OneValue {
        channel: pair.channel(0, &buffer, &buffer)?,
        buffer: buffer.clone(),
        rank: context.rank(),
    };
    kernel.launch()?.finish(context.deadline())?;
    pair.meet()?;
    let mut all = [0; 4096];
    buffer.read(0, &mut all)?;
    ensure!(all[..4] == 42u32.to_le_bytes(), "found {:?}", &all[..4]);
    ensure!(
        all[4..].iter().all(|byte| *byte == 0),
        "more than the value was written"
    );
    pair.meet()
}

/// LL packets over exclusive queues: right, and how fast.
fn packets(context: &Context, way: Way) -> TestResult {
    let sizes = context.profile().pick(
        [(2, 1000), (1024, 200), (64 << 10, 20)],
        [(2, 10_000), (1024, 1000), (1 << 20, 60)],
    );
    let exclusive = (QueueForm::Exclusive, SignalMode::Atomic);
    let setup = setup(exclusive, DeviceConfig::default());
    let pair = way.open(context, &setup, sizes.len() as u32)?;
    for (index, (elements, iterations)) in (0..).zip(sizes) {
        context.stage(format!("{elements} words"));
        let kernel = PacketPingPong {
            iterations,
            ..packet::kernel(&*pair, index, elements)?
        };
        let took = kernel
            .launch(1)?
            .finish(context.deadline())
            .with_context(|| format!("{elements} words, {iterations} half trips"))?;
        if elements == 2 {
            let us = took.as_secs_f64() * 1e6 / iterations as f64;
            context.measure("half trip of 2 words", us, "us");
        }
        pair.meet()?;
    }
    Ok(())
}

/// Two channels are used at once, by a thread each. Each sees its own signals, all of them, and
/// neither writes anything but its own bytes.
fn independent(context: &Context, backend: &'static Backend, connections: u32) -> TestResult {
    const COUNTS: [usize; 2] = [500, 300];
    const FILL: u8 = 0xa5;
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(4096)?;
    buffer.write(0, &[FILL; 4096])?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let second: BasePortChannel = if connections == 1 {
        let service = &fixture.service;
        let id = service.build_and_add_semaphore(&fixture.communicator, &link.connection)?;
        service.base_port_channel(id)?
    } else {
        fixture.pair_in_place(1, &buffer)?.base()
    };
    let channels = [link.base(), second];
    let before: Vec<_> = channels.iter().filter_map(Posts::of).collect();
    fixture.meet()?;
    // Each writes 8 bytes in the midst of its half, again and again.
    let place = |channel: usize| 2048 * channel as u64 + 1024;
    let lists: Vec<Vec<_>> = (0..2)
        .map(|channel| {
            let call = if context.rank() == 0 {
                let at = place(channel);
                Call::PutWithSignal(Range::same(link.dst, link.src, at, 8))
            } else {
                Call::Wait
            };
            let mut calls = vec![(channel, call); COUNTS[channel]];
            let last = if context.rank() == 0 {
                Call::Flush
            } else {
                Call::Poll(1)
            };
            calls.push((channel, last));
            calls
        })
        .collect();
    if context.rank() == 0 {
        buffer.store_u64(place(0), 1)?;
        buffer.store_u64(place(1), 2)?;
        let kernel = Steps::launch_threads(&channels, &[&lists[0], &lists[1]])?;
        for done in kernel.finish_threads(context.deadline())?.iter().flatten() {
            ensure!(done.is_ok(), "a call returns {:?}", done.status());
        }
        let posts = |i: usize| Posts::of(&channels[i]).context("a queue");
        let made = |i: usize| anyhow::Ok(posts(i)?.posted - before[i].posted);
        let requests = COUNTS.map(|count| 2 * count as u64);
        let expected = match connections {
            1 => [requests[0] + requests[1]; 2],
            _ => requests,
        };
        let found = [made(0)?, made(1)?];
        ensure!(
            found == expected,
            "the queues have {found:?} requests instead of {expected:?}"
        );
        ensure!(
            (posts(0)?.queue == posts(1)?.queue) == (connections == 1),
            "{connections} connections, queues {:?} and {:?}",
            posts(0)?,
            posts(1)?
        );
        fixture.meet()?;
    } else {
        // All are there first, so that a signal on the wrong channel is one too many.
        fixture.meet()?;
        let kernel = Steps::launch_threads(&channels, &[&lists[0], &lists[1]])?;
        for (thread, list) in kernel
            .finish_threads(context.deadline())?
            .iter()
            .enumerate()
        {
            let (poll, waits) = list.split_last().context("calls")?;
            ensure!(
                waits.iter().all(|done| done.is_ok()),
                "a wait on channel {thread} fails"
            );
            ensure!(!poll.polled(), "channel {thread} has a signal too many");
        }
    }
    let mut all = [0; 4096];
    buffer.read(0, &mut all)?;
    for (channel, value) in [(0, 1u64), (1, 2)] {
        let at = place(channel) as usize;
        ensure!(
            all[at..at + 8] == value.to_le_bytes(),
            "channel {channel} did not deliver its word"
        );
        all[at..at + 8].fill(FILL);
    }
    let stray = all.iter().position(|byte| *byte != FILL);
    ensure!(stray.is_none(), "byte {stray:?} was written too");
    fixture.meet()
}

/// Every channel posts on the queue of its connection, and on no other one.
fn own_queues(context: &Context, backend: &'static Backend, queues: u32) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(4096)?;
    let mut links = Vec::new();
    for tag in 0..queues {
        links.push(fixture.pair_in_place(tag, &buffer)?);
    }
    let posts = || -> anyhow::Result<Vec<Posts>> {
        (links.iter())
            .map(|link| Posts::of(&link.base()).context("a queue"))
            .collect()
    };
    let before = posts()?;
    let mut numbers: Vec<u32> = before.iter().map(|posts| posts.queue).collect();
    numbers.sort_unstable();
    numbers.dedup();
    ensure!(
        numbers.len() == queues as usize,
        "{queues} connections, queues {before:?}"
    );
    for (i, link) in links.iter().enumerate() {
        // As many puts as nobody else makes, and a signal.
        let mut calls = vec![(0, Call::Put(link.first(64))); 10 * (i + 1)];
        calls.extend([(0, Call::Signal), (0, Call::Flush), (0, Call::Wait)]);
        Steps::run(&[link.base()], &calls, context.deadline())?;
    }
    for (i, (before, after)) in before.iter().zip(posts()?).enumerate() {
        let (made, expected) = (after.posted - before.posted, 10 * (i as u64 + 1) + 1);
        ensure!(
            made == expected && after.completed == after.posted,
            "channel {i}: {made} requests instead of {expected}; {after:?}"
        );
    }
    fixture.meet()
}
