// SPDX-License-Identifier: MIT
//! Where the time of one iteration goes.

use crate::kernels::{Post, Split};

use super::point::Point;
use super::session::Session;

/// A ping-pong with a flush, on rank 0: the put returns, the reply is there, the flush returns.
pub(super) fn split(session: &mut Session<'_>, suite: &'static str) -> anyhow::Result<Vec<Point>> {
    const BYTES: u64 = 4;
    let buffer = session.fixture.buffer(BYTES)?;
    let link = session.fixture.pair_in_place(90, &buffer)?;
    session.progress(suite, "put, wait, flush", Some(BYTES));
    let kernel = |iterations| Split {
        channel: link.channel.clone(),
        bytes: BYTES,
        iterations,
        rank: session.context().rank(),
    };
    let deadline = session.context().deadline();
    kernel(100).run(deadline)?;
    session.fixture.meet()?;
    let times = kernel(session.context().profile().pick(1000, 10_000)).run(deadline)?;
    session.fixture.meet()?;
    let metrics = ["put returns", "wait for the reply", "flush"];
    metrics
        .iter()
        .enumerate()
        .map(|(part, metric)| {
            let samples: Vec<f64> = times.iter().map(|time| time[part] as f64 * 1e-3).collect();
            let point = Point {
                bytes: Some(BYTES),
                part_of: Some("a ping-pong with flush, on rank 0"),
                ..session.point(suite, metric, "us")
            };
            point.with(&samples, &[])
        })
        .collect()
}

/// Where the time of one post goes, on rank 0: a put with a signal on a send queue that has room.
/// Each phase holds one look at the clock too. A proxy's channels have no such phases.
pub(super) fn post(session: &mut Session<'_>, suite: &'static str) -> anyhow::Result<Vec<Point>> {
    const BYTES: u64 = 8;
    if !session.fixture.backend.posts_to_queue() {
        session.skip(suite, "a proxy's channels have no such phases");
        return Ok(Vec::new());
    }
    let buffer = session.fixture.buffer(BYTES)?;
    let link = session.fixture.pair_in_place(91, &buffer)?;
    session.progress(suite, "phases of a post", Some(BYTES));
    let mut points = Vec::new();
    if session.context().rank() == 0 {
        let deadline = session.context().deadline();
        let kernel = |iterations| Post {
            channel: link.channel.clone(),
            bytes: BYTES,
            iterations,
        };
        kernel(1000).run(deadline)?;
        let times = kernel(session.context().profile().pick(10_000, 100_000)).run(deadline)?;
        let microseconds = |nanoseconds: u64| nanoseconds as f64 * 1e-3;
        let mut add = |metric, part_of, samples: Vec<f64>| {
            let point = Point {
                bytes: Some(BYTES),
                part_of,
                ..session.point(suite, metric, "us")
            };
            points.push(point.with(&samples, &[])?);
            anyhow::Ok(())
        };
        for (part, metric) in Post::PHASES.iter().enumerate() {
            add(
                *metric,
                Some("a post"),
                times.iter().map(|time| microseconds(time[part])).collect(),
            )?;
        }
        let sum = |time: &[u64; 6]| microseconds(time.iter().sum());
        add("all of them", None, times.iter().map(sum).collect())?;
    }
    session.fixture.meet()?;
    Ok(points)
}
