// SPDX-License-Identifier: MIT
//! xtask as a program.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use xtask::launch::find_program;
use xtask::rank_output::Notes;

const PATIENCE: Duration = Duration::from_secs(60);

fn xtask(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(args).stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> (Output, String, String) {
    let output = xtask(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

fn gone(pid: &str) -> bool {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        match fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) if !stat.rsplit_once(") ").unwrap().1.starts_with('Z') => {}
            _ => return true,
        }
        thread::sleep(Duration::from_millis(10));
    }
    false
}

#[test]
fn launch_marks_each_line_and_keeps_the_streams_apart() {
    let script = "echo out; echo err >&2";
    let (result, out, err) = output(&["launch", "-n", "2", "--", "/bin/sh", "-c", script]);
    assert!(result.status.success());
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] out", "[1] out"]);
    assert!(err.contains("[1] err") && !err.contains("out"));
}

#[test]
fn what_nobody_reads_ends_the_command_without_a_word() {
    const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reports/recorded.json");
    // By `println!`, and by the lines of ranks, which go on for as long as they may.
    for args in [
        &["report", RECORDED, "--compare", RECORDED][..],
        &["launch", "-n", "2", "--", "yes"],
    ] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let output = xtask(args).stdout(writer).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
        assert_eq!(output.status.code(), Some(141), "{args:?}");
    }
}

