// SPDX-License-Identifier: MIT
//! Latency, bandwidth and posting rate between ranks 0 and 1, beside plain TCP or plain copies between
//! GPUs in the same run.
//!
//! Every figure has a reference that moves the same bytes between the same processes, measured in
//! turns with it. Payload is checked outside of the time.

mod aligned;
mod bandwidth;
mod fifo;
mod host;
mod join;
mod latency;
mod options;
#[cfg(feature = "cuda")]
mod peer_copy;
mod perftest;
mod posting;
mod reference;
mod row;
mod session;
mod split;
mod stats;

use std::time::Duration;

use crate::backend::{Executor, Setup};
use crate::fixture::Fixture;
use crate::harness::Context;

pub use options::Options;
pub use posting::posting;
pub use row::{Row, table, write_json};

use reference::Reference;
use session::Session;

/// A suite: its name, what it measures on a backend.
#[derive(Clone, Copy)]
pub struct Suite {
    /// As in the report.
    pub name: &'static str,
    measure: Measure,
}

#[derive(Clone, Copy)]
enum Measure {
    /// Once for each backend, by ranks 0 and 1.
    Channels(fn(&mut Session<'_>, &'static str) -> anyhow::Result<Vec<Row>>),
    /// Once, by rank 0.
    Alone(fn(&Context, Executor, &'static str) -> anyhow::Result<Vec<Row>>),
}

/// Every suite, in the order in which they run.
pub const SUITES: [Suite; 12] = [
    Suite {
        name: "ping-pong",
        measure: Measure::Channels(latency::ping_pong),
    },
    Suite {
        name: "packet-ping-pong",
        measure: Measure::Channels(latency::packets),
    },
    Suite {
        name: "split",
        measure: Measure::Channels(split::split),
    },
    Suite {
        name: "post",
        measure: Measure::Channels(split::post),
    },
    Suite {
        name: "stream",
        measure: Measure::Channels(bandwidth::stream),
    },
    Suite {
        name: "bidirectional",
        measure: Measure::Channels(bandwidth::bidirectional),
    },
    Suite {
        name: "one-qp",
        measure: Measure::Channels(|s, name| bandwidth::queues(s, name, 1)),
    },
    Suite {
        name: "two-qp",
        measure: Measure::Channels(|s, name| bandwidth::queues(s, name, 2)),
    },
    Suite {
        name: "four-qp",
        measure: Measure::Channels(|s, name| bandwidth::queues(s, name, 4)),
    },
    Suite {
        name: "ib",
        measure: Measure::Channels(perftest::perftest),
    },
    Suite {
        name: "fifo",
        measure: Measure::Alone(fifo::fifo),
    },
    Suite {
        name: "join",
        measure: Measure::Alone(join::join),
    },
];

/// Runs the suites of this name, or all, with one executor, on the backends whose name contains a
/// text, or all. All ranks of the context call it; rank 0 gets the rows.
pub fn run(
    context: &Context,
    executor: Executor,
    suite: Option<&str>,
    backend: Option<&str>,
) -> anyhow::Result<Vec<Row>> {
    let wanted = |name: &str| backend.is_none_or(|text| name.contains(text));
    let selected = |candidate: &&Suite| suite.is_none_or(|name| name == candidate.name);
    let mut rows = Vec::new();
    for (_, backend) in (executor.backends()).filter(|(_, backend)| wanted(backend.name)) {
        let obstacles = context.exchange((backend.obstacle)(context))?;
        if let Some(obstacle) = obstacles.into_iter().flatten().next() {
            if context.rank() == 0 {
                eprintln!("SKIP {} ({}): {obstacle}", backend.name, executor.name());
            }
            continue;
        }
        let fixture = Fixture::with(context, backend, &Setup::default())?;
        let reference = Reference::of(&fixture, context.profile().pick(16 << 20, 128 << 20))?;
        let mut session = Session { fixture, reference };
        for suite in SUITES.iter().filter(selected) {
            if let Measure::Channels(measure) = suite.measure {
                rows.extend(measure(&mut session, suite.name)?);
            }
        }
        session.fixture.meet()?;
    }
    for suite in SUITES.iter().filter(selected) {
        if let Measure::Alone(measure) = suite.measure {
            if context.rank() == 0 {
                eprintln!("{}", suite.name);
                rows.extend(measure(context, executor, suite.name)?);
            }
            context.meet()?;
        }
    }
    Ok(rows)
}

/// How long a whole run may take; the launcher has a limit of its own.
pub const LIMIT: Duration = Duration::from_secs(3600);

/// Conversions from seconds an iteration.
fn microseconds(seconds: f64) -> f64 {
    seconds * 1e6
}

/// As [`microseconds`], to 10^9 bytes a second.
fn gigabytes(bytes: u64) -> impl Fn(f64) -> f64 {
    move |seconds| bytes as f64 / seconds * 1e-9
}
