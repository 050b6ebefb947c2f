// SPDX-License-Identifier: MIT
//! The phases of a setup, with a gate after each. What was made so far belongs to this call: when a
//! gate does not open, returning lets go of it.

use std::sync::Mutex;
use std::time::Instant;

use mscclpp_bootstrap::gate::Cause;
use mscclpp_bootstrap::{Deadline, Gate, Plan, SetupError};

use super::counts::QueueCounts;
use super::edges::{Allocated, Joined};
use super::{GpuNetIoService, Ready, TRANSPORT};
use crate::error::{Error, Result};

/// One rank's way through the phases.
struct Phases<'a> {
    gate: Gate<'a>,
    /// A step has failed because of another rank, which tells so itself at the next gate.
    waits_for: Option<Error>,
}

impl Phases<'_> {
    /// Until when a step may wait for other ranks and still come to its gate in time.
    fn step_ends(&self) -> Deadline {
        let left = self.gate.steps_end_at();
        Deadline::after(left.saturating_duration_since(Instant::now()))
    }

    fn pass<T>(&mut self, phase: &str, step: Result<T>) -> Result<T> {
        let step = match self.waits_for.take() {
            Some(error) => Err(error),
            None => step,
        };
        (self.gate.pass(phase, step.map_err(Cause::from))).map_err(of_setup)
    }

    /// The same for a step in which ranks wait for each other. One that has learned that another rank
    /// has failed comes to the gate as if nothing were: only the one that has failed says so, and is
    /// named.
    fn pass_together(&mut self, phase: &str, step: Result<()>) -> Result<()> {
        let step = match step {
            Err(error @ Error::PeerFailed { .. }) => {
                self.pass(phase, Ok(()))?;
                self.waits_for = Some(error);
                return Ok(());
            }
            step => step,
        };
        self.pass(phase, step)
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
    let gate = (Gate::new(bootstrap, tag, deadline))
        .map_err(|error| Error::bootstrap("beginning a setup", rank, error))?;
    let mut phases = Phases {
        gate,
        waits_for: None,
    };
    let (context, config) = (service.communicator.context(), service.endpoint);

    let plan = Plan::agree(counts.plan(rank, world), &mut phases.gate).map_err(of_setup)?;
    phases.pass("capability", context.check_capability(&config))?;
    phases.pass("port", context.check_port(TRANSPORT, service.gid_index))?;
    let allocated = Allocated::new(context, config, &plan);
    let allocated = phases.pass("allocate", allocated)?;

    // First all send, and then all receive: nobody waits for one that could not send.
    let setup = (tag, phases.gate.number());
    let sent = allocated.send(service, setup, phases.step_ends());
    phases.pass("exchange", sent)?;
    let joined = allocated.receive(service, setup, phases.step_ends());
    let mut joined = phases.pass("exchange", joined)?;
    let wired = joined.wire();
    phases.pass_together("wire", wired)?;

    phases.pass("INIT", joined.each(|end, _| end.queue().init()))?;
    let step = joined.each(|end, path| end.queue().ready_to_receive(path));
    phases.pass("RTR", step)?;
    let step = joined.each(|end, path| end.queue().ready_to_send(path));
    phases.pass("RTS", step)?;
    let step = joined.test(phases.step_ends());
    phases.pass("self-test", step)?;
    let connections = publish(service, joined, tag);
    let connections = phases.pass("publish", connections)?;
    phases.gate.finish();
    let connections = Mutex::new(connections);
    Ok(Ready { plan, connections })
}

fn publish(
    service: &GpuNetIoService,
    joined: Joined,
    tag: u32,
) -> Result<Vec<crate::connection::Connection>> {
    let connections = joined.publish(service.communicator.context(), service.endpoint)?;
    for (peer, connection) in &connections {
        service.communicator.adopt(connection, *peer, tag);
    }
    Ok(connections.into_iter().map(|(_, made)| made).collect())
}

fn of_setup(error: SetupError) -> Error {
    Error::Setup(error.into())
}
