// SPDX-License-Identifier: MIT
//! What this process holds, between two eras: then everything that an era has made is gone.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How long threads that have nothing to do any more may take to end.
const SETTLES: Duration = Duration::from_secs(1);

/// One look.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sample {
    /// Since the start of the run, in seconds.
    pub(super) at: f64,
    /// Resident memory, in KiB.
    pub(super) resident: f64,
    /// What the allocator has handed out and not got back, in KiB.
    pub(super) heap: f64,
    pub(super) descriptors: f64,
    pub(super) threads: f64,
    /// Of the NIC in software that lasts as long as the run, registrations among them.
    pub(super) objects: f64,
}

impl Sample {
    /// Looks, once what has grown since the last look had time to go.
    pub(super) fn take(begun: Instant, objects: u64, last: Option<&Self>) -> anyhow::Result<Self> {
        let until = Instant::now() + SETTLES;
        let counts = || -> anyhow::Result<(f64, f64)> {
            let count =
                |directory| -> anyhow::Result<f64> { Ok(fs::read_dir(directory)?.count() as f64) };
            // One descriptor is that of the directory.
            Ok((count("/proc/self/fd")? - 1.0, count("/proc/self/task")?))
        };
        let more = |(descriptors, threads): (f64, f64)| {
            last.is_some_and(|last| descriptors > last.descriptors || threads > last.threads)
        };
        let mut found = counts()?;
        while more(found) && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
            found = counts()?;
        }
        Ok(Self {
            at: begun.elapsed().as_secs_f64(),
            resident: resident()?,
            heap: heap(),
            descriptors: found.0,
            threads: found.1,
            objects: objects as f64,
        })
    }
}

fn resident() -> anyhow::Result<f64> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|word| word.parse::<f64>().ok());
    let pages = pages.ok_or_else(|| anyhow::anyhow!("unexpected form of statm: {statm}"))?;
    Ok(pages * rustix::param::page_size() as f64 / 1024.0)
}

fn heap() -> f64 {
    // SAFETY: it reads the allocator's own counts under the allocator's locks.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as f64 / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_shows() {
        let begun = Instant::now();
        let before = Sample::take(begun, 3, None).unwrap();
        let kept = vec![1_u8; 8 << 20];
        let files: Vec<_> = (0..20)
            .map(|_| fs::File::open("/dev/null").unwrap())
            .collect();
        let after = Sample::take(begun, 3, None).unwrap();
        assert!(
            after.resident >= before.resident + 4096.0,
            "{before:?} {after:?}"
        );
        // A sanitizer has an allocator of its own, which the C library's figures leave out.
        if std::env::var_os("MSCCLPP_SANITIZED").is_none() {
            assert!(after.heap >= before.heap + 4096.0, "{before:?} {after:?}");
        }
        // Other tests of this process open and close some, too.
        assert!(
            after.descriptors >= before.descriptors + 10.0,
            "{before:?} {after:?}"
        );
        assert!(before.threads >= 1.0);
        drop((kept, files));
    }
}
