// SPDX-License-Identifier: MIT
//! `cargo xtask report` on a recorded report: pages and comparisons.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

/// What `bench --quick` found on a busy machine: `--suite sweep`, and the points of `--suite one-way`.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reports/recorded.json");

fn recorded() -> Value {
    serde_json::from_slice(&fs::read(RECORDED).unwrap()).unwrap()
}

/// A report in a file of its own.
fn saved(directory: &TempDir, name: &str, report: &Value) -> PathBuf {
    let path = directory.path().join(name);
    fs::write(&path, report.to_string()).unwrap();
    path
}

/// Whether the command succeeds, and what it prints.
fn report(new: &Path, args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("report")
        .arg(new)
        .args(args)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// The recorded report, held against a changed one as the older.
fn against(change: impl FnOnce(&mut Value), args: &[&str]) -> (bool, String) {
    let directory = tempfile::tempdir().unwrap();
    let mut old = recorded();
    change(&mut old);
    let old = saved(&directory, "old.json", &old);
    let compare = ["--compare", old.to_str().unwrap()];
    report(Path::new(RECORDED), &[&compare, args].concat())
}

/// The figures of a point, times a factor.
fn scale(point: &mut Value, factor: f64) {
    for field in ["min", "p10", "median", "p90"] {
        point[field] = json!(point[field].as_f64().unwrap() * factor);
    }
}

/// A point without spread worth the name, with so many samples.
fn steady(report: &mut Value, number: usize, median: f64) {
    let point = &mut report["points"][number];
    for (field, factor) in [("min", 0.98), ("p10", 0.99), ("median", 1.0), ("p90", 1.01)] {
        point[field] = json!(median * factor);
    }
    point["samples"] = json!(31);
}

/// Number of a point of the recorded report with this unit, and its median.
fn point_in(unit: &str) -> (usize, f64) {
    let report = recorded();
    let points = report["points"].as_array().unwrap();
    let number = points
        .iter()
        .position(|p| p["unit"] == unit && p["median"] != 0.0)
        .unwrap();
    (number, points[number]["median"].as_f64().unwrap())
}

/// Held against each other: two reports that differ in one point.
fn one_point(unit: &str, old: f64, new: f64, args: &[&str]) -> (bool, String) {
    let directory = tempfile::tempdir().unwrap();
    let (number, _) = point_in(unit);
    let [old, new] = [("old.json", old), ("new.json", new)].map(|(name, median)| {
        let mut report = recorded();
        steady(&mut report, number, median);
        saved(&directory, name, &report)
    });
    report(
        &new,
        &[&["--compare", old.to_str().unwrap()], args].concat(),
    )
}

/// The line of a verdict.
fn line<'a>(text: &'a str, verdict: &str) -> &'a str {
    let lines = text.lines().filter(|line| line.starts_with(verdict));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), 1, "{text}");
    lines[0]
}

#[test]
fn a_report_held_against_itself_is_all_the_same() {
    let count = recorded()["points"].as_array().unwrap().len();
    let (well, text) = against(|_| (), &["--fail-above", "0"]);
    assert!(well, "{text}");
    let same = text
        .lines()
        .filter(|line| line.starts_with("same within noise"));
    assert_eq!(same.count(), count, "{text}");
    let tally = format!(
        "0 faster, 0 slower, {count} the same within noise, 0 with too few samples, 0 only in the \
         newer report, 0 only in the older one"
    );
    assert!(text.contains(&tally), "{text}");
    assert!(!text.contains("another machine"), "{text}");
}

#[test]
fn less_time_and_more_bandwidth_are_faster_and_the_contrary_is_slower() {
    for (unit, old, new, verdict, change) in [
        ("us", 20.0, 10.0, "faster", "-50.0 %"),
        ("us", 10.0, 20.0, "slower", "+100.0 %"),
        ("GB/s", 2.0, 4.0, "faster", "-50.0 %"),
        ("GB/s", 4.0, 2.0, "slower", "+100.0 %"),
        ("M/s", 4.0, 2.0, "slower", "+100.0 %"),
    ] {
        let (well, text) = one_point(unit, old, new, &[]);
        assert!(well, "{text}");
        let line = line(&text, verdict);
        let ratio = format!("new/old {:>7}", format!("{:.3}", new / old));
        assert!(line.contains(change) && line.contains(&ratio), "{line}");
        // The largest change stands first.
        let first = text.lines().find(|line| line.contains("new/old"));
        assert_eq!(first, Some(line));
    }
}

#[test]
fn medians_in_each_others_spread_are_the_same() {
    let (number, _) = point_in("us");
    let old = |report: &mut Value| scale(&mut report["points"][number], 1.02);
    let (well, text) = against(old, &["--fail-above", "0"]);
    assert!(well, "{text}");
    assert!(text.contains("0 faster, 0 slower, "), "{text}");
    // One of the medians in the other's range is enough: the wide one tells nothing.
    let directory = tempfile::tempdir().unwrap();
    let (mut narrow, mut wide) = (recorded(), recorded());
    steady(&mut narrow, number, 10.0);
    steady(&mut wide, number, 20.0);
    wide["points"][number]["min"] = json!(5.0);
    wide["points"][number]["p10"] = json!(9.0);
    let (narrow, wide) = (
        saved(&directory, "n", &narrow),
        saved(&directory, "w", &wide),
    );
    for (new, old) in [(&narrow, &wide), (&wide, &narrow)] {
        let (_, text) = report(new, &["--compare", old.to_str().unwrap()]);
        assert!(text.contains("0 faster, 0 slower, "), "{text}");
    }
}

