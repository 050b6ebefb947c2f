// SPDX-License-Identifier: MIT

use super::*;
use crate::report::tests::example;

fn drawn(report: &serde_json::Value) -> Vec<(String, String)> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.json");
    fs::write(&file, report.to_string()).unwrap();
    let plots = directory.path().join("plots");
    plot(&file, &plots).unwrap();
    let mut files: Vec<_> = fs::read_dir(&plots)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            let text = fs::read_to_string(entry.path()).unwrap();
            (entry.file_name().into_string().unwrap(), text)
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_report_becomes_a_figure_for_each_metric_of_which_sizes_were_varied() {
    let files = drawn(&example());
    let names: Vec<_> = files.iter().map(|(name, _)| &**name).collect();
    assert_eq!(
        names,
        ["bidirectional-bandwidth.svg", "ping-pong-round-trip.svg"]
    );
    for words in [
        "GB/s",
        "proxy-ethernet, cpu",
        "plain TCP, same run",
        "1 MiB",
        "<title>bidirectional: bandwidth</title>",
        "from 0.5 at 1 KiB to 3.5 at 1 MiB",
    ] {
        assert!(files[0].1.contains(words), "{words}");
    }
}

#[test]
fn lines_go_over_channels_where_all_sizes_are_the_same() {
    let mut report = example();
    for (number, queues) in [(0, 1), (1, 4)] {
        report["points"][number]["bytes"] = 8.into();
        report["points"][number]["queues"] = queues.into();
        report["points"][number]["threads"] = queues.into();
    }
    let files = drawn(&report);
    let (name, text) = &files[1];
    assert_eq!(name, "ping-pong-round-trip.svg");
    assert!(text.contains("queues (channels in parallel)"), "{text}");
    assert!(text.contains("from 20 at 1 to 25 at 4"), "{text}");
    assert!(!text.contains("1 thread"), "one line a backend");
}

#[test]
fn parts_of_a_whole_become_a_bar() {
    let mut report = example();
    for number in [0, 1] {
        report["points"][number]["part_of"] = "an iteration".into();
    }
    report["points"][1]["metric"] = "flush".into();
    let files = drawn(&report);
    let (name, text) = files
        .iter()
        .find(|(name, _)| name.starts_with("ping"))
        .unwrap();
    assert_eq!(name, "ping-pong-an-iteration.svg");
    assert!(text.contains("round trip 20 us, flush 25 us"), "{text}");
}

#[test]
fn file_names_hold_nothing_that_a_path_could_trip_over() {
    assert_eq!(file_stem(&["a/../b", "c d"]), "a----b-c-d");
}
