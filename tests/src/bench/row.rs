// SPDX-License-Identifier: MIT
//! The report: a row a quantity, as JSON and as a table.

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use super::aligned::{aligned, number};
use super::host::Host;
use super::stats::Summary;

/// One measured quantity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
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
    /// Channels in parallel.
    pub queues: Option<u64>,
    /// What was measured.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
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

impl Row {
    /// Puts in the samples, and those of the reference.
    pub(super) fn with(mut self, samples: &[f64], reference: &[f64]) -> anyhow::Result<Self> {
        let summary = Summary::of(samples).context("no samples")?;
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

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    host: Host,
    rows: &'a [Row],
}

/// Writes the rows to a file.
pub fn write_json(path: &Path, rows: &[Row]) -> anyhow::Result<()> {
    let report = Report {
        schema: 1,
        host: Host::here(),
        rows,
    };
    let text = serde_json::to_string_pretty(&report)?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

const HEAD: [&str; 10] = [
    "suite",
    "backend",
    "bytes",
    "queues",
    "metric",
    "p10",
    "median",
    "p90",
    "plain TCP",
    "ratio",
];
/// The column of the reference, which the head names if it is one for all rows.
const REFERENCE: usize = 8;
/// Columns of words; the others are numbers.
const WORDS: [usize; 3] = [0, 1, 4];

/// The rows as a table with a head.
pub fn table(rows: &[Row]) -> String {
    let mut lines = vec![HEAD.map(str::to_owned).to_vec()];
    let mut names: Vec<&str> = rows.iter().filter_map(|row| row.reference_name).collect();
    names.sort_unstable();
    names.dedup();
    match names[..] {
        [] => {}
        [name] => lines[0][REFERENCE] = name.to_owned(),
        _ => lines[0][REFERENCE] = "reference".to_owned(),
    }
    for row in rows {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        lines.push(vec![
            row.suite.to_owned(),
            row.backend.unwrap_or("-").to_owned(),
            or_dash(row.bytes.map(bytes)),
            or_dash(row.queues.map(|queues| queues.to_string())),
            format!("{} [{}]", row.metric, row.unit),
            number(row.p10),
            number(row.median),
            number(row.p90),
            or_dash(row.reference.map(|value| match row.reference_name {
                Some(name) if names.len() > 1 => format!("{} {name}", number(value)),
                _ => number(value),
            })),
            or_dash(row.ratio().map(|ratio| format!("{ratio:.2}"))),
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

    fn row() -> Row {
        let row = Row {
            suite: "ping-pong",
            backend: Some("proxy-ethernet"),
            provider: None,
            executor: Some("host"),
            bytes: Some(65536),
            queues: Some(1),
            metric: "round trip",
            unit: "us",
            p10: 0.0,
            median: 0.0,
            p90: 0.0,
            reference: None,
            reference_name: Some("plain TCP"),
        };
        row.with(&[90.0, 100.0, 110.0], &[50.0]).unwrap()
    }

    #[test]
    fn the_json_has_the_fields_of_its_schema() {
        let report = Report {
            schema: 1,
            host: Host::here(),
            rows: &[row()],
        };
        let value = serde_json::to_value(report).unwrap();
        assert_eq!(value["schema"], 1);
        assert!(value["host"]["cores"].as_u64().unwrap() >= 1);
        let row = value["rows"][0].as_object().unwrap();
        let mut fields: Vec<&str> = row.keys().map(String::as_str).collect();
        fields.sort_unstable();
        let mut expected = vec![
            "suite",
            "backend",
            "provider",
            "executor",
            "bytes",
            "queues",
            "metric",
            "unit",
            "p10",
            "median",
            "p90",
            "reference",
            "reference_name",
        ];
        expected.sort_unstable();
        assert_eq!(fields, expected);
        assert_eq!(row["reference"], 50.0);
    }

    #[test]
    fn the_table_is_aligned_and_shows_the_ratio() {
        let text = table(&[row()]);
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
    fn references_of_several_kinds_are_told_apart() {
        let other = Row {
            reference_name: Some("CUDA copy"),
            ..row()
        };
        let text = table(&[row(), other]);
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
