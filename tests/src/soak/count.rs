// SPDX-License-Identifier: MIT
//! What was done, and what was done to it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How often, by name. Names are few and their own, so that counting keeps nothing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    pub(super) operations: BTreeMap<String, u64>,
    pub(super) faults: BTreeMap<String, u64>,
}

impl Counts {
    pub(super) fn did(&mut self, operation: &str, times: u64) {
        add(&mut self.operations, operation, times);
    }

    pub(super) fn fault(&mut self, fault: &str) {
        add(&mut self.faults, fault, 1);
    }

    /// Both together.
    pub(super) fn join(&mut self, other: &Self) {
        for (name, times) in &other.operations {
            self.did(name, *times);
        }
        for (name, times) in &other.faults {
            add(&mut self.faults, name, *times);
        }
    }

    /// All operations.
    pub(super) fn total(&self) -> u64 {
        let calls = self
            .operations
            .iter()
            .filter(|(name, _)| !name.starts_with("bytes"));
        calls.map(|(_, times)| times).sum()
    }
}

fn add(map: &mut BTreeMap<String, u64>, name: &str, times: u64) {
    match map.get_mut(name) {
        Some(count) => *count += times,
        None => drop(map.insert(name.to_owned(), times)),
    }
}
