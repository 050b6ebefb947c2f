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
const ENDLESS: [&str; 7] = [
    "FAR",
    "FOREVER",
    "NEVER",
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
        "/last_words",
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
    let (before, value) = (line.trim_start()).split_once(": Duration = Duration::from_")?;
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

/// A time in the midst of a line that is longer than a look may be, if there is one. Shorter are naps
/// between two looks, and the least that a system's timer takes.
fn inline(line: &str) -> Option<&str> {
    if line.trim_start().starts_with("//") {
        return None;
    }
    let calls = line.split("Duration::").skip(1);
    let times = calls.filter(|call| call.starts_with("from_") || call.starts_with("new("));
    let mut literal = times.filter_map(|call| {
        let (unit, argument) = call.split_once('(')?;
        let number: String = (argument.chars())
            .take_while(|c| c.is_ascii_digit() || matches!(c, '_' | '.'))
            .filter(|c| *c != '_')
            .collect();
        let number: f64 = number.parse().ok()?;
        let look = match unit {
            "from_nanos" => 1e6,
            "from_micros" => 1e3,
            "from_millis" => 1.0,
            _ => 0.0,
        };
        (number > look).then_some(call)
    });
    literal.next()
}

/// A file's lines that are no tests: from their module on there is nothing else.
fn without_tests(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut lines = text.lines().enumerate().peekable();
    std::iter::from_fn(move || {
        let (number, line) = lines.next()?;
        let next = lines.peek().map_or("", |(_, next)| *next);
        let tests = line.starts_with("#[cfg(") && line.contains("test");
        let module = next.starts_with("mod ") && next.ends_with('{');
        (!(tests && module)).then_some((number + 1, line))
    })
}

/// The constants, and the times that have no name.
fn coded() -> (BTreeSet<Row>, Vec<String>) {
    let (mut rows, mut nameless) = (BTreeSet::new(), Vec::new());
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
            for (number, line) in without_tests(&fs::read_to_string(&path).unwrap()) {
                if let Some((constant, time)) = declared(line) {
                    if !ENDLESS.contains(&&*constant) {
                        rows.insert((format!("{name} {file}"), constant, time));
                    }
                } else if inline(line).is_some() {
                    nameless.push(format!("{name} {file}:{number}: {}", line.trim()));
                }
            }
        }
    }
    (rows, nameless)
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
    let ((coded, _), documented) = (coded(), documented());
    assert!(coded.len() > 20, "{} constants were found", coded.len());
    let missing: Vec<_> = coded.difference(&documented).collect();
    let stale: Vec<_> = documented.difference(&coded).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "docs/deadlines.md lacks {missing:?}, and has {stale:?}, which the code has not"
    );
}

#[test]
fn no_time_that_could_be_noticed_is_without_a_name() {
    let (_, nameless) = coded();
    assert!(
        nameless.is_empty(),
        "not in a `const NAME: Duration = Duration::from_…(…);` on one line: {nameless:#?}"
    );
}

#[test]
fn a_time_in_the_midst_of_a_line_is_seen() {
    let seen = [
        "    tokio::time::sleep(Duration::from_millis(20)).await;",
        "    pause = (pause * 2).min(Duration::from_micros(1_001));",
        "const BOTH: (Duration, Duration) = (Duration::from_secs(1), Duration::ZERO);",
        "        Duration::new(5, 0),",
        "    let limit = Duration::from_secs_f64(0.5);",
        "    let both = a.max(Duration::from_millis(1)).min(Duration::from_millis(2));",
    ];
    for line in seen {
        assert!(inline(line).is_some(), "{line}");
    }
    let not = [
        "    /// let time = Duration::from_secs(20);",
        "    thread::sleep(Duration::from_millis(1));",
        "    let time = Duration::from_secs(seconds);",
        "    let time = Duration::ZERO;",
    ];
    for line in not {
        assert!(inline(line).is_none(), "{line}");
    }
    let file =
        "one\n#[cfg(test)]\nmod tests;\ntwo\n#[cfg(all(test, not(loom)))]\nmod tests {\nthree\n";
    let lines: Vec<_> = without_tests(file).collect();
    assert_eq!(lines[3], (4, "two"));
    assert_eq!(lines.len(), 4);
}
