// SPDX-License-Identifier: MIT
//! Two ranks that measure in turns with their reference.

use std::time::Duration;

use crate::backend::{Backend, Setup};
use crate::fixture::Fixture;
use crate::harness::Context;
use crate::provider::Provider;

use super::point::{Point, bytes};
use super::reference::Reference;
use super::report::Skipped;

/// No sample takes longer, unless one iteration does.
const LONGEST: Duration = Duration::from_millis(100);

/// How often something is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Before the first sample.
    pub(super) warm_up: u64,
    /// In one sample, at most.
    pub(super) iterations: u64,
    /// How many samples.
    pub(super) samples: u64,
}

impl Plan {
    /// For a message size: many iterations and samples of small ones, about `volume` bytes a sample
    /// of large ones, of which few tell as much and take longer.
    pub(super) fn for_bytes(bytes: u64, most: u64, volume: u64) -> Self {
        let iterations = (volume / bytes.max(1)).clamp(1, most);
        let samples = if bytes <= 64 << 10 { 31 } else { 7 };
        Self {
            warm_up: iterations.min(10),
            iterations,
            samples,
        }
    }
}

/// How many iterations take a time, by those that rank 0 has just made: the ranks have to agree. At
/// least one.
pub(super) fn fit(
    context: &Context,
    iterations: u64,
    took: Duration,
    time: Duration,
) -> anyhow::Result<u64> {
    let took = context.exchange(took.as_secs_f64())?[0];
    let fit = time.as_secs_f64() / took.max(1e-9) * iterations as f64;
    Ok((fit as u64).max(1))
}

/// Seconds an iteration, of ours and of the reference.
pub(super) struct Samples {
    ours: Vec<f64>,
    reference: Vec<f64>,
}

impl Samples {
    /// Every sample of both, converted.
    pub(super) fn point(
        &self,
        point: Point,
        convert: impl Fn(f64) -> f64,
    ) -> anyhow::Result<Point> {
        let all = |samples: &[f64]| samples.iter().map(|s| convert(*s)).collect::<Vec<_>>();
        point.with(&all(&self.ours), &all(&self.reference))
    }
}

/// What the suites of one backend share.
pub(super) struct Session<'a> {
    /// The backend's channels.
    pub(super) fixture: Fixture<'a>,
    /// What moves the same bytes.
    pub(super) reference: Reference,
    /// What could not be measured.
    pub(super) skipped: Vec<Skipped>,
}

impl<'a> Session<'a> {
    /// Joins with the other rank, with room for messages of `bytes`.
    pub(super) fn open(
        context: &'a Context,
        backend: &'static Backend,
        bytes: u64,
    ) -> anyhow::Result<Self> {
        let fixture = Fixture::with(context, backend, &Setup::default())?;
        let reference = Reference::of(&fixture, bytes)?;
        Ok(Self {
            fixture,
            reference,
            skipped: Vec::new(),
        })
    }

    /// Notes that a suite cannot run on this backend.
    pub(super) fn skip(&mut self, suite: &'static str, reason: impl Into<String>) {
        let backend = self.fixture.backend;
        self.skipped.push(Skipped {
            suite: Some(suite),
            backend: backend.name,
            executor: backend.executor.name(),
            reason: reason.into(),
        });
    }

    /// What the suite runs in.
    pub(super) fn context(&self) -> &Context {
        self.fixture.context
    }

    /// A point without figures.
    pub(super) fn point(
        &self,
        suite: &'static str,
        metric: &'static str,
        unit: &'static str,
    ) -> Point {
        let Backend {
            name,
            provider,
            executor,
            ..
        } = self.fixture.backend;
        Point {
            suite,
            backend: Some(name),
            provider: provider.map(|_| Provider::chosen().name()),
            executor: Some(executor.name()),
            queues: Some(1),
            threads: Some(1),
            metric,
            unit,
            reference_name: Some(self.reference.name()),
            ..Point::default()
        }
    }

    /// As [`Plan::for_bytes`], with more in a sample where a launch and the end of a kernel would
    /// else be much of it.
    pub(super) fn plan(&self, bytes: u64, most: u64, volume: u64) -> Plan {
        let more = match self.reference {
            Reference::Tcp(_) => 1,
            #[cfg(feature = "cuda")]
            Reference::PeerCopy(_) => 32,
        };
        Plan::for_bytes(bytes, most * more.min(4), volume * more)
    }

    /// Takes samples in turns: ours, the reference, ours... Both ranks call it. The two functions
    /// do so many iterations and return their time.
    pub(super) fn sample(
        &mut self,
        plan: Plan,
        mut ours: impl FnMut(&Fixture<'_>, u64) -> anyhow::Result<Duration>,
        mut reference: impl FnMut(&mut Reference, u64) -> anyhow::Result<Duration>,
    ) -> anyhow::Result<Samples> {
        let mut samples = Samples {
            ours: Vec::new(),
            reference: Vec::new(),
        };
        let took = ours(&self.fixture, plan.warm_up)?;
        reference(&mut self.reference, plan.warm_up)?;
        let fit = fit(self.context(), plan.warm_up, took, LONGEST)?;
        let iterations = plan.iterations.min(fit);
        for _ in 0..plan.samples {
            self.fixture.meet()?;
            let took = ours(&self.fixture, iterations)?;
            samples.ours.push(took.as_secs_f64() / iterations as f64);
            self.fixture.meet()?;
            let took = reference(&mut self.reference, iterations)?;
            samples
                .reference
                .push(took.as_secs_f64() / iterations as f64);
        }
        Ok(samples)
    }

    /// Says on rank 0 what is measured now.
    pub(super) fn progress(&self, suite: &str, what: &str, size: Option<u64>) {
        if self.context().rank() == 0 {
            let size = size
                .map(|size| format!(", {}", bytes(size)))
                .unwrap_or_default();
            eprintln!("{}: {suite}: {what}{size}", self.fixture.backend.name);
        }
    }
}
