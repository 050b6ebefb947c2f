// SPDX-License-Identifier: MIT
//! Round trips: with signals, with and without a flush, and with LL packets.

use crate::kernels::{PacketPingPong, PingPong};

use super::microseconds;
use super::point::Point;
use super::session::Session;

/// Upstream's PingPongPerf, at more sizes, and without the flush that is most of it.
pub(super) fn ping_pong(
    session: &mut Session<'_>,
    suite: &'static str,
) -> anyhow::Result<Vec<Point>> {
    let profile = session.context().profile();
    let sizes: &[u64] = profile.pick(
        &[4, 1 << 10, 64 << 10, 1 << 20, 16 << 20],
        &[
            4,
            256,
            1 << 10,
            16 << 10,
            64 << 10,
            1 << 20,
            4 << 20,
            16 << 20,
            128 << 20,
        ],
    );
    let mut points = Vec::new();
    for (number, &bytes) in sizes.iter().enumerate() {
        let buffer = session.fixture.buffer(bytes)?;
        let link = session
            .fixture
            .pair_in_place(100 + number as u32, &buffer)?;
        let kernel = PingPong {
            channel: link.channel,
            buffer,
            elements: bytes / 4,
            iterations: 0,
            polls: None,
            rank: session.context().rank(),
            flush: false,
            check: false,
            answers_last: true,
        };
        let deadline = session.context().deadline();
        let plan = session.plan(bytes, profile.pick(300, 1000), 16 << 20);
        for (flush, metric) in [(false, "round trip"), (true, "round trip with flush")] {
            session.progress(suite, metric, Some(bytes));
            let samples = session.sample(
                plan,
                |_, iterations| {
                    PingPong {
                        iterations,
                        flush,
                        ..kernel.clone()
                    }
                    .launch(1)?
                    .finish(deadline)
                },
                |reference, iterations| reference.echo(bytes, iterations),
            )?;
            let point = Point {
                bytes: Some(bytes),
                ..session.point(suite, metric, "us")
            };
            points.push(samples.point(point, microseconds)?);
        }
        PingPong {
            iterations: 3,
            check: true,
            ..kernel
        }
        .launch(1)?
        .finish(deadline)?;
    }
    Ok(points)
}

/// Upstream's PacketPingPongPerf: half a round trip an iteration.
pub(super) fn packets(
    session: &mut Session<'_>,
    suite: &'static str,
) -> anyhow::Result<Vec<Point>> {
    let profile = session.context().profile();
    let sizes: &[u64] = profile.pick(&[8, 1 << 10], &[8, 1 << 10, 16 << 10, 64 << 10]);
    let mut points = Vec::new();
    for (number, &bytes) in sizes.iter().enumerate() {
        let fixture = &session.fixture;
        let outgoing = fixture.buffer(2 * bytes)?;
        let incoming = fixture.buffer(2 * bytes)?;
        let (out, into) = (fixture.register(&outgoing)?, fixture.register(&incoming)?);
        let link = fixture.pair(200 + number as u32, &out, &into)?;
        let kernel = PacketPingPong {
            channel: link.channel,
            buffer: fixture.buffer(bytes)?,
            outgoing,
            incoming,
            elements: bytes / 4,
            iterations: 0,
            first_flag: 0,
            rank: session.context().rank(),
            check: false,
        };
        let deadline = session.context().deadline();
        let mut next_flag = 1;
        let mut run = |iterations: u64, check| {
            let first_flag = next_flag;
            next_flag += iterations as u32;
            PacketPingPong {
                iterations,
                first_flag,
                check,
                ..kernel.clone()
            }
            .launch(1)?
            .finish(deadline)
        };
        session.progress(suite, "half trip", Some(bytes));
        let plan = session.plan(bytes, profile.pick(1000, 2000), 16 << 20);
        let samples = session.sample(
            plan,
            |_, iterations| run(iterations, false),
            // An echo is two half trips.
            |reference, iterations| reference.echo(bytes, iterations.div_ceil(2)),
        )?;
        run(4, true)?;
        let point = Point {
            bytes: Some(bytes),
            ..session.point(suite, "half trip", "us")
        };
        points.push(samples.point(point, microseconds)?);
    }
    Ok(points)
}
