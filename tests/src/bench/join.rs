// SPDX-License-Identifier: MIT
//! How fast processes find each other.

use crate::backend::Executor;
use crate::cases::join_seconds;
use crate::harness::Context;

use super::point::Point;

/// Processes of one machine, from the first start to the last that has joined.
pub(super) fn join(
    context: &Context,
    executor: Executor,
    suite: &'static str,
) -> anyhow::Result<Vec<Point>> {
    let mut points = Vec::new();
    if executor != Executor::Host {
        // No kernel takes part.
        return Ok(points);
    }
    for (ranks, metric) in [(8, "8 processes join"), (64, "64 processes join")] {
        let samples = (0..context.profile().pick(3, 7))
            .map(|_| join_seconds(ranks, context.deadline()))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let point = Point {
            suite,
            metric,
            unit: "s",
            ..Point::default()
        };
        points.push(point.with(&samples, &[])?);
    }
    Ok(points)
}
