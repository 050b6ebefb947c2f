// SPDX-License-Identifier: MIT
//! The layout, and what is refused.

use serde_json::{Value, json};

use super::*;

pub(crate) fn example() -> Value {
    json!({
        "schema": SCHEMA,
        "date": "2026-11-30T12:00:00Z",
        "commit": "0123456789ab",
        "command": "cargo xtask bench",
        "features": [],
        "machine": {
            "cpu": "a CPU", "cores": 2, "kernel": "Linux 6.1", "governor": null, "gpus": [],
            "rustc": "rustc 1.95.0", "profile": "release", "load_1min_start": 0.1,
            "load_1min_end": 1.5, "cpu_others_percent": 0.5, "cpu_stolen_percent": 0.0,
        },
        "points": [
            point("ping-pong", 8, "round trip", "us", 20.0),
            point("ping-pong", 4096, "round trip", "us", 25.0),
            point("bidirectional", 1024, "bandwidth", "GB/s", 0.5),
            point("bidirectional", 1 << 20, "bandwidth", "GB/s", 3.5),
            point("fifo", 16, "push rate", "M/s", 5.0),
        ],
        "skipped": [
            {"suite": null, "backend": "proxy-ib-host", "executor": "host", "reason": "no device"},
        ],
    })
}

fn point(suite: &str, bytes: u64, metric: &str, unit: &str, median: f64) -> Value {
    json!({
        "suite": suite, "backend": "proxy-ethernet", "provider": null, "executor": "cpu",
        "bytes": bytes, "queues": 1, "threads": 1, "metric": metric, "part_of": null, "unit": unit,
        "samples": 31, "min": median * 0.8, "p10": median * 0.9, "median": median,
        "p90": median * 1.2,
        "reference": if suite == "fifo" { Value::Null } else { json!(median / 2.0) },
        "reference_name": "plain TCP",
    })
}

fn with(change: impl FnOnce(&mut Value)) -> Result<Report> {
    let mut value = example();
    change(&mut value);
    Report::parse(&serde_json::to_vec(&value).unwrap())
}

#[test]
fn a_good_report_passes_and_is_written_as_it_was_read() {
    let report = with(|_| ()).unwrap();
    assert_eq!(report.points.len(), 5);
    assert_eq!(serde_json::to_value(&report).unwrap(), example());
}

#[test]
fn each_fault_is_named_with_its_point() {
    let fault = |change: fn(&mut Value)| format!("{:#}", with(change).unwrap_err());
    assert!(fault(|v| v["schema"] = json!(1)).contains("schema is 1, not 2: measure again"));
    assert!(fault(|v| v["points"] = json!([])).contains("no points"));
    assert!(fault(|v| v["machine"] = json!(1)).contains("expected struct Machine"));
    assert!(fault(|v| v["surprise"] = json!(1)).contains("surprise"));
    assert!(fault(|v| v["points"][1]["unit"] = json!("")).contains("point 1"));
    assert!(fault(|v| v["points"][1]["unit"] = json!("ms")).contains("\"ms\""));
    assert!(fault(|v| v["points"][2]["backend"] = json!("tcp")).contains("\"tcp\""));
    assert!(fault(|v| v["points"][0]["p10"] = json!(21.0)).contains("out of order"));
    assert!(fault(|v| v["points"][0]["min"] = json!(19.0)).contains("out of order"));
    assert!(fault(|v| v["points"][0]["samples"] = json!(0)).contains("out of order"));
    assert!(fault(|v| v["points"][0]["median"] = Value::Null).contains("null"));
    assert!(fault(|v| v["points"][0]["reference"] = json!(0.0)).contains("not positive"));
    assert!(
        fault(|v| v["points"][1]["bytes"] = json!(8))
            .contains("point 1 (ping-pong round trip) is there twice")
    );
    let text = format!("{:#}", Report::parse(b"not json").unwrap_err());
    assert!(text.contains("none of `cargo xtask bench`") && text.contains("expected"));
}

#[test]
fn a_report_without_points_says_what_was_skipped_and_why() {
    let reason = "a proxy's channels have no such phases";
    let error = with(|v| {
        v["points"] = json!([]);
        v["skipped"] = json!([
            {"suite": "post", "backend": "proxy-ethernet", "executor": "host", "reason": reason},
            {"suite": null, "backend": "proxy-ipc", "executor": "cuda", "reason": "no GPU"},
        ]);
    });
    let text = format!("{:#}", error.unwrap_err());
    let all = format!("no points: post, proxy-ethernet: {reason}; proxy-ipc: no GPU");
    assert!(text.contains(&all), "{text}");
}

#[test]
fn each_field_is_explained() {
    let page = include_str!("../../../docs/benchmarks.md");
    let report = example();
    let parts = [
        &report,
        &report["machine"],
        &report["points"][0],
        &report["skipped"][0],
    ];
    for field in parts
        .iter()
        .flat_map(|part| part.as_object().unwrap().keys())
    {
        assert!(page.contains(&format!("`{field}`")), "{field}");
    }
    assert!(page.contains(&format!("version of the layout: {SCHEMA}")));
}

#[test]
fn a_quiet_machine_warns_of_nothing_and_a_busy_one_of_all() {
    assert_eq!(with(|_| ()).unwrap().machine.warnings(), [""; 0]);
    // A build that has just ended is in the load, and nobody's CPU time.
    let built = with(|v| v["machine"]["load_1min_start"] = json!(3.5));
    assert_eq!(built.unwrap().machine.warnings(), [""; 0]);
    let unknown = with(|v| {
        v["machine"]["load_1min_start"] = json!(3.5);
        v["machine"]["cpu_others_percent"] = Value::Null;
    });
    let warnings = unknown.unwrap().machine.warnings();
    assert!(
        warnings[0].contains("a load of 3.5 on 2 cores"),
        "{warnings:?}"
    );
    let busy = with(|v| {
        let machine = &mut v["machine"];
        machine["load_1min_start"] = json!(3.5);
        machine["cpu_others_percent"] = json!(40.2);
        machine["cpu_stolen_percent"] = json!(7.0);
        machine["governor"] = json!("powersave");
        machine["profile"] = json!("debug");
    });
    let warnings = busy.unwrap().machine.warnings().join("\n");
    for words in [
        "40 % of the CPU time went to other processes",
        "7 % of the CPU",
        "powersave",
        "debug",
    ] {
        assert!(warnings.contains(words), "{warnings}");
    }
}
