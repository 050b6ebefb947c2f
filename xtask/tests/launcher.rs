// SPDX-License-Identifier: MIT
//! The local launcher with `/bin/sh` for ranks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use xtask::launch::{Launch, LaunchError};
use xtask::supervise::{Interrupt, Line, Stream};

/// Longer than anything here takes, shorter than what a rank would sleep.
const PATIENCE: Duration = Duration::from_secs(60);

fn shell(ranks: usize, script: &str) -> Launch {
    Launch::new(ranks, "/bin/sh")
        .args(["-c", script])
        .timeout(PATIENCE)
        .grace(Duration::from_secs(20))
}

/// Rank, stream and text.
type Lines = Vec<(usize, Stream, String)>;

fn run(launch: &Launch) -> (Result<(), LaunchError>, Lines) {
    let mut lines = Vec::new();
    let result = launch.run(&Interrupt::none(), &mut |line: &Line| {
        let text = String::from_utf8_lossy(&line.bytes).into_owned();
        lines.push((line.index, line.stream, text));
        Ok(())
    });
    (result, lines)
}

fn alive(pid: &str) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let (_, rest) = stat.rsplit_once(')').unwrap();
    !rest.trim_start().starts_with('Z')
}

#[test]
fn each_rank_is_told_who_it_is() {
    let script = "echo $MSCCLPP_RANK $MSCCLPP_WORLD_SIZE $MSCCLPP_LOCAL_RANK $MSCCLPP_LOCAL_SIZE";
    let (result, mut lines) = run(&shell(3, script));
    result.unwrap();
    lines.sort_by_key(|(rank, ..)| *rank);
    for (expected, (rank, stream, text)) in lines.iter().enumerate() {
        assert_eq!((*rank, *stream), (expected, Stream::Out));
        assert_eq!(*text, format!("{rank} 3 {rank} 3"));
    }
    assert_eq!(lines.len(), 3);
}

#[test]
fn the_ranks_share_a_secret_that_nobody_else_can_read_and_that_goes_with_them() {
    let script = "stat -c '%a %a' $MSCCLPP_SECRET_FILE; stat -c %a $(dirname $MSCCLPP_SECRET_FILE)
        cat $MSCCLPP_SECRET_FILE; echo; echo $MSCCLPP_SECRET_FILE; echo $MSCCLPP_ROOT";
    let (result, lines) = run(&shell(2, script));
    result.unwrap();
    let of = |rank| -> Vec<String> {
        let lines = lines.iter().filter(|(r, ..)| *r == rank);
        lines.map(|(.., text)| text.clone()).collect()
    };
    let (mine, other) = (of(0), of(1));
    assert_eq!(mine, other);
    assert_eq!((&*mine[0], &*mine[1]), ("600 600", "700"));
    assert_eq!(mine[2].len(), 64, "256 bits in hex");
    let secret = Path::new(&mine[3]);
    let root = mine[4].strip_prefix("file:").unwrap();
    assert!(!secret.exists() && !Path::new(root).exists());
    assert!(!secret.parent().unwrap().exists());
    // Another job has another secret.
    let (_, lines) = run(&shell(1, script));
    assert_ne!(lines[2].2, mine[2]);
}

#[test]
fn the_ranks_use_loopback_unless_told_otherwise() {
    let (result, lines) = run(&shell(1, "echo $MSCCLPP_SOCKET_IFNAME"));
    result.unwrap();
    let expected = std::env::var("MSCCLPP_SOCKET_IFNAME").unwrap_or("=lo".into());
    assert_eq!(lines[0].2, expected);
}

#[test]
fn the_program_gets_its_arguments_as_they_are_and_no_input() {
    let launch = Launch::new(1, "/bin/sh")
        .args(["-c", "printf '%s\\n' \"$@\"; cat", "sh", "a b", "*", ""])
        .timeout(PATIENCE);
    let (result, lines) = run(&launch);
    result.unwrap();
    let texts: Vec<&str> = lines.iter().map(|(.., text)| text.as_str()).collect();
    assert_eq!(texts, ["a b", "*", ""]);
}

#[test]
fn a_failing_rank_is_named_and_the_others_may_end_by_themselves() {
    // Rank 0 ends when it sees that rank 1 has failed, as ranks do.
    let script = "flag=$(dirname $MSCCLPP_SECRET_FILE)/flag
        if [ $MSCCLPP_RANK = 1 ]; then touch $flag; exit 7; fi
        while [ ! -e $flag ]; do sleep 0.01; done; echo rank 1 is gone >&2; exit 3";
    let (result, lines) = run(&shell(2, script));
    let error = result.unwrap_err();
    // Both fail; which is seen first is up to the system.
    assert!(matches!(error.exit_code(), 7 | 3), "{error}");
    assert!(matches!(&error, LaunchError::Rank { stopped, .. } if stopped.is_empty()));
    assert!(lines.contains(&(0, Stream::Err, "rank 1 is gone".into())));
}

