// SPDX-License-Identifier: MIT
//! What the kernel says of this process: its threads, and the CPU time that it used; and whether the
//! machine is a guest.

use std::fs;
use std::time::Duration;

/// One line a thread: name, state, and what it waits for in the kernel. Tells what a hung test was
/// doing.
pub fn threads() -> Vec<String> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    let mut lines: Vec<String> = tasks
        .flatten()
        .filter_map(|task| {
            let read = |file: &str| fs::read_to_string(task.path().join(file)).ok();
            let state = fields_after_name(&read("stat")?)?.first()?.clone();
            let wait = read("wchan").filter(|name| name != "0").unwrap_or_default();
            Some(
                format!("{} {state} {wait}", read("comm")?.trim_end())
                    .trim_end()
                    .to_owned(),
            )
        })
        .collect();
    lines.sort();
    lines
}

/// Whether this is a guest of `cargo xtask rxe-run`, whose cores are emulated.
pub fn is_guest() -> bool {
    std::env::var_os("RXE_VM_GUEST").is_some()
}

/// CPU time of all threads of this process, those that ended included.
pub fn cpu_time() -> anyhow::Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields = fields_after_name(&stat)
        .ok_or_else(|| anyhow::anyhow!("unexpected form of /proc/self/stat: {stat}"))?;
    // Fields 14 and 15 of proc_pid_stat(5), counted from 1; the state, field 3, is the first here.
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(Duration::from_secs_f64(
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
    ))
}

/// The fields behind the name, which stands in brackets and may hold spaces and brackets itself.
fn fields_after_name(stat: &str) -> Option<Vec<String>> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<String> = rest.split_whitespace().map(str::to_owned).collect();
    (fields.len() > 12).then_some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 10 20 0 0 33 44 0 0 20 0 1";
        let fields = fields_after_name(stat).unwrap();
        assert_eq!(
            (fields[0].as_str(), fields[11].as_str(), fields[12].as_str()),
            ("S", "33", "44")
        );
    }

    #[test]
    fn work_shows_in_the_cpu_time() {
        let (start, before) = (Instant::now(), cpu_time().unwrap());
        while cpu_time().unwrap() < before + Duration::from_millis(50) {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "no CPU time seen"
            );
        }
    }

    #[test]
    fn a_thread_is_listed_by_its_name() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let builder = std::thread::Builder::new().name("listed".into());
        let thread = builder.spawn(move || stopped.recv()).unwrap();
        // A thread names itself once it runs.
        let start = Instant::now();
        while !threads().iter().any(|line| line.starts_with("listed ")) {
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", threads());
            std::thread::yield_now();
        }
        drop(stop);
        let _ = thread.join().unwrap();
    }
}
