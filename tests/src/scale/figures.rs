// SPDX-License-Identifier: MIT
//! What a rank holds, and what it has said.

use std::fs;

use anyhow::Context as _;
use mscclpp_bootstrap::TcpBootstrap;
use serde::{Deserialize, Serialize};

/// Of one rank, at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Open descriptors of the process. Where ranks are threads, the share of each.
    pub descriptors: f64,
    /// Threads, likewise.
    pub threads: f64,
    /// Connections of the bootstrap.
    pub connections: f64,
    /// Bytes that it has written to them since the rank began.
    pub sent: f64,
    /// Bytes that it has read from them.
    pub received: f64,
    /// Memory of the process that is nobody else's, in KiB.
    pub private: f64,
}

/// Of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// The most of each.
    pub max: Figures,
    /// The mean of each.
    pub mean: Figures,
}

impl Figures {
    /// Of a rank that is this process.
    pub fn of_process(bootstrap: &TcpBootstrap) -> anyhow::Result<Self> {
        let (descriptors, threads) = process()?;
        Ok(Self {
            descriptors,
            threads,
            private: private()?,
            ..Self::of_connections(bootstrap)
        })
    }

    /// What the bootstrap knows by itself.
    pub fn of_connections(bootstrap: &TcpBootstrap) -> Self {
        let wire = bootstrap.wire_bytes();
        Self {
            connections: bootstrap.connections() as f64,
            sent: wire.sent as f64,
            received: wire.received as f64,
            ..Self::default()
        }
    }

    fn each(self, other: Self, both: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            descriptors: both(self.descriptors, other.descriptors),
            threads: both(self.threads, other.threads),
            connections: both(self.connections, other.connections),
            sent: both(self.sent, other.sent),
            received: both(self.received, other.received),
            private: both(self.private, other.private),
        }
    }
}

impl Span {
    /// Of some ranks.
    pub fn of(all: &[Figures]) -> Self {
        let fold = |both: fn(f64, f64) -> f64| {
            let start = Figures::default();
            all.iter()
                .fold(start, |folded, figures| folded.each(*figures, both))
        };
        let count = all.len().max(1) as f64;
        Self {
            max: fold(f64::max),
            mean: fold(|a, b| a + b).each(Figures::default(), |sum, _| sum / count),
        }
    }
}

/// Descriptors and threads of this process.
pub(super) fn process() -> anyhow::Result<(f64, f64)> {
    let count = |directory| -> anyhow::Result<f64> { Ok(fs::read_dir(directory)?.count() as f64) };
    // One descriptor is that of the directory.
    Ok((count("/proc/self/fd")? - 1.0, count("/proc/self/task")?))
}

fn private() -> anyhow::Result<f64> {
    let text = fs::read_to_string("/proc/self/smaps_rollup")?;
    let of = |name: &str| -> anyhow::Result<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.with_context(|| format!("smaps_rollup has no number for {name}"))
    };
    Ok(of("Private_Clean:")? + of("Private_Dirty:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_and_the_mean_of_each() {
        let figures = |descriptors, sent| Figures {
            descriptors,
            sent,
            ..Figures::default()
        };
        let span = Span::of(&[figures(1.0, 30.0), figures(3.0, 10.0)]);
        assert_eq!(span.max, figures(3.0, 30.0));
        assert_eq!(span.mean, figures(2.0, 20.0));
    }

    #[test]
    fn this_process_has_something_of_each() {
        let (descriptors, threads) = process().unwrap();
        assert!(descriptors >= 3.0 && threads >= 1.0);
        assert!(private().unwrap() > 100.0);
    }
}
