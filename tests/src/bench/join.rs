// SPDX-License-Identifier: MIT
//! How fast processes find each other.

use crate::backend::Executor;
use crate::cases::join_seconds;
use crate::harness::Context;

use super::row::Row;

/// Processes of one machine, from the first start to the last that has joined.
pub(super) fn join(
    context: &Context,
    executor: Executor,
    suite: &'static str,
) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    if executor != Executor::Host {
        // No kernel takes part.
        return Ok(rows);
    }
    for (ranks, metric) in [(8, "8 processes join"), (64, "64 processes join")] {
        let samples = (0..context.profile().pick(3, 7))
            .map(|_| join_seconds(ranks, context.deadline()))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let row = Row {
            suite,
            backend: None,
            provider: None,
            executor: None,
            bytes: None,
            queues: None,
            metric,
            unit: "s",
            p10: 0.0,
            median: 0.0,
            p90: 0.0,
            reference: None,
            reference_name: None,
        };
        rows.push(row.with(&samples, &[])?);
    }
    Ok(rows)
}
