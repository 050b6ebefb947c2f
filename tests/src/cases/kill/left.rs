// SPDX-License-Identifier: MIT
//! What a job leaves behind in its process and on its machine.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::threads;

/// How long threads that have nothing to do any more may take to end.
const SETTLES: Duration = Duration::from_secs(3);

/// How the names of a launcher's directories begin.
const LAUNCHER: &str = "mscclpp-launch-";
/// Files of the driver of GPUs, which opens and maps more of them as it needs and keeps them.
const DRIVERS: &str = "/dev/nvidia";

/// What there is, and how often.
pub(super) struct Left(BTreeMap<String, usize>);

impl Left {
    /// The descriptors, threads and shared mappings of this process.
    pub(super) fn of_process() -> Self {
        let mut all = BTreeMap::new();
        let mut add = |what: String| *all.entry(what).or_default() += 1;
        for entry in fs::read_dir("/proc/self/fd")
            .into_iter()
            .flatten()
            .flatten()
        {
            if let Ok(target) = fs::read_link(entry.path()) {
                let target = target.to_string_lossy().into_owned();
                // The directory that is being read.
                if !target.starts_with("/proc/") && !target.starts_with(DRIVERS) {
                    add(format!("descriptor {target}"));
                }
            }
        }
        for thread in threads() {
            // Without its state, which changes.
            add(format!(
                "thread {}",
                thread.split(' ').next().unwrap_or_default()
            ));
        }
        for line in fs::read_to_string("/proc/self/maps")
            .unwrap_or_default()
            .lines()
        {
            let shared = line
                .split(' ')
                .nth(1)
                .is_some_and(|flags| flags.ends_with('s'));
            let path = line.split_once('/').map_or("", |(_, path)| path);
            if shared && !format!("/{path}").starts_with(DRIVERS) {
                add(format!("mapping /{path}"));
            }
        }
        Self(all)
    }

    /// Shared memory and temporary files of this machine that this project's names are on, but for
    /// those of launchers: other jobs may start and end meanwhile, and these jobs have none.
    pub(super) fn of_machine() -> Self {
        let mut all = BTreeMap::new();
        for directory in ["/dev/shm", "/tmp", "/run"] {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.contains("mscclpp") && !name.starts_with(LAUNCHER) {
                    all.insert(entry.path().display().to_string(), 1);
                }
            }
        }
        Self(all)
    }

    /// What is more than there was, once that does not change any more; empty if all is well.
    pub(super) fn since(&self, now: fn() -> Self) -> String {
        let begun = Instant::now();
        loop {
            let more: Vec<String> = (now().0.into_iter())
                .filter(|(what, count)| *count > self.0.get(what).copied().unwrap_or(0))
                .map(|(what, count)| format!("{what} ({count})"))
                .collect();
            if more.is_empty() || begun.elapsed() > SETTLES {
                return more.join(", ");
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_socket_is_left() {
        let before = Left::of_process();
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(
            before
                .since(Left::of_process)
                .contains("descriptor socket:")
        );
        drop(socket);
    }

    #[test]
    fn a_launchers_directory_is_not_the_jobs() {
        let before = Left::of_machine();
        let directory = |prefix: &str| tempfile::Builder::new().prefix(prefix).tempdir_in("/tmp");
        let (launchers, other) = (directory(LAUNCHER).unwrap(), directory("mscclpp-").unwrap());
        let left = before.since(Left::of_machine);
        assert!(left.contains(other.path().to_str().unwrap()), "{left}");
        assert!(!left.contains(launchers.path().to_str().unwrap()), "{left}");
    }
}
