// SPDX-License-Identifier: MIT
//! The benchmark's report: what is in its JSON (docs/benchmarks.md explains it), whether a file holds
//! to it, and what is made of it.

pub mod cli;
mod compare;
mod html;
pub(crate) mod words;

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// The version of the layout.
pub const SCHEMA: u32 = 2;

/// Every backend that a point may name.
pub const BACKENDS: [&str; 6] = [
    "proxy-ethernet",
    "proxy-ipc",
    "proxy-ib-host",
    "proxy-ib-host-no-atomic",
    "gpu-initiated",
    "gpu-initiated-host-queue",
];

/// Units of times: less is better.
const TIMES: [&str; 2] = ["us", "s"];
/// Units of bandwidths and rates: more is better.
const RATES: [&str; 2] = ["GB/s", "M/s"];

/// A file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When it was begun, in UTC.
    pub date: String,
    /// What was built, where that is known.
    pub commit: Option<String>,
    /// What the user typed.
    pub command: String,
    /// Features of the build.
    pub features: Vec<String>,
    /// What it was made on.
    pub machine: Machine,
    /// What was measured.
    pub points: Vec<Point>,
    /// What was not, and why.
    pub skipped: Vec<Skipped>,
}

/// A machine, and who else used it meanwhile. What could not be read is `None`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Cores that the benchmark could use.
    pub cores: u64,
    /// Operating system and release.
    pub kernel: String,
    /// How the first core's clock is governed.
    pub governor: Option<String>,
    /// Name and driver of each GPU that ran kernels.
    pub gpus: Vec<String>,
    /// Compiler.
    pub rustc: String,
    /// Build profile.
    pub profile: String,
    /// Load average of a minute, before.
    pub load_1min_start: Option<f64>,
    /// The same, after: the benchmark is in it.
    pub load_1min_end: Option<f64>,
    /// CPU time of other processes, of that of all cores.
    pub cpu_others_percent: Option<f64>,
    /// CPU time that the hypervisor gave to others.
    pub cpu_stolen_percent: Option<f64>,
}

/// One measured quantity.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// `ping-pong`, `bidirectional` and so on.
    pub suite: String,
    /// One of [`BACKENDS`]; `null` where no backend takes part.
    pub backend: Option<String>,
    /// Whose queues a GPU-initiated backend used.
    pub provider: Option<String>,
    /// What ran the device code.
    pub executor: Option<String>,
    /// Bytes of one message.
    pub bytes: Option<u64>,
    /// How many channels in parallel.
    pub queues: Option<u64>,
    /// How many threads of a rank's kernel post.
    pub threads: Option<u64>,
    /// What was measured.
    pub metric: String,
    /// The whole that this is a part of; the parts stand in the order in which they happen.
    pub part_of: Option<String>,
    /// Its unit.
    pub unit: String,
    /// How many samples there were.
    pub samples: u64,
    /// The least of them.
    pub min: f64,
    /// A tenth of them are at most this.
    pub p10: f64,
    /// The middle one.
    pub median: f64,
    /// A tenth of them are at least this.
    pub p90: f64,
    /// The same by the reference in the same run, in the same unit.
    pub reference: Option<f64>,
    /// What the reference is.
    pub reference_name: Option<String>,
}

/// What could not be measured.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    /// The suite; all of them if `null`.
    pub suite: Option<String>,
    /// The backend.
    pub backend: String,
    /// What would have run the device code.
    pub executor: String,
    /// Why not.
    pub reason: String,
}

/// What tells a point from all others of its report.
pub type Key<'a> = ([Option<&'a str>; 6], [Option<u64>; 3]);

impl Report {
    /// Reads and checks a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read or is not what it should be: which point, and why.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read(path).with_context(|| format!("cannot read the report {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("the report {}", path.display()))
    }

    /// Checks the bytes of a file.
    ///
    /// # Errors
    ///
    /// As [`Report::read`].
    pub fn parse(text: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let Version { schema } =
            serde_json::from_slice(text).context("it is none of `cargo xtask bench`")?;
        if schema != SCHEMA {
            bail!(
                "schema is {schema}, not {SCHEMA}: measure again with the benchmark of this version"
            );
        }
        let report: Self = serde_json::from_slice(text)?;
        if report.points.is_empty() {
            let reasons: Vec<String> = report.skipped.iter().map(Skipped::words).collect();
            let colon = if reasons.is_empty() { "" } else { ": " };
            bail!("there are no points{colon}{}", reasons.join("; "));
        }
        let mut keys = HashSet::new();
        for (number, point) in report.points.iter().enumerate() {
            let name = || format!("point {number} ({} {})", point.suite, point.metric);
            point.check().with_context(name)?;
            ensure!(keys.insert(point.key()), "{} is there twice", name());
        }
        Ok(report)
    }
}

