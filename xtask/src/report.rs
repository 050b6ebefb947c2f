// SPDX-License-Identifier: MIT
//! The benchmark's JSON: what is in it, and whether a file holds to it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// The version of the layout.
pub const SCHEMA: u32 = 1;

/// Every backend that a row may name.
pub const BACKENDS: [&str; 6] = [
    "proxy-ethernet",
    "proxy-ipc",
    "proxy-ib-host",
    "proxy-ib-host-no-atomic",
    "gpu-initiated",
    "gpu-initiated-host-queue",
];

/// A file.
#[derive(Clone, Debug, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The machine it was made on: names and values, free in form.
    pub host: serde_json::Map<String, serde_json::Value>,
    /// What was measured.
    pub rows: Vec<Row>,
}

/// One measured quantity.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
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
    /// What was measured.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// A tenth of the samples are at most this.
    pub p10: f64,
    /// The middle one.
    pub median: f64,
    /// A tenth of the samples are at least this.
    pub p90: f64,
    /// The same by the reference in the same run, in the same unit.
    pub reference: Option<f64>,
    /// What the reference is; plain TCP where older reports do not say.
    #[serde(default)]
    pub reference_name: Option<String>,
}

impl Report {
    /// Reads and checks a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read or is not what it should be: which row, and why.
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
        let report: Self = serde_json::from_slice(text)?;
        if report.schema != SCHEMA {
            bail!("schema is {}, not {SCHEMA}", report.schema);
        }
        ensure!(!report.rows.is_empty(), "there are no rows");
        for (number, row) in report.rows.iter().enumerate() {
            row.check()
                .with_context(|| format!("row {number} ({} {})", row.suite, row.metric))?;
        }
        Ok(report)
    }
}

impl Row {
    fn check(&self) -> Result<()> {
        for (name, text) in [
            ("suite", &self.suite),
            ("metric", &self.metric),
            ("unit", &self.unit),
        ] {
            ensure!(!text.is_empty(), "{name} is empty");
        }
        if let Some(backend) = &self.backend {
            let known = BACKENDS.contains(&backend.as_str());
            ensure!(known, "backend {backend:?} is none of {BACKENDS:?}");
        }
        let (p10, median, p90) = (self.p10, self.median, self.p90);
        // Also false for what is not a number.
        let ordered = p10 <= median && median <= p90 && p10 >= 0.0 && p90.is_finite();
        ensure!(
            ordered,
            "p10 {p10}, median {median}, p90 {p90} are out of order"
        );
        if let Some(reference) = self.reference {
            ensure!(reference > 0.0, "reference {reference} is not positive");
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    pub(crate) fn example() -> Value {
        json!({
            "schema": 1,
            "host": {"cpu": "a CPU", "cores": 2},
            "rows": [
                row("ping-pong", 8, "round trip", "us", 20.0),
                row("ping-pong", 4096, "round trip", "us", 25.0),
                row("bidirectional", 1024, "bandwidth", "GB/s", 0.5),
                row("bidirectional", 1 << 20, "bandwidth", "GB/s", 3.5),
                row("fifo", 16, "push rate", "M/s", 5.0),
            ],
        })
    }

    fn row(suite: &str, bytes: u64, metric: &str, unit: &str, median: f64) -> Value {
        json!({
            "suite": suite, "backend": "proxy-ethernet", "provider": null, "executor": "cpu",
            "bytes": bytes, "queues": 1, "metric": metric, "unit": unit,
            "p10": median * 0.9, "median": median, "p90": median * 1.2,
            "reference": if suite == "fifo" { Value::Null } else { json!(median / 2.0) },
        })
    }

    fn with(change: impl FnOnce(&mut Value)) -> Result<Report> {
        let mut value = example();
        change(&mut value);
        Report::parse(&serde_json::to_vec(&value).unwrap())
    }

    #[test]
    fn a_good_report_passes() {
        assert_eq!(with(|_| ()).unwrap().rows.len(), 5);
    }

    #[test]
    fn each_fault_is_named_with_its_row() {
        let fault = |change: fn(&mut Value)| format!("{:#}", with(change).unwrap_err());
        assert!(fault(|v| v["schema"] = json!(2)).contains("schema is 2"));
        assert!(fault(|v| v["rows"] = json!([])).contains("no rows"));
        assert!(fault(|v| v["host"] = json!(1)).contains("expected a map"));
        assert!(fault(|v| v["rows"][1]["unit"] = json!("")).contains("row 1"));
        assert!(fault(|v| v["rows"][2]["backend"] = json!("tcp")).contains("\"tcp\""));
        assert!(fault(|v| v["rows"][0]["p10"] = json!(21.0)).contains("out of order"));
        assert!(fault(|v| v["rows"][0]["median"] = Value::Null).contains("null"));
        assert!(fault(|v| v["rows"][0]["reference"] = json!(0.0)).contains("not positive"));
        let text = Report::parse(b"not json").unwrap_err().to_string();
        assert!(text.contains("expected"));
    }
}
