// SPDX-License-Identifier: MIT
//! NICs that refuse a step of what it takes to have a channel.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use mscclpp_port::{Error, Status};
use mscclpp_softnic::{ControlOperation, FaultPlan, State};

use super::nic;
use crate::backend::{Backend, Setup};
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, Steps};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let name = format!(
        "PortChannelPolicyTest.GpuNetIoRefusedSteps{}",
        backend.suffix
    );
    registry.add_on(backend, name, refused_steps).ranks(2, 2);
}

/// Rank 1's NIC refuses one step, each in turn: neither rank gets its channel, both are told why, and
/// what was made is let go. The second try goes well.
fn refused_steps(context: &Context, backend: &'static Backend) -> TestResult {
    for operation in [
        ControlOperation::CreateCompletionQueue,
        ControlOperation::CreateQueuePair,
        ControlOperation::AllocateDoorbellPage,
        ControlOperation::Transition(State::Init),
        ControlOperation::Transition(State::ReadyToReceive),
        ControlOperation::Transition(State::ReadyToSend),
    ] {
        let fixture = Fixture::with(context, backend, &Setup::strict())?;
        let buffer = fixture.buffer(64)?;
        let memory = fixture.register(&buffer)?;
        let before = nic(&fixture)?.counters().live;
        if context.rank() == 1 {
            nic(&fixture)?.set_faults(FaultPlan::refuse(operation));
        }
        context.stage(format!("refused: {operation}"));
        let start = Instant::now();
        let error = (connect(&fixture).err()).with_context(|| format!("{operation}: no error"))?;
        let took = start.elapsed();
        ensure!(
            took < Duration::from_secs(5),
            "{operation}: told after {took:?}"
        );
        let typed = match context.rank() {
            0 => matches!(
                error,
                Error::PeerGaveUp { rank: 1, .. } | Error::PeerFailed { rank: Some(1), .. }
            ),
            _ => error.to_string().contains("refused by the fault plan"),
        };
        ensure!(typed, "{operation}: {error:?}");
        context.stage(format!("nothing is left: {operation}"));
        while nic(&fixture)?.counters().live != before {
            let live = nic(&fixture)?.counters().live;
            ensure!(
                start.elapsed() < Duration::from_secs(10),
                "{operation}: {live:?} is left instead of {before:?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        fixture.meet()?;
        let link = fixture.pair(1, &memory, &memory)?;
        let calls = [(0, Call::Signal), (0, Call::Wait), (0, Call::Flush)];
        Steps::run(&[link.base()], &calls, context.deadline())?;
        fixture.meet()?;
    }
    refused_registration(context, backend)
}

fn connect(fixture: &Fixture<'_>) -> Result<(), Error> {
    let deadline = fixture.context.deadline();
    let peer = 1 - fixture.context.rank();
    let connection = (fixture.communicator.connect(fixture.endpoint, peer, 0)?).get_by(deadline)?;
    connection.wait_connected(deadline)
}

/// Memory that the NIC does not take is not registered.
fn refused_registration(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::with(context, backend, &Setup::strict())?;
    let buffer = fixture.buffer(64)?;
    nic(&fixture)?.set_faults(FaultPlan::refuse(ControlOperation::Register));
    let error = (fixture.register(&buffer).err()).context("it is registered")?;
    let error: &Error = error.downcast_ref().context("a typed error")?;
    ensure!(
        error.status() == Status::QueueError
            && error.to_string().contains("refused by the fault plan"),
        "{error:?}"
    );
    fixture.register(&buffer)?;
    fixture.meet()
}