impl Skipped {
    /// Which suite of which backend, and why.
    fn words(&self) -> String {
        let place = [self.suite.as_deref(), Some(&*self.backend)];
        let place: Vec<&str> = place.into_iter().flatten().collect();
        format!("{}: {}", place.join(", "), self.reason)
    }
}

impl Point {
    fn check(&self) -> Result<()> {
        for (name, text) in [("suite", &self.suite), ("metric", &self.metric)] {
            ensure!(!text.is_empty(), "{name} is empty");
        }
        let unit = self.unit.as_str();
        let known = TIMES.contains(&unit) || RATES.contains(&unit);
        ensure!(known, "unit {unit:?} is none of {TIMES:?} and {RATES:?}");
        if let Some(backend) = &self.backend {
            let known = BACKENDS.contains(&backend.as_str());
            ensure!(known, "backend {backend:?} is none of {BACKENDS:?}");
        }
        let (min, p10, median, p90) = (self.min, self.p10, self.median, self.p90);
        // Also false for what is not a number.
        let ordered = 0.0 <= min && min <= p10 && p10 <= median && median <= p90;
        ensure!(
            ordered && p90.is_finite() && self.samples > 0,
            "min {min}, p10 {p10}, median {median}, p90 {p90} of {} samples are out of order",
            self.samples
        );
        if let Some(reference) = self.reference {
            ensure!(reference > 0.0, "reference {reference} is not positive");
        }
        Ok(())
    }

    /// What tells it from others.
    pub fn key(&self) -> Key<'_> {
        let words = [
            Some(&*self.suite),
            self.backend.as_deref(),
            self.provider.as_deref(),
            self.executor.as_deref(),
            Some(&*self.metric),
            Some(&*self.unit),
        ];
        (words, [self.bytes, self.queues, self.threads])
    }

    /// Whether a smaller figure is the better one.
    pub fn less_is_better(&self) -> bool {
        TIMES.contains(&self.unit.as_str())
    }

    /// Backend, whose queues, and what ran kernels.
    pub fn place(&self) -> String {
        let words = [&self.backend, &self.provider, &self.executor];
        let words: Vec<&str> = words.into_iter().flatten().map(String::as_str).collect();
        words.join(", ")
    }

    /// Size of a message, channels and threads, as far as they are told.
    pub fn setting(&self) -> Vec<String> {
        let count = |number: Option<u64>, one: &str| {
            number.map(|n| format!("{n} {one}{}", if n == 1 { "" } else { "s" }))
        };
        let words = [
            self.bytes.map(|bytes| words::bytes(bytes as f64)),
            count(self.queues, "queue"),
            count(self.threads, "thread"),
        ];
        words.into_iter().flatten().collect()
    }

    /// The median over the reference.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.median / self.reference?)
    }
}

impl Machine {
    /// Why the figures may be worse than the code is.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        // A load remembers what ended before the run, such as its build: it is for who knows no better.
        let cores = self.cores as f64;
        let load = self.load_1min_start.filter(|load| *load > cores / 4.0);
        if let (Some(load), None) = (load, self.cpu_others_percent) {
            warnings.push(format!(
                "the machine was busy when the run began: a load of {load} on {cores} cores"
            ));
        }
        let mut share = |percent: Option<f64>, limit, whose| {
            if let Some(percent) = percent.filter(|percent| *percent > limit) {
                warnings.push(format!("{percent:.0} % of the CPU time went to {whose}"));
            }
        };
        share(self.cpu_others_percent, 5.0, "other processes");
        share(
            self.cpu_stolen_percent,
            2.0,
            "other machines of the same host",
        );
        if self
            .governor
            .as_deref()
            .is_some_and(|name| name != "performance")
        {
            let name = self.governor.as_deref().unwrap_or_default();
            warnings.push(format!("the clock's governor is {name}, not performance"));
        }
        if self.profile != "release" {
            warnings.push(format!("the build was {}, not release", self.profile));
        }
        warnings
    }
}

#[cfg(test)]
pub(crate) mod tests;
