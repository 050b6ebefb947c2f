// SPDX-License-Identifier: MIT
//! The machine that a report was made on, and who else used it meanwhile.

use std::fs;
use std::process::Command;

use serde::Serialize;

use crate::backend::Executor;

/// Facts that tell reports apart, and that say how far to trust one. What cannot be read is `None`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    /// Model of the processor.
    cpu: String,
    /// Cores that this process may use.
    cores: usize,
    /// Operating system and release.
    kernel: String,
    /// How the first core's clock is governed.
    governor: Option<String>,
    /// Name and driver of each GPU, where kernels run on GPUs.
    gpus: Vec<String>,
    /// Compiler.
    rustc: &'static str,
    /// Build profile.
    profile: &'static str,
    /// Processes that ran or wanted to, mean of a minute, before the run.
    load_1min_start: Option<f64>,
    /// The same after it: the ranks are among them.
    load_1min_end: Option<f64>,
    /// CPU time of other processes during the run, of that of all cores.
    cpu_others_percent: Option<f64>,
    /// CPU time that the hypervisor gave to others, likewise.
    cpu_stolen_percent: Option<f64>,
}

/// What was so when a run began.
pub(super) struct Watch {
    load: Option<f64>,
    cpu: Option<CpuTime>,
    own: Option<u64>,
}

impl Watch {
    /// From now on.
    pub(super) fn start() -> Self {
        Self {
            load: load_1min(),
            cpu: CpuTime::now(),
            own: own_ticks(),
        }
    }

    /// CPU time of this process, and of its children that have ended, since the start: ticks.
    pub(super) fn own(&self) -> Option<u64> {
        Some(own_ticks()?.saturating_sub(self.own?))
    }

    /// The machine, when the run has ended, whose ranks took so many ticks.
    pub(super) fn end(&self, executor: Executor, ranks: Option<u64>) -> Machine {
        let spent = (self.cpu.as_ref()).and_then(|start| Some(CpuTime::now()?.since(start)));
        let percent = |ticks: u64| {
            let total = spent.as_ref()?.total;
            (total > 0).then(|| 100.0 * ticks as f64 / total as f64)
        };
        let others = (spent.as_ref().zip(ranks)).map(|(s, ranks)| s.user.saturating_sub(ranks));
        let uname = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        Machine {
            cpu: cpu(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: format!("{} {}", text(uname.sysname()), text(uname.release())),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            gpus: match executor {
                Executor::Host => Vec::new(),
                Executor::Cuda => gpus(),
            },
            rustc: env!("CONFORMANCE_RUSTC"),
            profile: env!("CONFORMANCE_PROFILE"),
            load_1min_start: self.load,
            load_1min_end: load_1min(),
            cpu_others_percent: others.and_then(percent),
            cpu_stolen_percent: spent.as_ref().and_then(|spent| percent(spent.stolen)),
        }
    }
}

/// Ticks of all cores together.
#[derive(Debug, PartialEq)]
struct CpuTime {
    /// In programs.
    user: u64,
    /// Given to other machines.
    stolen: u64,
    /// Of whatever kind.
    total: u64,
}

impl CpuTime {
    fn now() -> Option<Self> {
        Self::parse(&read("/proc/stat")?)
    }

    /// The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal; what
    /// guests took follows, and is in user already. Interrupts are nobody's.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks = line.split_whitespace().take(8).map(str::parse);
        let ticks: Vec<u64> = ticks.collect::<Result<_, _>>().ok()?;
        let [user, nice, system, .., stolen] = ticks[..] else {
            return None;
        };
        Some(Self {
            user: user + nice + system,
            stolen,
            total: ticks.iter().sum(),
        })
    }

    fn since(&self, start: &Self) -> Self {
        Self {
            user: self.user.saturating_sub(start.user),
            stolen: self.stolen.saturating_sub(start.stolen),
            total: self.total.saturating_sub(start.total),
        }
    }
}

/// utime, stime, cutime and cstime of /proc/self/stat, behind the program's name, which may hold
/// blanks.
fn own_ticks() -> Option<u64> {
    let text = read("/proc/self/stat")?;
    let (_, fields) = text.rsplit_once(") ")?;
    let ticks = fields.split(' ').skip(11).take(4).map(str::parse::<u64>);
    ticks.sum::<Result<u64, _>>().ok()
}

fn load_1min() -> Option<f64> {
    read("/proc/loadavg")?.split(' ').next()?.parse().ok()
}

fn cpu() -> String {
    let info = read("/proc/cpuinfo").unwrap_or_default();
    let model = |line: &str| {
        Some(
            line.strip_prefix("model name")?
                .split_once(':')?
                .1
                .to_owned(),
        )
    };
    (info.lines().find_map(model)).map_or(std::env::consts::ARCH.to_owned(), |name| {
        name.trim().to_owned()
    })
}

fn gpus() -> Vec<String> {
    let output = Command::new("nvidia-smi")
        .args(["--query-gpu=name,driver_version", "--format=csv,noheader"])
        .output();
    let text = output.map_or(Vec::new(), |output| output.stdout);
    let text = String::from_utf8_lossy(&text);
    text.lines().map(|line| line.trim().to_owned()).collect()
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn cpu_time_is_told_apart_by_who_took_it() {
        let text = "cpu  100 20 30 4000 50 6 7 8 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n";
        let time = CpuTime::parse(text).unwrap();
        let expected = CpuTime {
            user: 150,
            stolen: 8,
            total: 4221,
        };
        assert_eq!(time, expected);
        assert_eq!(CpuTime::parse("cpu  1 2\n"), None);
        assert_eq!(CpuTime::parse(""), None);
    }

    #[test]
    fn a_busy_thread_of_our_own_is_not_anothers() {
        let watch = Watch::start();
        let start = Instant::now();
        let mut own = 0;
        while own < 5 {
            assert!(start.elapsed() < Duration::from_secs(60), "{own} ticks");
            own = watch.own().unwrap();
        }
        let machine = watch.end(Executor::Host, Some(own));
        assert!(machine.cores >= 1 && machine.load_1min_start.is_some());
        let all = watch.end(Executor::Host, Some(0));
        assert!(all.cpu_others_percent > machine.cpu_others_percent);
    }
}
