// SPDX-License-Identifier: MIT
//! The C++ compiler, asked for its version.

use std::io::{ErrorKind, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use mscclpp_bootstrap::Deadline;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::ending::{join_within, wait_until};

/// How long a compiler may take to say its version: it may lie on a slow file system.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// How long one that was killed may take to be gone.
const DIES_WITHIN: Duration = Duration::from_secs(1);
/// The most of its words that is read.
const MOST: u64 = 4096;

/// What the compiler that the user names, else the first of the usual ones, says of itself.
pub(super) fn ask() -> Result<String, String> {
    let named = std::env::var("CXX").ok().filter(|name| !name.is_empty());
    match &named {
        Some(name) => ask_one_of(&[name], ANSWERS_WITHIN),
        None => ask_one_of(&["c++", "g++", "clang++"], ANSWERS_WITHIN),
    }
}

fn ask_one_of(names: &[&str], time: Duration) -> Result<String, String> {
    let mut tried = Vec::new();
    for name in names {
        match version(name, time) {
            Ok(text) => return Ok(text.lines().next().unwrap_or(name).to_owned()),
            Err(why) => tried.push(format!("{name}: {why}")),
        }
    }
    Err(tried.join("; "))
}

fn version(name: &str, time: Duration) -> Result<String, String> {
    // There may be flags behind the program's name.
    let mut words = name.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).arg("--version");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    // A group of its own: a script's programs end with it.
    command.stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    if !wait_until(Deadline::after(time), || {
        !matches!(child.try_wait(), Ok(None))
    }) {
        end(child);
        return Err(format!("no answer within {time:?}"));
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(status.to_string());
    }
    words_of(&mut child).map_err(|error| error.to_string())
}

/// What one that has ended has said. What it started may have its output open still, and is not
/// waited for.
fn words_of(child: &mut Child) -> std::io::Result<String> {
    let mut said = Vec::new();
    if let Some(output) = child.stdout.take() {
        rustix::io::ioctl_fionbio(&output, true)?;
        match output.take(MOST).read_to_end(&mut said) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// Kills it, with what it has started. Where it hangs in the kernel, who reaps it is left behind.
fn end(mut child: Child) {
    // It is not reaped yet, so that no other has its number.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    let reaper = thread::Builder::new().name("reaps a compiler".into());
    if let Ok(reaper) = reaper.spawn(move || drop(child.wait())) {
        join_within(reaper, Deadline::after(DIES_WITHIN), None);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A compiler of these lines of sh, and the directory that it is in.
    fn fake(lines: &str) -> (tempfile::TempDir, String) {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("c++");
        fs::write(&script, lines).unwrap();
        let name = format!("sh {}", script.display());
        (directory, name)
    }

    #[test]
    fn a_compiler_that_hangs_is_ended() {
        let (hung, hangs) = fake("echo $$ > $0.pid; echo hung; sleep 3600; echo");
        // Until the first has written, the time may have been too short for a busy machine.
        let mut time = Duration::from_millis(200);
        let process = loop {
            let why = ask_one_of(&[&hangs], time).unwrap_err();
            assert_eq!(why, format!("{hangs}: no answer within {time:?}"));
            match fs::read_to_string(hung.path().join("c++.pid")) {
                Ok(number) if !number.trim().is_empty() => break number,
                _ => time *= 2,
            }
            assert!(time < PATIENCE, "the program does not start");
        };
        let process = Path::new("/proc").join(process.trim());
        let gone = wait_until(Deadline::after(PATIENCE), || !process.exists());
        assert!(gone, "{} is left", process.display());
    }

    #[test]
    fn the_first_that_answers_is_taken() {
        let (_directory, answers) = fake("echo \"fake $1\"; echo more");
        let said = ask_one_of(&["/no/such/program", &answers], PATIENCE);
        assert_eq!(said, Ok("fake --version".into()));
    }

    #[test]
    fn what_a_compiler_has_started_is_not_waited_for() {
        let (_directory, name) = fake("sleep 30 & echo fake; exit 0");
        assert_eq!(ask_one_of(&[&name], PATIENCE), Ok("fake".into()));
    }

    #[test]
    fn a_compiler_that_fails_says_how() {
        let (_directory, name) = fake("exit 3");
        let why = ask_one_of(&[&name], PATIENCE).unwrap_err();
        assert_eq!(why, format!("{name}: exit status: 3"));
    }
}
