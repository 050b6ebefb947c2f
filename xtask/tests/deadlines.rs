// SPDX-License-Identifier: MIT
//! The times that are no configuration, in docs/deadlines.md, are those of the code: all, and no other.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A constant: where, its name, its time.
type Row = (String, String, String);

const CRATES: [&str; 4] = [
    "mscclpp-bootstrap",
    "mscclpp-port",
    "mscclpp-softnic",
    "mscclpp-device",
];
/// They stand for no limit, or for the most that a time can be.
const ENDLESS: [&str; 6] = [
    "FAR",
    "FOREVER",
    "LONGEST",
    "LONGEST_SILENCE",
    "LONGEST_PROBE",
    "LONGEST_UNACKNOWLEDGED",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn is_of_tests(file: &str) -> bool {
    let parts = [
        "/tests",
        "tests.rs",
        "/simul",
        "/fake/",
        "/testing/",
        "/hostile",
    ];
    parts.iter().any(|part| file.contains(part))
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            found.push(path);
        }
    }
}

/// A line that declares a time, if it is one.
fn declared(line: &str) -> Option<(String, String)> {
    let (before, value) = line.split_once(": Duration = Duration::from_")?;
    let (visibility, name) = before.split_once("const ")?;
    if !(visibility.is_empty() || visibility.starts_with("pub")) {
        return None;
    }
    let (unit, number) = value.strip_suffix(");")?.split_once('(')?;
    let unit = match unit {
        "secs" => "s",
        "millis" => "ms",
        "micros" => "µs",
        "nanos" => "ns",
        _ => return None,
    };
    Some((name.into(), format!("{} {unit}", number.replace('_', ""))))
}

fn coded() -> BTreeSet<Row> {
    let mut rows = BTreeSet::new();
    for name in CRATES {
        let directory = root().join("crates").join(name).join("src");
        let mut files = Vec::new();
        sources(&directory, &mut files);
        for path in files {
            let file = path.strip_prefix(&directory).unwrap().with_extension("");
            let file = file.to_str().unwrap();
            if is_of_tests(path.to_str().unwrap()) {
                continue;
            }
            for line in fs::read_to_string(&path).unwrap().lines() {
                if let Some((constant, time)) = declared(line)
                    && !ENDLESS.contains(&&*constant)
                {
                    rows.insert((format!("{name} {file}"), constant, time));
                }
            }
        }
    }
    rows
}

fn documented() -> BTreeSet<Row> {
    let text = fs::read_to_string(root().join("docs/deadlines.md")).unwrap();
    let (_, text) = text
        .split_once("## What is not for configuration")
        .expect("the section");
    let table = text.lines().filter(|line| line.starts_with("| `"));
    table
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let name = |cell: &str| cell.trim_matches('`').to_owned();
            assert!(!cells[3].is_empty(), "no reason: {line}");
            (name(cells[1]), name(cells[0]), cells[2].into())
        })
        .collect()
}

#[test]
fn the_documented_constants_are_those_of_the_code() {
    let (coded, documented) = (coded(), documented());
    assert!(coded.len() > 20, "{} constants were found", coded.len());
    let missing: Vec<_> = coded.difference(&documented).collect();
    let stale: Vec<_> = documented.difference(&coded).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "docs/deadlines.md lacks {missing:?}, and has {stale:?}, which the code has not"
    );
}
