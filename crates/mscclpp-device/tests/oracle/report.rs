// SPDX-License-Identifier: MIT
//! What was compared, by operation.

use std::collections::BTreeMap;
use std::fmt;

use super::calls::{Call, Operation};
use super::compare::{Compared, Difference};
use super::machine::Outcome;

#[derive(Default)]
struct Row {
    cases: u64,
    equal: u64,
    bytes: u64,
    masked: u64,
}

/// Counts by operation, and the differences that were found.
#[derive(Default)]
pub(crate) struct Report {
    rows: BTreeMap<Operation, Row>,
    differences: Vec<String>,
}

impl Report {
    pub(crate) fn add(
        &mut self,
        call: &Call,
        place: &str,
        result: &Result<Compared, Vec<Difference>>,
    ) {
        // A call looks at several completions.
        let cases = match call.operation {
            Operation::Poll => call.size,
            _ => 1,
        };
        let row = self.rows.entry(call.operation).or_default();
        row.cases += cases;
        match result {
            Ok(compared) => {
                row.equal += cases;
                row.bytes += compared.bytes;
                row.masked += compared.masked;
            }
            Err(all) => self
                .differences
                .extend(all.iter().map(|one| format!("{place}: {one}"))),
        }
    }

    /// Cases of all operations.
    pub(crate) fn cases(&self) -> u64 {
        self.rows.values().map(|row| row.cases).sum()
    }

    /// `Err` with the first of the differences, or if hardly anything was compared.
    pub(crate) fn equal(&self) -> Outcome<()> {
        const SHOWN: usize = 20;
        const FEW: u64 = 5000;
        if self.cases() < FEW {
            return Err(format!("{} cases, fewer than {FEW}", self.cases()));
        }
        if self.differences.is_empty() {
            return Ok(());
        }
        let shown = &self.differences[..self.differences.len().min(SHOWN)];
        Err(format!(
            "{} differences:\n{}",
            self.differences.len(),
            shown.join("\n")
        ))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (equal, bytes) = ("equal", "bytes");
        writeln!(
            f,
            "{:<32} {:>7} {equal:>7} {bytes:>10} {:>10}",
            "operation", "cases", "masked"
        )?;
        for (operation, row) in &self.rows {
            let Row {
                cases,
                equal,
                bytes,
                masked,
            } = row;
            let name = operation.name();
            writeln!(
                f,
                "{name:<32} {cases:>7} {equal:>7} {bytes:>10} {masked:>10}"
            )?;
        }
        write!(f, "{} oracle cases", self.cases())
    }
}
