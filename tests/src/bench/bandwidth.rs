// SPDX-License-Identifier: MIT
//! Bytes a second, both directions at once, over one and several channels.

use anyhow::ensure;
use mscclpp_port::Buffer;

use crate::harness::Context;
use crate::kernels::{Bidirectional, Queues};

use super::gigabytes;
use super::point::Point;
use super::session::{Plan, Session};

/// Message sizes, as upstream's, cut to what the profile's time allows.
fn sizes(context: &Context) -> &'static [u64] {
    context.profile().pick(
        &[1 << 10, 64 << 10, 1 << 20, 16 << 20],
        &[
            1 << 10,
            64 << 10,
            1 << 20,
            4 << 20,
            16 << 20,
            64 << 20,
            128 << 20,
        ],
    )
}

fn plan(session: &Session<'_>, bytes: u64) -> Plan {
    let profile = session.context().profile();
    session.plan(
        bytes,
        profile.pick(300, 500),
        profile.pick(64 << 20, 128 << 20),
    )
}

pub(super) fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    (0..bytes)
        .map(|i| (i * 13 + i / 257 + seed * 89 + 1) as u8)
        .collect()
}

pub(super) fn holds(buffer: &Buffer, at: u64, seed: u64, bytes: u64) -> anyhow::Result<()> {
    let mut found = vec![0; bytes as usize];
    buffer.read(at, &mut found)?;
    ensure!(
        found == pattern(seed, bytes),
        "other bytes than were sent have arrived"
    );
    Ok(())
}

/// Upstream's Bandwidth: both ranks send at once, and meet before each message. Counted is one
/// direction.
pub(super) fn bidirectional(
    session: &mut Session<'_>,
    suite: &'static str,
) -> anyhow::Result<Vec<Point>> {
    let metric = "bandwidth of each direction";
    let mut points = Vec::new();
    for (number, &bytes) in sizes(session.context()).iter().enumerate() {
        let buffer = session.fixture.buffer(2 * bytes)?;
        let link = session
            .fixture
            .pair_in_place(320 + number as u32, &buffer)?;
        let rank = session.context().rank();
        buffer.write(rank as u64 * bytes, &pattern(rank as u64, bytes))?;
        session.progress(suite, metric, Some(bytes));
        let deadline = session.context().deadline();
        let samples = session.sample(
            plan(session, bytes),
            |_, iterations| {
                let channel = link.channel.clone();
                Bidirectional {
                    channel,
                    bytes,
                    iterations,
                    rank,
                }
                .launch()?
                .finish(deadline)
            },
            |reference, iterations| reference.duplex(bytes, iterations),
        )?;
        let other = 1 - rank as u64;
        holds(&buffer, other * bytes, other, bytes)?;
        let point = Point {
            bytes: Some(bytes),
            ..session.point(suite, metric, "GB/s")
        };
        points.push(samples.point(point, gigabytes(bytes))?);
    }
    Ok(points)
}

/// Upstream's {Single,Two,Multi}QpBandwidth: a thread a channel. Counted is one direction of all
/// channels.
pub(super) fn queues(
    session: &mut Session<'_>,
    suite: &'static str,
    queues: u32,
) -> anyhow::Result<Vec<Point>> {
    let metric = "bandwidth of each direction";
    let mut points = Vec::new();
    for (number, &bytes) in sizes(session.context()).iter().enumerate() {
        let rank = session.context().rank();
        let fixture = &session.fixture;
        let mut channels = Vec::new();
        let mut incoming = Vec::new();
        for queue in 0..queues {
            let (out, into) = (fixture.buffer(bytes)?, fixture.buffer(bytes)?);
            out.write(0, &pattern(seed(rank, queue), bytes))?;
            let (out, memory) = (fixture.register(&out)?, fixture.register(&into)?);
            let tag = 1000 + 100 * queues + 10 * number as u32 + queue;
            channels.push(fixture.pair(tag, &out, &memory)?.channel);
            incoming.push(into);
        }
        session.progress(suite, metric, Some(bytes));
        let deadline = session.context().deadline();
        let total = bytes * u64::from(queues);
        let samples = session.sample(
            plan(session, total),
            |_, iterations| {
                let channels = channels.clone();
                Queues {
                    channels,
                    bytes,
                    iterations,
                    flush: false,
                }
                .launch()?
                .finish(deadline)
            },
            |reference, iterations| reference.duplex(bytes, iterations * u64::from(queues)),
        )?;
        for (queue, buffer) in incoming.iter().enumerate() {
            holds(buffer, 0, seed(1 - rank, queue as u32), bytes)?;
        }
        let point = Point {
            bytes: Some(bytes),
            queues: Some(queues.into()),
            threads: Some(queues.into()),
            ..session.point(suite, metric, "GB/s")
        };
        points.push(samples.point(point, gigabytes(total))?);
    }
    Ok(points)
}

fn seed(rank: usize, queue: u32) -> u64 {
    rank as u64 * 16 + u64::from(queue)
}
