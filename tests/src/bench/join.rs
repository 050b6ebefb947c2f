// SPDX-License-Identifier: MIT
//! How fast processes find each other.

use crate::cases::join_seconds;
use crate::harness::Context;

use super::row::Row;

/// Processes of one machine, from the first start to the last that has joined.
pub(super) fn join(context: &Context, suite: &'static str) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
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
        };
        rows.push(row.with(&samples, &[])?);
    }
    Ok(rows)
}
