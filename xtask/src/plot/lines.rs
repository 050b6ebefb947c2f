// SPDX-License-Identifier: MIT
//! Which lines a figure has.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, anyhow};

use super::draw;
use super::svg::described;
use crate::report::Point;
use crate::report::words::{bytes, distinct, number};

/// p10, median and p90 by what was varied.
pub(super) type Line = BTreeMap<u64, [f64; 3]>;

/// What is drawn.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) across: Across,
    pub(super) metric: &'a str,
    pub(super) unit: &'a str,
    /// A name, the line, and the same of an older report.
    pub(super) lines: Vec<(String, Line, Line)>,
    /// By name.
    pub(super) references: BTreeMap<String, BTreeMap<u64, f64>>,
}

/// What was varied: the horizontal axis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Across {
    Bytes,
    Queues,
    Threads,
}

impl Across {
    fn of(self, point: &Point) -> Option<u64> {
        let value = match self {
            Self::Bytes => point.bytes,
            Self::Queues => point.queues,
            Self::Threads => point.threads,
        };
        // The axis is logarithmic.
        value.filter(|value| *value > 0)
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Bytes => "bytes of one message",
            Self::Queues => "queues (channels in parallel)",
            Self::Threads => "threads that post",
        }
    }

    pub(super) fn label(self, value: f64) -> String {
        match self {
            Self::Bytes => bytes(value),
            _ => number(value),
        }
    }
}

/// The figure, if something was varied: the size if that was, else channels, else threads.
pub(super) fn svg(title: &str, new: &[&Point], old: &[&Point]) -> Result<Option<String>> {
    // Both axes are logarithmic.
    let positive = |points: &[&Point]| -> Vec<_> {
        points
            .iter()
            .copied()
            .filter(|point| point.p10 > 0.0)
            .cloned()
            .collect()
    };
    let (new, old): (Vec<Point>, Vec<Point>) = (positive(new), positive(old));
    let values = |across: Across| -> BTreeSet<u64> {
        new.iter().filter_map(|point| across.of(point)).collect()
    };
    let all = [Across::Bytes, Across::Queues, Across::Threads];
    let Some(across) = all.into_iter().find(|across| values(*across).len() > 1) else {
        return Ok(None);
    };
    // Where sizes are varied, other numbers of channels and threads are other lines.
    let several = |of: fn(&Point) -> Option<u64>| {
        across == Across::Bytes && distinct(new.iter().map(of)).len() > 1
    };
    let name = |point: &Point| {
        let mut words = vec![point.place()];
        for (of, one) in [(queues as fn(&Point) -> _, "queue"), (threads, "thread")] {
            if let Some(number) = of(point).filter(|_| several(of)) {
                words.push(format!(
                    "{number} {one}{}",
                    if number == 1 { "" } else { "s" }
                ));
            }
        }
        words.join(", ")
    };
    let line = |points: &[Point], wanted: &str| -> Line {
        let points = points.iter().filter(|point| name(point) == wanted);
        let place = |point: &Point| Some((across.of(point)?, [point.p10, point.median, point.p90]));
        points.filter_map(place).collect()
    };
    let names = distinct(new.iter().map(&name)).into_iter();
    let mut references: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
    for point in &new {
        if let (Some(at), Some(value), Some(name)) =
            (across.of(point), point.reference, &point.reference_name)
        {
            references
                .entry(name.clone())
                .or_default()
                .insert(at, value);
        }
    }
    let chart = Chart {
        title,
        across,
        metric: new.first().map_or("", |point| &point.metric),
        unit: new.first().map_or("", |point| &point.unit),
        lines: names
            .map(|name| (name.clone(), line(&new, &name), line(&old, &name)))
            .collect(),
        references,
    };
    let svg = draw::chart(&chart).map_err(|error| anyhow!("cannot draw {title}: {error}"))?;
    Ok(Some(described(&svg, title, &description(&chart))))
}

fn queues(point: &Point) -> Option<u64> {
    point.queues
}

fn threads(point: &Point) -> Option<u64> {
    point.threads
}

fn description(chart: &Chart<'_>) -> String {
    let mut text = format!(
        "Medians in {} over {}, with bands from the 10th to the 90th percentile; logarithmic axes.",
        chart.unit,
        chart.across.title()
    );
    for (name, line, _) in &chart.lines {
        if let (Some(first), Some(last)) = (line.first_key_value(), line.last_key_value()) {
            let end = |(at, [_, median, _]): (&u64, &[f64; 3])| {
                format!("{} at {}", number(*median), chart.across.label(*at as f64))
            };
            text += &format!(" {name}: from {} to {}.", end(first), end(last));
        }
    }
    text
}