#[test]
fn ranks_that_do_not_end_after_a_failure_are_stopped_and_named() {
    let script = "if [ $MSCCLPP_RANK = 2 ]; then kill -9 $$; fi; sleep 300";
    let started = Instant::now();
    let (result, _) = run(&shell(3, script).grace(Duration::from_millis(200)));
    let error = result.unwrap_err();
    assert!(started.elapsed() < PATIENCE);
    assert_eq!(error.exit_code(), 128 + 9);
    let text = error.to_string();
    assert!(text.contains("rank 2 failed first"), "{text}");
    assert!(text.contains("rank 0, 1"), "{text}");
}

#[test]
fn a_hanging_rank_is_killed_at_the_timeout_even_if_it_ignores_sigterm() {
    let script =
        "trap '' TERM; echo $$; [ $MSCCLPP_RANK = 0 ] && exit 0; while :; do sleep 1; done";
    let (result, lines) = run(&shell(2, script).timeout(Duration::from_secs(3)));
    let error = result.unwrap_err();
    assert_eq!(error.exit_code(), 124);
    assert!(matches!(&error, LaunchError::Deadline { running, .. } if running == &[1]));
    assert_eq!(lines.len(), 2);
    for (.., pid) in lines {
        assert!(!alive(&pid));
    }
}

#[test]
fn what_a_rank_leaves_running_is_killed_and_does_not_hold_the_launcher() {
    // In a process group of its own, and with the launcher's pipe open.
    let (result, lines) = run(&shell(1, "timeout 400 sleep 300 & echo $!"));
    result.unwrap();
    assert_eq!(lines.len(), 1);
    assert!(!alive(&lines[0].2));
}

#[test]
fn an_interrupt_ends_the_job() {
    let interrupt = Interrupt::none();
    let result = shell(2, "echo up; sleep 300").run(&interrupt, &mut |_| {
        interrupt.raise(2);
        Ok(())
    });
    let error = result.unwrap_err();
    assert!(matches!(error, LaunchError::Interrupted { signal: 2 }));
    assert_eq!(error.exit_code(), 130);
}

#[test]
fn a_reader_that_goes_away_ends_the_job() {
    let result = shell(2, "yes").run(&Interrupt::none(), &mut |_| {
        Err(std::io::ErrorKind::BrokenPipe.into())
    });
    assert!(matches!(result, Err(LaunchError::Output(_))));
}

#[test]
fn a_program_that_cannot_be_started_is_named() {
    let (result, _) = run(&Launch::new(2, "/no/such/program"));
    let text = result.unwrap_err().to_string();
    assert!(
        text.contains("rank 0") && text.contains("/no/such/program"),
        "{text}"
    );
    let (result, _) = run(&Launch::new(0, "/bin/true"));
    assert!(matches!(result, Err(LaunchError::NoRanks)));
}

#[test]
fn long_lines_binary_bytes_and_missing_line_feeds_come_through() {
    let script = "head -c 200000 /dev/zero; printf '\\n\\377'";
    let mut bytes = Vec::new();
    shell(1, script)
        .run(&Interrupt::none(), &mut |line| {
            bytes.push(line.bytes.clone());
            Ok(())
        })
        .unwrap();
    assert_eq!(bytes.last().unwrap(), b"\xff");
    let zeros: usize = bytes.iter().flatten().filter(|byte| **byte == 0).count();
    assert_eq!(zeros, 200_000);
}

#[test]
fn sixty_four_ranks_run_at_once() {
    // Each waits for the last, so they must all be there.
    let script = "dir=$(dirname $MSCCLPP_SECRET_FILE); touch $dir/r$MSCCLPP_RANK
        while [ ! -e $dir/r63 ]; do sleep 0.05; done";
    run(&shell(64, script)).0.unwrap();
}

#[test]
fn the_temporary_directory_is_private() {
    let rendezvous = xtask::launch::Rendezvous::create().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let secret = rendezvous.secret_file();
    assert_eq!(mode(&secret), 0o600);
    assert_eq!(mode(secret.parent().unwrap()), 0o700);
    assert!(!rendezvous.root_file().exists());
    drop(rendezvous);
    assert!(!secret.exists());
}
