// SPDX-License-Identifier: MIT
//! Variables that pages name exist, and those that exist are described.

use super::facts::{Facts, words};
use super::page::Page;

/// The page that describes all variables, each in a row of a table.
const PAGE: &str = "docs/tuning.md";

/// Variables that are not for users: what programs of the project tell each other, what builds tell
/// crates, macros, and what is kept for those who come from MSCCL++'s tests.
const INTERNAL: [&str; 8] = [
    "MSCCLPP_DEVICE_INCLUDE",
    "MSCCLPP_EP_GPUNETIO_QPS_PER_PEER",
    "MSCCLPP_DEVICE_TRACE",
    "MSCCLPP_MODELLED_MEMORY",
    "MSCCLPP_SANITIZED",
    "RXE_NETWORK",
    "RXE_TEST",
    "RXE_VM_GUEST",
];

/// Names of a page that no code has, and names that the page says are not here and are.
pub(super) fn unknown(page: &Page, facts: &Facts, note: &mut impl FnMut(usize, String)) {
    let mut absent: Vec<&str> = Vec::new();
    for (line, comment) in &page.comments {
        let Some(list) = comment.strip_prefix("not here:") else {
            continue;
        };
        for name in list.split_whitespace() {
            if facts.names.contains(name) {
                note(*line, format!("{name} is here: some code names it"));
            }
            absent.push(name);
        }
    }
    for (number, line) in (1..).zip(page.text.lines()) {
        for name in words(line) {
            if !facts.names.contains(name) && !absent.contains(&name) {
                note(number, format!("no code knows {name}"));
            }
        }
    }
}

/// Variables that code reads and the page of variables does not describe, or with another place.
pub(super) fn undescribed(pages: &[Page], facts: &Facts) -> Vec<String> {
    let Some(page) = pages.iter().find(|page| page.path == PAGE) else {
        return Vec::new();
    };
    let rows: Vec<(usize, Vec<&str>)> = (1..)
        .zip(page.text.lines())
        .filter(|(_, line)| line.starts_with("| `"))
        .map(|(number, line)| {
            let cells = line.trim_matches('|').split(" | ");
            (
                number,
                cells.map(|cell| cell.trim().trim_matches('`')).collect(),
            )
        })
        .collect();
    let mut faults = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for (name, file) in &facts.variables {
        let name = name.as_str();
        if seen.contains(&name) || INTERNAL.contains(&name) || name.starts_with("MSCCLPP_TEST_") {
            continue;
        }
        seen.push(name);
        if !rows.iter().any(|(_, cells)| cells[0] == name) {
            let file = file.strip_prefix(&facts.root).unwrap_or(file);
            faults.push(format!(
                "{PAGE}: no row for {name}, which {} reads",
                file.display()
            ));
        }
    }
    for (number, cells) in rows {
        let is_variable = words(cells[0]).next() == Some(cells[0]);
        let place = cells.last().and_then(|name| facts.package(name));
        if let Some(package) = place.filter(|_| is_variable) {
            // Those of tests alone are in no list of variables.
            let of_tests = !facts.variables.iter().any(|(found, _)| found == cells[0]);
            let read = of_tests && facts.names.contains(cells[0])
                || (facts.variables.iter())
                    .any(|(found, file)| found == cells[0] && file.starts_with(&package.directory));
            if !read {
                faults.push(format!(
                    "{PAGE}:{number}: {} does not read {}",
                    package.name, cells[0]
                ));
            }
        } else if is_variable {
            faults.push(format!(
                "{PAGE}:{number}: the last column of {} is no package",
                cells[0]
            ));
        }
    }
    faults
}