#[test]
fn what_cannot_be_printed_is_an_error_and_no_panic() {
    const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reports/recorded.json");
    let full = fs::File::create("/dev/full").unwrap();
    let report = ["report", RECORDED, "--compare", RECORDED];
    let output = xtask(&report).stdout(full).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("error: failed printing to stdout"), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn files_are_looked_at_before_anything_is_built() {
    const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reports/recorded.json");
    let below = format!("{RECORDED}/page");
    for (args, said) in [
        (&["trace", "none.json"][..], "cannot read none.json"),
        (&["trace", "--check", "none.json"], "cannot read none.json"),
        (&["trace", RECORDED, "-o", &below], "cannot write"),
        (&["trace", "--demo", "-o", &below], "cannot write"),
        (&["trace", "--demo", "--iterations", "0"], "1..=10000"),
        (&["bench", "--html", &below], "cannot write"),
        (&["bench", "--json", &below], "cannot write"),
        (&["report", RECORDED], "nothing to make of it"),
        (
            &["report", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")],
            "none of `cargo xtask bench`",
        ),
    ] {
        let (result, _, err) = output(args);
        assert!(!result.status.success(), "{args:?}");
        assert!(err.contains(said), "{args:?}: {err}");
        assert!(!err.contains("Finished"), "{args:?} built: {err}");
    }
}

#[test]
fn launch_ends_as_the_failed_rank_does() {
    let script = "[ $MSCCLPP_RANK = 1 ] && exit 42; exit 0";
    let (result, _, err) = output(&["launch", "-n", "2", "--", "/bin/sh", "-c", script]);
    assert_eq!(result.status.code(), Some(42));
    assert!(err.contains("rank 1 failed first"), "{err}");
    let args = ["launch", "-n", "1", "--timeout", "1", "--", "sleep", "300"];
    let (result, _, err) = output(&args);
    assert_eq!(result.status.code(), Some(124));
    assert!(err.contains("timeout of 1 s"), "{err}");
}

/// Starts two ranks that sleep, sends `signal` to the launcher, and returns its
/// status after both ranks are gone.
fn ended_by(signal: Signal) -> Option<i32> {
    let args = [
        "launch",
        "-n",
        "2",
        "--",
        "/bin/sh",
        "-c",
        "echo $$; exec sleep 300",
    ];
    // A launcher that is killed leaves its temporary directory behind.
    let temporary = tempfile::tempdir().unwrap();
    let mut launcher = xtask(&args)
        .env("TMPDIR", temporary.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(launcher.stdout.take().unwrap()).lines();
    let pids: Vec<String> = lines
        .take(2)
        .map(|line| line.unwrap().split_once(' ').unwrap().1.to_owned())
        .collect();
    kill_process(Pid::from_child(&launcher), signal).unwrap();
    let status = launcher.wait().unwrap();
    assert!(pids.iter().all(|pid| gone(pid)));
    status.code()
}

#[test]
fn ctrl_c_ends_the_ranks() {
    assert_eq!(ended_by(Signal::INT), Some(130));
}

#[test]
fn the_ranks_die_with_a_launcher_that_is_killed() {
    assert_eq!(ended_by(Signal::KILL), None);
}

/// `test-mp --repeat` of a suite of one rank that is this script.
fn repeat(directory: &Path, script: &str, args: &[&str]) -> Command {
    let suite = directory.join("suite");
    // Another process writes it: what this one has open for writing, one that another test starts
    // meanwhile keeps open for a moment, and a program that is being written cannot be started.
    let text = format!("#!/bin/sh\n{script}\n");
    let written = Command::new("/bin/sh")
        .args(["-c", r#"printf %s "$1" > "$0" && chmod 700 "$0""#])
        .args([suite.as_os_str(), OsStr::new(&text)])
        .status();
    assert!(written.unwrap().success());
    let mut command = xtask(&["test-mp", "-n", "1", "--program", suite.to_str().unwrap()]);
    // Logs go to the target directory.
    command
        .args(args)
        .env("CARGO_TARGET_DIR", directory.join("target"));
    command
}

#[test]
fn repeated_runs_are_counted_and_those_that_fail_are_named_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    // The third run fails: each adds a byte to a file.
    let script = r#"
        printf x >> "$(dirname "$0")/runs"
        [ "$(wc -c < "$(dirname "$0")/runs")" = 3 ] || { echo 1 passed, 0 failed, 0 skipped; exit; }
        echo 'FAIL Flush.Deep (5 ms)'; echo why; echo 0 passed, 1 failed, 0 skipped; exit 1"#;
    let args = ["--repeat", "4", "--busy", "1"];
    let output = repeat(directory.path(), script, &args).output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}");
    assert!(out.contains("run 2: ok, 1 passed"), "{out}");
    assert!(out.contains("run 3: FAILED, 0 passed"), "{out}");
    assert!(out.contains("FAILED 1 of 4 runs: Flush.Deep\n"), "{out}");
    let end = "4 runs, 1 failed\n3 passed, 1 failed, 0 skipped\n";
    assert!(out.ends_with(end), "{out}");
    let (_, log) = out.split_once("see ").unwrap();
    let log = fs::read_to_string(log.lines().next().unwrap()).unwrap();
    assert!(log.contains("[0] why\n"), "{log}");
}

#[test]
fn ctrl_c_ends_repeated_runs_and_counts_those_that_ended() {
    let directory = tempfile::tempdir().unwrap();
    let script = r#"echo $$ > "$(dirname "$0")/pid.$$"; exec sleep 300"#;
    let child = repeat(directory.path(), script, &["--repeat", "9", "--jobs", "2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + PATIENCE;
    let started = || -> Vec<String> {
        let files = fs::read_dir(directory.path()).unwrap().flatten();
        let pids = files.filter(|file| file.file_name().as_encoded_bytes().starts_with(b"pid."));
        pids.map(|file| fs::read_to_string(file.path()).unwrap())
            .filter(|text| text.ends_with('\n'))
            .collect()
    };
    while started().len() < 2 {
        assert!(Instant::now() < until, "two runs did not start");
        thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success());
    assert!(out.contains("\n0 runs, 0 failed\n"), "{out}");
    let pids = started();
    assert_eq!(pids.len(), 2, "a run was started after the signal");
    assert!(pids.iter().all(|pid| gone(pid.trim())));
}

/// Runs `script` as a rank under an `mpirun` that sets `rank` and `size` as
/// Hydra does.
fn as_rank(notes: &Path, rank: usize, size: usize, script: &str) -> Output {
    let notes = notes.to_str().unwrap();
    xtask(&[
        "rank-output",
        "--notes",
        notes,
        "--",
        "/bin/sh",
        "-c",
        script,
    ])
    .env_remove("OMPI_COMM_WORLD_RANK")
    .env("PMI_RANK", rank.to_string())
    .env("PMI_SIZE", size.to_string())
    .output()
    .unwrap()
}

#[test]
fn a_rank_under_mpirun_is_marked_unless_it_is_rank_0_and_its_end_is_noted() {
    let directory = tempfile::tempdir().unwrap();
    let notes = Notes::new(directory.path());
    let last = "2 passed, 1 failed, 0 skipped";
    let out = as_rank(directory.path(), 0, 2, &format!("echo hello; echo {last}"));
    assert_eq!(out.stdout, b"hello\n");
    assert_eq!(out.status.code(), Some(0));
    assert_eq!(notes.tally().unwrap().to_string(), last);
    assert_eq!(notes.problem(2).unwrap(), "rank 1 was stopped");
    // The other rank has ended: nothing is left for mpirun to end.
    let out = as_rank(directory.path(), 1, 2, "echo hello; kill -9 $$");
    assert_eq!(out.stdout, b"[1] hello\n");
    assert_eq!(out.status.code(), Some(0));
    assert!(notes.problem(2).unwrap().contains("signal: 9"));
}

#[test]
fn a_failed_rank_under_mpirun_fails_when_the_others_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let out = as_rank(directory.path(), 1, 2, "exit 5");
    assert_eq!(out.status.code(), Some(5));
    let notes = Notes::new(directory.path());
    assert!(
        notes
            .problem(2)
            .unwrap()
            .contains("rank 1 failed (exit status: 5)")
    );
}

#[test]
fn a_package_that_there_is_not_is_refused_with_those_that_there_are() {
    let (result, _, errors) = output(&["test-cpu", "--package", "mlx6-queue"]);
    assert!(!result.status.success());
    assert!(errors.contains("no package `mlx6-queue`"), "{errors}");
    assert!(errors.contains("mlx5-queue"), "{errors}");
}

#[test]
fn every_command_explains_itself() {
    for command in [
        "test-cpu", "test-mp", "bench", "plot", "report", "fetch", "check", "launch",
    ] {
        let (result, out, _) = output(&[command, "--help"]);
        assert!(result.status.success());
        assert!(
            out.contains(&format!("Usage: cargo xtask {command}")),
            "{out}"
        );
    }
    let (_, out, _) = output(&["--help"]);
    assert!(!out.contains("rank-output"));
}

/// Runs a command where cargo is all that is installed.
fn with_cargo_alone(args: &[&str], required: bool) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    for program in ["cargo", "rustc"] {
        let path = find_program(program).unwrap();
        std::os::unix::fs::symlink(path, directory.path().join(program)).unwrap();
    }
    let mut command = xtask(args);
    command
        .env("PATH", directory.path())
        .env_remove("RXE_VM")
        .envs(required.then_some(("RXE_VM", "required")));
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.contains("qemu-system-x86_64"), "{text}");
    assert!(text.contains("apt-get install"), "{text}");
    (output.status.code(), text)
}

#[test]
fn a_guest_that_cannot_be_is_a_skip_unless_it_is_required() {
    let run = ["rxe-run", "--", "true"];
    assert_eq!(with_cargo_alone(&run, false).0, Some(77));
    assert_eq!(with_cargo_alone(&run, true).0, Some(125));
    let (code, text) = with_cargo_alone(&["test-rxe"], false);
    assert_eq!(code, Some(0));
    assert!(text.contains("0 passed, 0 failed, 1 skipped"), "{text}");
    let (code, text) = with_cargo_alone(&["test-rxe"], true);
    assert_eq!(code, Some(1));
    assert!(text.contains("0 passed, 1 failed, 0 skipped"), "{text}");
}
