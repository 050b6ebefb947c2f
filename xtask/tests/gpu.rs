// SPDX-License-Identifier: MIT
//! `xtask gpu-run` in a packed directory whose programs are scripts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

const TEST: &str = "echo 'SKIP two: needs 2 GPUs'
echo 'running 2 tests'
echo 'test one ... ok'
echo 'test two ... ignored'
echo 'test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s'";

/// Two ranks, or threads; rank 1 says nothing that counts.
const SUITE: &str = "case \"$*\" in *--threads=2*) echo 'as threads' ;; esac
[ \"${MSCCLPP_RANK:-0}\" = 0 ] || { echo 'PASS of rank 1'; exit 0; }
echo \"arguments: $*; queues: $CUDA_DEVICE_MAX_CONNECTIONS\"
echo 'PASS A.B (3 ms)'
echo '     round trip: 9.000 us'
echo 'SKIP A.C: no NIC'
echo '1 passed, 0 failed, 1 skipped'";

/// Writes a report where it is told to.
const BENCH: &str = "while [ $# -gt 0 ]; do case \"$1\" in --json) json=$2 ;; esac; shift; done
[ \"${MSCCLPP_RANK:-0}\" = 0 ] || exit 0
cat > \"$json\" <<'X'
{\"schema\": 2, \"date\": \"today\", \"commit\": null, \"command\": \"$*\", \"features\": [\"cuda\"],
\"machine\": {\"cpu\": \"a CPU\", \"cores\": 2, \"kernel\": \"Linux\", \"gpus\": [\"a GPU\"],
\"rustc\": \"1\", \"profile\": \"release\"}, \"skipped\": [],
\"points\": [{\"suite\": \"ping-pong\", \"backend\": \"proxy-ipc\", \"executor\": \"cuda\",
\"bytes\": 4, \"queues\": 1, \"metric\": \"round trip\", \"unit\": \"us\", \"samples\": 7,
\"min\": 1, \"p10\": 1, \"median\": 2, \"p90\": 3, \"reference\": 1,
\"reference_name\": \"CUDA copy\"}]}
X
echo 'a table'";

fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs a packed directory; what it printed, and what is in `run.json`.
fn run(suite: &str, args: &[&str]) -> (Output, String, Value, tempfile::TempDir) {
    /// A program that is being written cannot be started, and a process that another test starts
    /// meanwhile keeps it open for writing.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let packed = tempfile::tempdir().unwrap();
    let at = |name: &str| packed.path().join(name);
    fs::copy(env!("CARGO_BIN_EXE_xtask"), at("xtask")).unwrap();
    script(&at("crate-cuda"), TEST);
    script(&at("conformance"), suite);
    script(&at("bench"), BENCH);
    script(&at("doctor"), "echo 'backend: works'");
    script(&at("hello"), "echo \"rank $MSCCLPP_RANK: correct\"");
    script(&at("nvidia-smi"), "echo 'a GPU, 1.0'; echo 'a GPU, 1.0'");
    let manifest = json!({
        "commit": "0123", "rustc": "a compiler", "built": "today", "tests": ["crate-cuda"], "examples": [
            {"package": "hello", "args": ["--gpu"], "ranks": 1},
        ],
        "bytes": 9,
    });
    fs::write(at("manifest.json"), manifest.to_string()).unwrap();
    // Examples run where there are GPUs.
    let system = std::env::var("PATH").unwrap();
    let path = format!("{}:{system}", packed.path().display());
    let output = Command::new(at("xtask"))
        .args(["gpu-run", "--out"])
        .arg(at("out"))
        .args(args)
        .env_remove("MSCCLPP_RANK")
        .env("PATH", path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let summary = fs::read(at("out/run.json")).unwrap();
    (
        output,
        text,
        serde_json::from_slice(&summary).unwrap(),
        packed,
    )
}

#[test]
fn all_parts_run_and_leave_their_logs() {
    let (output, text, summary, packed) = run(SUITE, &["--stress=7", "--profile=quick"]);
    assert!(output.status.success(), "{text}");
    assert_eq!(summary["built"]["commit"], "0123");
    let outcomes = summary["outcomes"].as_array().unwrap();
    let said: Vec<_> = outcomes.iter().map(|o| (&o["part"], &o["said"])).collect();
    let expected = [
        (json!("tests"), json!("1 passed, 0 failed, 1 skipped")),
        (json!("suite"), json!("1 passed, 0 failed, 1 skipped")),
        (json!("examples"), json!("1 passed, 0 failed, 0 skipped")),
        (json!("bench"), json!("1 points")),
        (json!("post"), json!("measured")),
    ];
    assert_eq!(
        said,
        expected.iter().map(|(a, b)| (a, b)).collect::<Vec<_>>()
    );
    let log = fs::read_to_string(packed.path().join("out/suite.log")).unwrap();
    let args = "arguments: --executor=cuda --profile=quick --stress=7";
    assert!(log.contains(args) && log.contains("queues: 32"), "{log}");
    assert!(
        log.contains("round trip: 9.000 us") && !text.contains("round trip: 9"),
        "{log}"
    );
    let tables = fs::read_to_string(packed.path().join("out/tables.txt")).unwrap();
    assert!(
        tables.contains("a table") && tables.contains("command: "),
        "{tables}"
    );
    let files = fs::read_dir(packed.path().join("out")).unwrap().count();
    assert!(files <= 10, "{files} files");
}

#[test]
fn a_suite_that_fails_or_dies_is_told_of() {
    let failing = "[ \"${MSCCLPP_RANK:-0}\" = 0 ] || exit 0
echo 'FAIL A.B (3 ms)'; echo '     rank 1: wrong'; echo '0 passed, 1 failed, 0 skipped'; exit 1";
    let (output, text, summary, _packed) = run(failing, &["--only=suite", "--threads=2"]);
    assert!(!output.status.success());
    assert!(
        text.contains("FAIL A.B") && text.contains("rank 1: wrong"),
        "{text}"
    );
    assert_eq!(summary["outcomes"][0]["well"], false);

    let dying = "echo 'PASS A.B (3 ms)'; sleep 60";
    let (output, text, summary, _packed) = run(dying, &["--only=suite", "--timeout=5"]);
    assert!(!output.status.success());
    let said = summary["outcomes"][0]["said"].as_str().unwrap();
    assert_eq!(said, "1 passed, 1 failed, 0 skipped", "{text}");
}
