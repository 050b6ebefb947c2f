// SPDX-License-Identifier: MIT
//! A graph that was captured once is replayed: each replay posts and waits for itself.

use anyhow::ensure;

use crate::backend::Backend;
use crate::cases::channels::replays;
use crate::fixture::Fixture;
use crate::harness::{Context, TestResult};

const REPLAYS: u64 = 10_000;

pub(super) fn replay(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::with(context, backend, &Default::default())?;
    let kernel = replays(&fixture)?;
    context.stage("a launch without a graph");
    kernel.launch()?.finish(context.deadline())?;
    context.stage(format!("{REPLAYS} replays"));
    let took = kernel.replay(REPLAYS, context.deadline())?;
    let count = kernel.count.load_u64(0)?;
    ensure!(
        count == REPLAYS + 1,
        "{count} launches instead of {REPLAYS} and 1"
    );
    let us = took.as_secs_f64() * 1e6 / REPLAYS as f64;
    context.measure(format!("one of {REPLAYS} replays"), us, "us");
    fixture.meet()
}
