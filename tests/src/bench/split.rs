// SPDX-License-Identifier: MIT
//! Where the time of one iteration goes.

use crate::kernels::Split;

use super::row::Row;
use super::session::Session;

/// A ping-pong with a flush, on rank 0: the put returns, the reply is there, the flush returns.
pub(super) fn split(session: &mut Session<'_>, suite: &'static str) -> anyhow::Result<Vec<Row>> {
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
            let row = Row {
                bytes: Some(BYTES),
                ..session.row(suite, metric, "us")
            };
            row.with(&samples, &[])
        })
        .collect()
}
