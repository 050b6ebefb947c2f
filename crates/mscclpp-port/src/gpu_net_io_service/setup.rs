// SPDX-License-Identifier: MIT
//! The phases of a setup, with a gate after each. What was made so far belongs to this call: when a
//! gate does not open, returning lets go of it.

use std::sync::Mutex;
use std::time::Instant;

use mscclpp_bootstrap::gate::Cause;
use mscclpp_bootstrap::{Deadline, Gate, Plan, SetupError};

use super::counts::QueueCounts;
use super::edges::Allocated;
use super::{GpuNetIoService, Ready, TRANSPORT, is_of_another};
use crate::error::{Error, Result};

/// The phases after the plan. First all send their records, and then all receive: nobody waits for
/// one that could not send.
pub(super) const PHASES: [&str; 11] = [
    "capability",
    "port",
    "allocate",
    "exchange",
    "exchange",
    "wire",
    "INIT",
    "RTR",
    "RTS",
    "self-test",
    "publish",
];

/// One rank's way through the phases.
struct Phases<'a> {
    gate: Gate<'a>,
    passed: usize,
}

impl Phases<'_> {
    /// Until when a step may wait for other ranks and still come to its gate in time.
    fn step_ends(&self) -> Deadline {
        let left = self.gate.steps_end_at();
        Deadline::after(left.saturating_duration_since(Instant::now()))
    }

    /// Takes the step of a phase, which knows until when it may wait for other ranks, and comes to the
    /// gate. A step that has failed because of another rank does so as if
    /// nothing were: the other one says so itself, or does not come, and is named, instead of one that
    /// needed it. If that does not happen, this rank says at the next gate what it knows.
    fn pass<T>(&mut self, phase: &str, step: impl FnOnce(Deadline) -> Result<T>) -> Result<T> {
        debug_assert_eq!(PHASES.get(self.passed), Some(&phase));
        let _span = tracing::info_span!("phase", rank = self.gate.rank(), phase).entered();
        let step = step(self.step_ends());
        self.passed += 1;
        let passed = match (step, PHASES.get(self.passed)) {
            (Err(error), Some(next)) if is_of_another(&error) => {
                let together = self.gate.pass(phase, Ok(()));
                together.and_then(|()| self.gate.pass(next, Err(Cause::from(error))))
            }
            (step, _) => self.gate.pass(phase, step.map_err(Cause::from)),
        };
        passed.map_err(of_setup)
    }
}

pub(super) fn run(
    service: &GpuNetIoService,
    counts: &QueueCounts<'_>,
    tag: u32,
    deadline: Deadline,
) -> Result<Ready> {
    let bootstrap = &**service.bootstrap();
    let (rank, world) = (bootstrap.rank(), bootstrap.world_size());
    let _span = tracing::info_span!("setup", rank, world, tag).entered();
    let gate = (Gate::new(bootstrap, tag, deadline))
        .map_err(|error| Error::bootstrap("beginning a setup", rank, error))?;
    let mut phases = Phases { gate, passed: 0 };
    let (context, config) = (service.communicator.context(), service.endpoint);

    let plan = {
        let _span = tracing::info_span!("phase", rank, phase = "plan").entered();
        Plan::agree(counts.plan(rank, world), &mut phases.gate).map_err(of_setup)?
    };
    phases.pass("capability", |_| context.check_capability(&config))?;
    phases.pass("port", |_| context.check_port(TRANSPORT, service.gid_index))?;
    let allocated = phases.pass("allocate", |_| Allocated::new(context, config, &plan))?;

    let setup = (tag, phases.gate.number());
    phases.pass("exchange", |ends| allocated.send(service, setup, ends))?;
    let mut joined = phases.pass("exchange", |ends| allocated.receive(service, setup, ends))?;
    phases.pass("wire", |_| joined.wire())?;

    phases.pass("INIT", |_| joined.each(|end, _| end.queue().init()))?;
    phases.pass("RTR", |_| {
        joined.each(|end, path| end.queue().ready_to_receive(path))
    })?;
    phases.pass("RTS", |_| {
        joined.each(|end, path| end.queue().ready_to_send(path))
    })?;
    phases.pass("self-test", |ends| joined.test(ends))?;
    let connections = phases.pass("publish", |_| joined.publish(context, config))?;
    phases.gate.finish();
    let connections = Mutex::new(connections);
    Ok(Ready { plan, connections })
}

fn of_setup(error: SetupError) -> Error {
    Error::Setup(error.into())
}
