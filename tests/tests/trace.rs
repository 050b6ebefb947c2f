// SPDX-License-Identifier: MIT
//! The program that makes time lines: two ranks' ping-pongs, merging, and what it refuses.

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn trace(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trace"));
    command.args(arguments).current_dir(directory);
    command.stdin(Stdio::null()).output().unwrap()
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(err)
}

#[test]
fn trace_of_two_ranks_goes_from_kernel_to_kernel() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    // The program holds the time lines against what was played.
    let play = ["--demo", "--iterations", "5", "-o", "t.json"];
    let made = trace(at, &play);
    assert!(made.status.success(), "{}", text(&made));
    let left = std::fs::read_dir(at).unwrap();
    let mut left: Vec<_> = left.map(|file| file.unwrap().file_name()).collect();
    left.sort_unstable();
    assert_eq!(left, ["t-proxy.json", "t-queue.json"]);
    let made = trace(at, &[&play[..], &["--keep"]].concat());
    assert!(made.status.success(), "{}", text(&made));
    for way in ["proxy", "queue"] {
        let [zero, one] = ["0", "1"].map(|rank| format!("t-{way}-rank{rank}.json"));
        let merged = trace(at, &[&zero, &one, "-o", "merged.json"]);
        assert!(merged.status.success(), "{}", text(&merged));
        let line = format!("t-{way}.json");
        let [first, again] =
            [&line, "merged.json"].map(|file| std::fs::read(at.join(file)).unwrap());
        assert!(
            first == again,
            "the files of ranks are what the line was made of"
        );
        let checked = trace(at, &["--check", "merged.json"]);
        assert!(checked.status.success(), "{}", text(&checked));
        let twice = trace(at, &[&zero, &zero]);
        assert!(!twice.status.success() && text(&twice).contains("of rank 0"));
    }
    let json = std::fs::read_to_string(at.join("t-proxy.json")).unwrap();
    std::fs::write(
        at.join("bad.json"),
        json.replacen("\"ph\":\"f\"", "\"ph\":\"s\"", 1),
    )
    .unwrap();
    let bad = trace(at, &["--check", "bad.json"]);
    assert!(
        !bad.status.success() && text(&bad).contains("2 begins and 0 ends"),
        "{}",
        text(&bad)
    );
    let other = trace(at, &["bad.json"]);
    assert!(!other.status.success() && text(&other).contains("no rank's trace"));
}
