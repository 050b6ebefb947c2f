// SPDX-License-Identifier: MIT
//! Which ends can be connected at all, and queues that come up and do nothing.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use mscclpp_port::{EndpointConfig, Error, IbMode, QueueForm, SignalMode, Status, TransportKind};
use mscclpp_softnic::{Capabilities, DeviceConfig, FaultPlan};

use super::{nic, setup};
use crate::backend::{Backend, Setup};
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, PingPong, Steps};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let suffix = backend.suffix;
    let mut add = |test: &str, body: fn(&Context, &'static Backend) -> TestResult| {
        registry
            .add(
                format!("PortChannelPolicyTest.GpuNetIo{test}{suffix}"),
                move |c| body(c, backend),
            )
            .ranks(2, 2);
    };
    add("SignalsWithoutAtomics", without_atomics);
    add("AtomicsAreRequired", atomics_are_required);
    add("AtomicsOfThePeerAreRequired", peers_atomics);
    add("OtherModesAreRefused", other_modes);
    add("OtherTransportsAreRefused", other_transports);
    add("QueueThatNeverExecutes", never_executes);
}

fn no_atomics() -> DeviceConfig {
    DeviceConfig {
        capabilities: Capabilities {
            atomics: false,
            ..Capabilities::default()
        },
        ..DeviceConfig::default()
    }
}

/// Signals are writes then; sums there are none.
fn without_atomics(context: &Context, backend: &'static Backend) -> TestResult {
    let kind = (QueueForm::Exclusive, SignalMode::InlineWrite);
    let fixture = Fixture::with(context, backend, &setup(kind, no_atomics()))?;
    let buffer = fixture.buffer(4096)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let calls = [(0, Call::Accumulate(link.dst, 0, 1)), (0, Call::Flush)];
    let done = Steps::launch(&[link.base()], &calls)?.finish(context.deadline())?;
    let statuses = (done[0].status()?, done[1].status()?);
    ensure!(
        statuses == (Status::Unsupported, Status::Ok),
        "an accumulate and a flush return {statuses:?}"
    );
    let kernel = PingPong {
        channel: link.channel,
        buffer,
        elements: 1024,
        iterations: 200,
        polls: None,
        rank: context.rank(),
        flush: true,
        check: true,
        answers_last: false,
    };
    kernel.launch(4)?.finish(context.deadline())?;
    fixture.meet()
}

/// What became of this rank's end: connected and tried out, or why not.
fn connect(fixture: &Fixture<'_>, endpoint: EndpointConfig) -> Result<(), Error> {
    let deadline = fixture.context.deadline();
    let peer = 1 - fixture.context.rank();
    let connection = (fixture.communicator.connect(endpoint, peer, 0)?).get_by(deadline)?;
    connection.wait_connected(deadline)
}

/// No queue is left on this rank's NIC, or was there.
fn no_queue(fixture: &Fixture<'_>) -> TestResult {
    let start = Instant::now();
    loop {
        let live = nic(fixture)?.counters().live;
        if live.queue_pairs == 0 {
            return Ok(());
        }
        ensure!(
            start.elapsed() < Duration::from_secs(5),
            "a queue is left: {live:?}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Atomic signals on a NIC without atomics: refused before there is a queue.
fn atomics_are_required(context: &Context, backend: &'static Backend) -> TestResult {
    for kind in [
        (QueueForm::Shared, SignalMode::Atomic),
        (QueueForm::Exclusive, SignalMode::Atomic),
    ] {
        let fixture = Fixture::with(context, backend, &setup(kind, no_atomics()))?;
        let error = (connect(&fixture, fixture.endpoint).err())
            .with_context(|| format!("{kind:?} is taken"))?;
        let usage = matches!(error, Error::InvalidUsage { .. });
        ensure!(
            usage && error.to_string().contains("atomics"),
            "{kind:?}: {error:?}"
        );
        no_queue(&fixture)?;
        fixture.meet()?;
    }
    Ok(())
}

/// Rank 1 has a NIC without atomics and would signal by writes; rank 0 signals by atomics. Neither
/// connects.
fn peers_atomics(context: &Context, backend: &'static Backend) -> TestResult {
    let (signal_mode, nic) = match context.rank() {
        0 => (SignalMode::Atomic, DeviceConfig::default()),
        _ => (SignalMode::InlineWrite, no_atomics()),
    };
    let setup = setup((QueueForm::Exclusive, signal_mode), nic);
    let fixture = Fixture::with(context, backend, &setup)?;
    let error = (connect(&fixture, fixture.endpoint).err()).context("it is taken")?;
    ensure!(
        matches!(error, Error::IncompatibleEndpoints { .. }),
        "{error:?}"
    );
    no_queue(&fixture)?;
    fixture.meet()
}

/// One end for kernels that post, one for a host that posts: both ranks are told.
fn other_modes(context: &Context, backend: &'static Backend) -> TestResult {
    for mode in [IbMode::Default, IbMode::Host, IbMode::HostNoAtomic] {
        let fixture = Fixture::new(context, backend)?;
        let mut endpoint = fixture.endpoint;
        if context.rank() == 1 {
            endpoint.ib.mode = mode;
        }
        let error = (connect(&fixture, endpoint).err())
            .with_context(|| format!("{mode:?} beside GpuNetIo is taken"))?;
        // This build has no host that posts: the end that asks for one is told, and its peer that
        // there is none.
        let typed = matches!(
            error,
            Error::IncompatibleEndpoints { .. }
                | Error::Unsupported { .. }
                | Error::PeerGaveUp { .. }
        );
        ensure!(typed, "{mode:?}: {error:?}");
        no_queue(&fixture)?;
        fixture.meet()?;
    }
    Ok(())
}

fn other_transports(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let endpoint = match context.rank() {
        0 => fixture.endpoint,
        _ => EndpointConfig::new(TransportKind::Ethernet),
    };
    let error = (connect(&fixture, endpoint).err()).context("it is taken")?;
    ensure!(
        matches!(error, Error::IncompatibleTransports { rank: Some(rank), .. } if rank != context.rank()),
        "{error:?}"
    );
    no_queue(&fixture)?;
    fixture.meet()
}

/// A known fault of real adapters: a queue takes doorbells and executes nothing. Its channel is never
/// handed out, nor its peer's.
fn never_executes(context: &Context, backend: &'static Backend) -> TestResult {
    let mut setup = Setup::default();
    if context.rank() == 1 {
        setup.nic.faults = FaultPlan {
            never_execute: true,
            ..FaultPlan::default()
        };
    }
    let fixture = Fixture::with(context, backend, &setup)?;
    let buffer = fixture.buffer(64)?;
    let start = Instant::now();
    let error = (fixture.pair_in_place(0, &buffer).err()).context("its channel is handed out")?;
    let took = start.elapsed();
    let typed = match context.rank() {
        0 => matches!(
            error.downcast_ref(),
            Some(Error::PeerFailed { rank: Some(1), .. })
        ),
        _ => matches!(error.downcast_ref(), Some(Error::QueueNotExecuting { .. })),
    };
    ensure!(typed, "{error:?}");
    ensure!(took < Duration::from_secs(20), "it took {took:?}");
    context.measure("until the channel was refused", took.as_secs_f64(), "s");
    context.meet()
}
