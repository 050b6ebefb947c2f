// SPDX-License-Identifier: MIT
//! The report as JSON, which docs/benchmarks.md explains.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde::Serialize;

use super::machine::{Machine, Watch};
use super::point::Point;
use crate::backend::Executor;
use crate::harness::Context;

/// The version of the layout: `xtask/src/report` reads it.
const SCHEMA: u32 = 2;

/// What could not be measured here.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    /// A suite, where it is not all of them.
    pub suite: Option<&'static str>,
    /// The backend.
    pub backend: &'static str,
    /// What would run the device code.
    pub executor: &'static str,
    /// Why not.
    pub reason: String,
}

/// A run that goes on.
pub struct Run {
    started: SystemTime,
    watch: Watch,
}

/// What a run has found.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Every figure.
    pub points: Vec<Point>,
    /// What is not among them.
    pub skipped: Vec<Skipped>,
}

/// Where a report comes from, as far as the program cannot know by itself.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The commit that was built.
    pub commit: Option<&'a str>,
    /// What the user typed.
    pub command: Option<&'a str>,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    date: String,
    commit: Option<&'a str>,
    command: String,
    features: Vec<&'static str>,
    machine: Machine,
    points: &'a [Point],
    skipped: &'a [Skipped],
}

impl Run {
    /// Before anything is measured.
    pub fn start() -> Self {
        Self {
            started: SystemTime::now(),
            watch: Watch::start(),
        }
    }

    /// When all is measured; both ranks call it. Rank 0 writes a file, if one is wanted.
    pub fn end(
        &self,
        context: &Context,
        executor: Executor,
        measured: &Measured,
        source: Source<'_>,
        path: Option<&Path>,
    ) -> anyhow::Result<()> {
        let ranks: Option<Vec<u64>> = context.exchange(self.watch.own())?.into_iter().collect();
        let (0, Some(path)) = (context.rank(), path) else {
            return Ok(());
        };
        let words: Vec<String> = std::env::args().collect();
        let report = Report {
            schema: SCHEMA,
            date: utc(self.started),
            commit: source.commit,
            command: (source.command).map_or_else(|| words.join(" "), str::to_owned),
            features: if cfg!(feature = "cuda") {
                vec!["cuda"]
            } else {
                Vec::new()
            },
            machine: (self.watch).end(executor, ranks.map(|ticks| ticks.iter().sum())),
            points: &measured.points,
            skipped: &measured.skipped,
        };
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// A time in the form of RFC 3339.
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let (days, second) = (seconds / 86400, seconds % 86400);
    // Years begin in March here, so that a leap day is the last one; four centuries have 146097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..=9 => (era * 400 + year, month + 3),
        _ => (era * 400 + year + 1, month - 9),
    };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        // As `date -u -d @N` has them.
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(at(1_796_000_000), "2026-11-30T00:53:20Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
