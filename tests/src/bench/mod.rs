// SPDX-License-Identifier: MIT
//! Latency, bandwidth and posting rate between ranks 0 and 1, beside plain TCP or plain copies between
//! GPUs in the same run.
//!
//! Every figure has a reference that moves the same bytes between the same processes, measured in
//! turns with it. Payload is checked outside of the time.

mod aligned;
mod bandwidth;
mod fifo;
mod join;
mod latency;
mod machine;
mod one_way;
mod options;
#[cfg(feature = "cuda")]
mod peer_copy;
mod perftest;
mod point;
mod posting;
mod reference;
mod report;
mod session;
mod split;
mod stats;
mod sweep;

use std::time::Duration;

use crate::backend::{Backend, Executor};
use crate::harness::Context;

pub use options::Options;
pub use point::{Point, table};
pub use posting::posting;
pub use report::{Measured, Run, Skipped, Source};

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
    Channels(fn(&mut Session<'_>, &'static str) -> anyhow::Result<Vec<Point>>),
    /// Once, by ranks 0 and 1, on all backends in turns.
    Together(fn(&mut [Session<'_>], &'static str) -> anyhow::Result<Vec<Point>>),
    /// Once, by rank 0.
    Alone(fn(&Context, Executor, &'static str) -> anyhow::Result<Vec<Point>>),
}

/// Every suite, in the order in which they run.
pub const SUITES: [Suite; 13] = [
    Suite {
        name: "sweep",
        measure: Measure::Together(sweep::sweep),
    },
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
        name: "one-way",
        measure: Measure::Channels(one_way::one_way),
    },
    Suite {
        name: "post",
        measure: Measure::Channels(split::post),
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
/// text, or all. All ranks of the context call it; rank 0 gets the points, and each part of them as
/// soon as it is measured.
pub fn run(
    context: &Context,
    executor: Executor,
    suite: Option<&str>,
    backend: Option<&str>,
    mut as_soon_as_measured: impl FnMut(&[Point]),
) -> anyhow::Result<Measured> {
    let selected = |candidate: &&Suite| suite.is_none_or(|name| name == candidate.name);
    let suites: Vec<&Suite> = SUITES.iter().filter(selected).collect();
    let mut found = Measured::default();
    let mut take = |found: &mut Measured, points: Vec<Point>| {
        if !points.is_empty() {
            as_soon_as_measured(&points);
        }
        found.points.extend(points);
    };
    let backends = usable(context, executor, backend, &mut found)?;
    for suite in &suites {
        if let Measure::Together(measure) = suite.measure {
            let sessions = (backends.iter()).map(|b| Session::open(context, b, sweep::LARGEST));
            let mut sessions = sessions.collect::<anyhow::Result<Vec<_>>>()?;
            take(&mut found, measure(&mut sessions, suite.name)?);
            for session in sessions {
                found.skipped.extend(session.skipped);
                session.fixture.meet()?;
            }
        }
    }
    for backend in backends {
        let largest = context.profile().pick(16 << 20, 128 << 20);
        let mut session = Session::open(context, backend, largest)?;
        for suite in &suites {
            if let Measure::Channels(measure) = suite.measure {
                take(&mut found, measure(&mut session, suite.name)?);
            }
        }
        found.skipped.extend(session.skipped);
        session.fixture.meet()?;
    }
    for suite in &suites {
        if let Measure::Alone(measure) = suite.measure {
            if context.rank() == 0 {
                eprintln!("{}", suite.name);
                take(&mut found, measure(context, executor, suite.name)?);
            }
            context.meet()?;
        }
    }
    Ok(found)
}

/// The backends of this name that can run here.
fn usable(
    context: &Context,
    executor: Executor,
    name: Option<&str>,
    found: &mut Measured,
) -> anyhow::Result<Vec<&'static Backend>> {
    let mut usable = Vec::new();
    for (_, backend) in executor.backends() {
        if name.is_some_and(|text| !backend.name.contains(text)) {
            continue;
        }
        let obstacles = context.exchange((backend.obstacle)(context))?;
        let Some(reason) = obstacles.into_iter().flatten().next() else {
            usable.push(backend);
            continue;
        };
        if context.rank() == 0 {
            eprintln!("SKIP {} ({}): {reason}", backend.name, executor.name());
        }
        found.skipped.push(Skipped {
            suite: None,
            backend: backend.name,
            executor: executor.name(),
            reason,
        });
    }
    Ok(usable)
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
