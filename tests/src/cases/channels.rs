// SPDX-License-Identifier: MIT
//! What a channel is bound to: its own signals, its own memories, registrations of any form.

use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use mscclpp_device::abi::MAX_MEMORIES;
use mscclpp_port::{Error, Host2DeviceSemaphore, PortChannel, RegisteredMemory, Status};

use crate::backend::{Backend, Initiator};
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, PingPong, Range, Replay, Steps};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let suffix = backend.suffix;
    let mut add = |test: &str, body: fn(&Context, &'static Backend) -> TestResult| {
        registry
            .add(
                format!("PortChannelOneToOneTest.{test}{suffix}"),
                move |c| body(c, backend),
            )
            .ranks(2, 2);
    };
    add("IndependentChannels", independent);
    add("SeveralChannelsOfOneConnection", several_of_one_connection);
    add("DirectConstruction", direct);
    add("EmptyMemories", empty_memories);
    add("RegistrationsOfOtherSizesAndOffsets", offsets);
    add("AddMemoryWhileAKernelRuns", add_while_running);
    add("ManyLaunches", many_launches);
}

/// Two channels never consume each other's signals.
fn independent(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(64)?;
    let channels: Vec<_> = (0..2)
        .map(|tag| Ok(fixture.pair_in_place(tag, &buffer)?.base()))
        .collect::<anyhow::Result<_>>()?;
    signals_stay_apart(&fixture, &channels)
}

/// So do two channels that share a connection.
fn several_of_one_connection(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(64)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let second = fixture
        .service
        .build_and_add_semaphore(&fixture.communicator, &link.connection)?;
    let channels = [link.base(), fixture.service.base_port_channel(second)?];
    signals_stay_apart(&fixture, &channels)
}

fn signals_stay_apart(
    fixture: &Fixture<'_>,
    channels: &[mscclpp_port::BasePortChannel],
) -> TestResult {
    let deadline = fixture.context.deadline();
    if fixture.context.rank() == 0 {
        let signals = [
            (0, Call::Signal),
            (0, Call::Signal),
            (0, Call::Signal),
            (1, Call::Signal),
        ];
        let flushes = [(0, Call::Flush), (1, Call::Flush)];
        Steps::run(channels, &[&signals[..], &flushes[..]].concat(), deadline)?;
        fixture.meet()?;
    } else {
        // All signals have come before the first is consumed; where this rank's host forwards them, it
        // may be about to.
        fixture.meet()?;
        const UNTIL_THERE: i64 = 10_000_000;
        let polls = [(1, 1), (1, 0), (0, 1), (0, 1), (0, 1), (0, 0)];
        let calls = polls.map(|(channel, seen)| match seen {
            1 => (channel, Call::Poll(UNTIL_THERE)),
            _ => (channel, Call::Poll(1)),
        });
        let done = Steps::launch(channels, &calls)?.finish(deadline)?;
        for (i, (done, (channel, seen))) in done.iter().zip(polls).enumerate() {
            ensure!(
                done.polled() == (seen == 1),
                "poll {i}, of channel {channel}, is wrong"
            );
        }
    }
    fixture.meet()
}

/// A channel made without the service's factory moves data between its own memories.
fn direct(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let (communicator, service) = (&fixture.communicator, &fixture.service);
    let buffer = fixture.buffer(4096)?;
    let memory = fixture.register(&buffer)?;
    let peer = 1 - context.rank();
    let connection = communicator.connect(fixture.endpoint, peer, 0)?;
    communicator.send_memory(&memory, peer, 0)?;
    let remote = communicator.recv_memory(peer, 0)?;
    let connection = connection.get()?;
    let semaphore = communicator.build_semaphore(&connection, peer, 0)?.get()?;
    let semaphore = Arc::new(Host2DeviceSemaphore::new(semaphore)?);
    let id = service.add_host2device_semaphore(Arc::clone(&semaphore))?;
    let dst = service.add_memory(remote.get()?)?;
    let src = service.add_memory(memory)?;
    let channel = PortChannel::new(service, id, semaphore, dst, src)?;
    context.stage("ping-pong");
    PingPong {
        channel,
        buffer,
        elements: 1024,
        iterations: 20,
        polls: None,
        rank: context.rank(),
        flush: true,
        check: true,
        answers_last: false,
    }
    .launch(4)?
    .finish(context.deadline())?;
    fixture.meet()
}

/// Empty memories in the table harm nobody, and none can be used.
fn empty_memories(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let before = fixture.service.add_memory(RegisteredMemory::default())?;
    let buffer = fixture.buffer(256)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let after = fixture.service.add_memory(RegisteredMemory::default())?;
    ensure!(
        before != link.src && after != link.dst,
        "ids are not counted"
    );
    let deadline = context.deadline();
    let exchange = [
        (0, Call::PutWithSignal(link.first(64))),
        (0, Call::Wait),
        (0, Call::Flush),
    ];
    Steps::run(&[link.base()], &exchange, deadline)?;
    fixture.meet()?;

    if context.rank() == 0 {
        let put = Call::Put(Range {
            dst: before,
            ..link.first(8)
        });
        let done = Steps::launch(&[link.base()], &[(0, put), (0, Call::Flush)])?;
        let done = done.finish(deadline)?;
        let statuses = (done[0].status()?, done[1].status()?);
        let expected = match backend.initiator {
            Initiator::Proxy => (Status::Ok, Status::QueueError),
            Initiator::Kernel => (Status::InvalidArgument, Status::Ok),
        };
        ensure!(
            statuses == expected,
            "a put into nothing and a flush return {statuses:?}"
        );
        match link.connection.status() {
            Some(Error::Trigger { .. }) if !backend.posts_to_queue() => {}
            None if backend.posts_to_queue() => {}
            other => bail!("on the host: {other:?}"),
        }
    }
    fixture.meet()
}