#[test]
fn few_samples_say_nothing() {
    let (number, _) = point_in("us");
    let directory = tempfile::tempdir().unwrap();
    let [old, new] = [("old", 10.0), ("new", 20.0)].map(|(name, median)| {
        let mut report = recorded();
        steady(&mut report, number, median);
        report["points"][number]["samples"] = json!(4);
        saved(&directory, name, &report)
    });
    let (well, text) = report(
        &new,
        &["--compare", old.to_str().unwrap(), "--fail-above", "0"],
    );
    assert!(well, "{text}");
    line(&text, "too few samples");
}

#[test]
fn only_a_point_that_is_slower_by_more_than_is_allowed_fails() {
    assert!(one_point("us", 10.0, 12.0, &["--fail-above", "21"]).0);
    let (well, text) = one_point("us", 10.0, 12.0, &["--fail-above", "19"]);
    assert!(!well, "{text}");
    assert!(
        text.contains("1 points are slower by more than 19 %"),
        "{text}"
    );
    assert!(one_point("us", 12.0, 10.0, &["--fail-above", "0"]).0);
}

#[test]
fn points_that_one_side_lacks_are_listed() {
    let (well, text) = against(
        |report| {
            let points = report["points"].as_array_mut().unwrap();
            points[0]["bytes"] = json!(3);
        },
        &[],
    );
    assert!(well, "{text}");
    line(&text, "only in the newer report: ");
    assert!(
        line(&text, "only in the older report: ").contains("3 B"),
        "{text}"
    );
}

#[test]
fn another_machine_is_a_warning_and_no_judge() {
    let other = |report: &mut Value| {
        report["machine"]["cpu"] = json!("another CPU");
        report["machine"]["kernel"] = json!("Linux 0.1");
    };
    let (well, text) = against(other, &[]);
    assert!(well, "{text}");
    assert!(
        text.contains("WARNING: another machine: the CPU was another CPU, now "),
        "{text}"
    );
    assert!(
        text.contains("note: the kernel was Linux 0.1, now "),
        "{text}"
    );
    let (well, text) = against(other, &["--fail-above", "1000"]);
    assert!(!well);
    assert!(
        text.contains("the reports are of different machines"),
        "{text}"
    );
}

#[test]
fn another_layout_is_an_error() {
    let (well, text) = against(|report| report["schema"] = json!(1), &[]);
    assert!(!well);
    assert!(text.contains("schema is 1, not 2"), "{text}");
}

#[test]
fn the_page_is_well_formed_holds_each_point_and_needs_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let mut old = recorded();
    scale(&mut old["points"][0], 3.0);
    old["points"][1]["bytes"] = json!(3);
    let mut new = recorded();
    // Words of a report are words, whatever is in them.
    new["command"] = json!("bench </td><script>&amp;");
    new["machine"]["cpu_others_percent"] = json!(37.0);
    let (old, new_file) = (
        saved(&directory, "old", &old),
        saved(&directory, "new", &new),
    );
    let html = directory.path().join("pages/report.html");
    let page = |args: &[&str]| {
        let args = [&["-o", html.to_str().unwrap()], args].concat();
        let (well, text) = report(&new_file, &args);
        assert!(well, "{text}");
        fs::read_to_string(&html).unwrap()
    };
    let compared = page(&["--compare", old.to_str().unwrap()]);
    for text in [page(&[]), compared.clone()] {
        let options = roxmltree::ParsingOptions {
            allow_dtd: true,
            ..roxmltree::ParsingOptions::default()
        };
        let document = roxmltree::Document::parse_with_options(&text, options).unwrap();
        let words = |node: roxmltree::Node<'_, '_>| -> String {
            node.descendants()
                .filter(|n| n.is_text())
                .filter_map(|n| n.text())
                .collect()
        };
        for (number, point) in new["points"].as_array().unwrap().iter().enumerate() {
            let id = format!("p{number}");
            let mut rows = document
                .descendants()
                .filter(|n| n.attribute("id") == Some(&*id));
            let row = words(rows.next().unwrap());
            assert!(rows.next().is_none(), "{id} is there twice");
            assert!(
                row.contains(point["backend"].as_str().unwrap_or("")),
                "{row}"
            );
            assert!(row.contains(&point["samples"].to_string()), "{row}");
        }
        let drawings: Vec<_> = document
            .descendants()
            .filter(|n| n.has_tag_name("svg"))
            .collect();
        assert!(drawings.len() >= 4, "{} drawings", drawings.len());
        for drawing in drawings {
            for name in ["title", "desc"] {
                let child = drawing.children().find(|n| n.has_tag_name(name));
                assert!(!words(child.unwrap()).is_empty());
            }
        }
        assert!(document.descendants().all(|n| !n.has_tag_name("script")));
        for node in document.descendants() {
            for attribute in node.attributes() {
                let outside = matches!(attribute.name(), "src" | "srcset" | "data" | "action");
                let here = attribute.name() != "href" || attribute.value().starts_with('#');
                assert!(!outside && here, "{attribute:?}");
            }
        }
        for word in ["http:", "https:", "url(", "@import", "//"] {
            assert!(!text.contains(word), "{word}");
        }
        let all = words(document.root_element());
        assert!(
            all.contains("37 % of the CPU time went to other processes"),
            "a busy machine is told of"
        );
        assert!(all.contains("bench </td><script>&amp;"));
    }
    assert!(compared.contains("older report"), "both series are drawn");
    assert!(compared.contains("Only in the older report"));
}
