// SPDX-License-Identifier: MIT
//! A measured quantity, and many as a table.

use anyhow::Context as _;
use serde::Serialize;

use super::aligned::{aligned, number};
use super::stats::Summary;

/// One measured quantity: a point of a report, whose fields docs/benchmarks.md explains.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// What was run.
    pub suite: &'static str,
    /// On which backend; none takes part in some suites.
    pub backend: Option<&'static str>,
    /// Whose queues a GPU-initiated backend used.
    pub provider: Option<&'static str>,
    /// What ran the device code.
    pub executor: Option<&'static str>,
    /// Of one message.
    pub bytes: Option<u64>,
    /// Channels in parallel, each on a connection of its own.
    pub queues: Option<u64>,
    /// Threads of a rank's kernel that post.
    pub threads: Option<u64>,
    /// What was measured.
    pub metric: &'static str,
    /// What this is a part of: parts of one whole follow each other in time, and in the report.
    pub part_of: Option<&'static str>,
    /// Its unit.
    pub unit: &'static str,
    /// How many samples were taken.
    pub samples: usize,
    /// The least sample.
    pub min: f64,
    /// A tenth of the samples are at most this.
    pub p10: f64,
    /// The middle sample.
    pub median: f64,
    /// A tenth of the samples are at least this.
    pub p90: f64,
    /// The median of the reference, in the same unit.
    pub reference: Option<f64>,
    /// What the reference is; none if there is none.
    pub reference_name: Option<&'static str>,
}

impl Point {
    /// Puts in the samples, and those of the reference.
    pub(super) fn with(mut self, samples: &[f64], reference: &[f64]) -> anyhow::Result<Self> {
        let summary = Summary::of(samples).context("no samples")?;
        self.samples = samples.len();
        self.min = summary.min;
        (self.p10, self.median, self.p90) = (summary.p10, summary.median, summary.p90);
        self.reference = Summary::of(reference).map(|summary| summary.median);
        if self.reference.is_none() {
            self.reference_name = None;
        }
        Ok(self)
    }

    /// The median over the reference.
    fn ratio(&self) -> Option<f64> {
        Some(self.median / self.reference?)
    }
}

const HEAD: [&str; 11] = [
    "suite",
    "backend",
    "bytes",
    "queues",
    "threads",
    "metric",
    "p10",
    "median",
    "p90",
    "plain TCP",
    "ratio",
];
/// The column of the reference, which the head names if it is one for all points.
const REFERENCE: usize = 9;
/// Columns of words; the others are numbers.
const WORDS: [usize; 3] = [0, 1, 5];

/// The points as a table with a head.
pub fn table(points: &[Point]) -> String {
    let mut lines = vec![HEAD.map(str::to_owned).to_vec()];
    let mut names: Vec<&str> = points
        .iter()
        .filter_map(|point| point.reference_name)
        .collect();
    names.sort_unstable();
    names.dedup();
    match names[..] {
        [] => {}
        [name] => lines[0][REFERENCE] = name.to_owned(),
        _ => lines[0][REFERENCE] = "reference".to_owned(),
    }
    for point in points {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        lines.push(vec![
            point.suite.to_owned(),
            point.backend.unwrap_or("-").to_owned(),
            or_dash(point.bytes.map(bytes)),
            or_dash(point.queues.map(|queues| queues.to_string())),
            or_dash(point.threads.map(|threads| threads.to_string())),
            format!("{} [{}]", point.metric, point.unit),
            number(point.p10),
            number(point.median),
            number(point.p90),
            or_dash(point.reference.map(|value| match point.reference_name {
                Some(name) if names.len() > 1 => format!("{} {name}", number(value)),
                _ => number(value),
            })),
            or_dash(point.ratio().map(|ratio| match ratio {
                ratio if ratio < 0.1 => number(ratio),
                ratio => format!("{ratio:.2}"),
            })),
        ]);
    }
    aligned(&lines, &WORDS)
}

/// A size in the largest binary unit that leaves no remainder.
pub(super) fn bytes(count: u64) -> String {
    match count {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point() -> Point {
        let point = Point {
            suite: "ping-pong",
            backend: Some("proxy-ethernet"),
            executor: Some("host"),
            bytes: Some(65536),
            queues: Some(1),
            threads: Some(1),
            metric: "round trip",
            unit: "us",
            reference_name: Some("plain TCP"),
            ..Point::default()
        };
        point.with(&[90.0, 100.0, 110.0], &[50.0]).unwrap()
    }

    #[test]
    fn the_table_is_aligned_and_shows_the_ratio() {
        let text = table(&[point()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines[2].ends_with("2.00") && lines[2].contains("64 KiB"),
            "{text}"
        );
        assert_eq!(lines[0].chars().count(), lines[2].chars().count(), "{text}");
        assert!(lines[0].contains("plain TCP"), "{text}");
    }

    #[test]
    fn small_figures_keep_their_digits() {
        let rate = Point {
            unit: "M/s",
            ..point()
        };
        let text = table(&[rate
            .with(&[0.000_501, 0.000_502, 0.000_503], &[0.1])
            .unwrap()]);
        assert!(
            text.contains("0.000502") && text.contains("0.00502"),
            "{text}"
        );
    }

    #[test]
    fn references_of_several_kinds_are_told_apart() {
        let other = Point {
            reference_name: Some("CUDA copy"),
            ..point()
        };
        let text = table(&[point(), other]);
        assert!(text.contains("50.0 plain TCP") && text.contains("50.0 CUDA copy"));
        assert!(text.lines().next().unwrap().contains("reference"), "{text}");
    }

    #[test]
    fn sizes_are_shown_without_loss() {
        assert_eq!(
            [4, 1024, 1536, 1 << 20].map(bytes),
            ["4 B", "1 KiB", "1536 B", "1 MiB"]
        );
    }
}