/// Offsets count from the registration, and both ends may differ in size.
fn offsets(context: &Context, backend: &'static Backend) -> TestResult {
    const START: u64 = 4096;
    let fixture = Fixture::new(context, backend)?;
    let out = fixture.buffer(64 << 10)?;
    let into = fixture.buffer(16 << 10)?;
    // Rank 0's registrations start at a page, rank 1's at an odd byte.
    let start = START + 5 * context.rank() as u64;
    let sent = fixture.register_range(&out, start..start + 1000)?;
    let received = fixture.register_range(&into, start..start + 700)?;
    let link = fixture.pair(0, &sent, &received)?;
    ensure!(
        link.remote.size() == 700,
        "the peer's memory has {} bytes",
        link.remote.size()
    );
    let text: Vec<u8> = (0..99).map(|i| i + 100 * context.rank() as u8).collect();
    out.write(start + 901, &text)?;
    let put = Call::Put(Range {
        dst_offset: 601,
        src_offset: 901,
        ..link.first(99)
    });
    let calls = [
        (0, put),
        (0, Call::Signal),
        (0, Call::Wait),
        (0, Call::Flush),
    ];
    Steps::run(&[link.base()], &calls, context.deadline())?;
    let mut all = vec![0; into.len() as usize];
    into.read(0, &mut all)?;
    let expected: Vec<u8> = (0..99)
        .map(|i| i + 100 * (1 - context.rank()) as u8)
        .collect();
    let at = (start + 601) as usize;
    ensure!(all[at..at + 99] == expected, "other bytes at the offset");
    all[at..at + 99].fill(0);
    ensure!(
        all.iter().all(|byte| *byte == 0),
        "bytes beside the range were written"
    );
    fixture.meet()
}

/// Memory is added up to the limit of the table, beside a kernel that uses the service.
fn add_while_running(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(4096)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let kernel = PingPong {
        channel: link.channel.clone(),
        buffer: buffer.clone(),
        elements: 1024,
        iterations: context.profile().pick(300, 3000),
        polls: None,
        rank: context.rank(),
        flush: true,
        check: true,
        answers_last: false,
    };
    context.stage("add memories beside a ping-pong");
    let running = kernel.launch(4)?;
    let mut last = None;
    let error = loop {
        match fixture.service.add_memory(link.remote.clone()) {
            Ok(id) => last = Some(id),
            Err(error) => break error,
        }
    };
    ensure!(
        matches!(
            error,
            Error::TooMany {
                limit: MAX_MEMORIES,
                ..
            }
        ),
        "{error}"
    );
    running.finish(context.deadline())?;
    // The last one that found room works.
    let dst = last.context("no memory was added")?;
    fixture.meet()?;
    if context.rank() == 0 {
        buffer.write(0, b"last")?;
        let put = Call::PutWithSignal(Range {
            dst,
            ..link.first(4)
        });
        Steps::run(
            &[link.base()],
            &[(0, put), (0, Call::Flush)],
            context.deadline(),
        )?;
    } else {
        Steps::run(&[link.base()], &[(0, Call::Wait)], context.deadline())?;
        let mut text = [0; 4];
        buffer.read(0, &mut text)?;
        ensure!(text == *b"last", "found {text:?}");
    }
    fixture.meet()
}

/// A kernel whose launches go on with what earlier ones left in device memory.
pub(super) fn replays(fixture: &Fixture<'_>) -> anyhow::Result<Replay> {
    let (outgoing, incoming) = (fixture.buffer(16)?, fixture.buffer(16)?);
    let (out, into) = (fixture.register(&outgoing)?, fixture.register(&incoming)?);
    Ok(Replay {
        channel: fixture.pair(0, &out, &into)?.channel,
        outgoing,
        incoming,
        count: fixture.buffer(8)?,
        rank: fixture.context.rank(),
    })
}

/// What a channel counts goes on from launch to launch.
fn many_launches(context: &Context, backend: &'static Backend) -> TestResult {
    let launches = context.profile().pick(100, 1000);
    let fixture = Fixture::new(context, backend)?;
    let kernel = replays(&fixture)?;
    context.stage(format!("{launches} launches"));
    for _ in 0..launches {
        kernel.launch()?.finish(context.deadline())?;
    }
    let count = kernel.count.load_u64(0)?;
    ensure!(count == launches, "{count} launches instead of {launches}");
    fixture.meet()
}
