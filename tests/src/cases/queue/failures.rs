// SPDX-License-Identifier: MIT
//! Requests that the peer's NIC refuses: both ends are told, and end.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use mscclpp_port::{Error, QueueForm, SignalMode, Status};
use mscclpp_softnic::DeviceConfig;

use super::{KINDS, nic, setup};
use crate::backend::Backend;
use crate::fixture::{Fixture, error_of, has_refused};
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, Flood, Steps};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let name = format!("PortChannelErrorTest.GpuNetIoBadKey{}", backend.suffix);
    registry.add_on(backend, name, bad_key).ranks(2, 2);
    let name = format!(
        "PortChannelErrorTest.GpuNetIoNetworkThatIsDown{}",
        backend.suffix
    );
    registry.add_on(backend, name, network_down).ranks(2, 2);
}

/// A key that the peer never gave out. The poster's calls fail with the syndrome on its host; a
/// kernel of the peer that waits is released.
fn bad_key(context: &Context, backend: &'static Backend) -> TestResult {
    /// On a busy machine the poster's NIC may not run until the peer's word has long been there.
    const TRIES: usize = 10;
    for kind in KINDS {
        let mut told = false;
        for _ in 0..TRIES {
            told = told || bad_key_told(context, backend, kind)?;
        }
        ensure!(
            told,
            "{kind:?}: the host has the syndrome in none of {TRIES} tries"
        );
    }
    Ok(())
}

/// Whether the poster's host has the syndrome, and not only the peer's word that it refused something.
fn bad_key_told(
    context: &Context,
    backend: &'static Backend,
    kind: (QueueForm, SignalMode),
) -> anyhow::Result<bool> {
    /// What a remote NIC answers to a key that it does not know.
    const REMOTE_ACCESS: u8 = 0x13;
    let fixture = Fixture::with(context, backend, &setup(kind, DeviceConfig::default()))?;
    let buffer = fixture.buffer(64)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let mut told = false;
    let start = Instant::now();
    if context.rank() == 0 {
        fixture.meet()?;
        let mut handle = link.channel.device_handle();
        // Of another index; keys are big-endian.
        handle.dst_memory.key ^= 0x0000_5500;
        context.stage("post with a key that nobody has");
        let flood = Flood::new(handle, &link.channel, 8)?.launch(1)?;
        let statuses = flood.finish(context.deadline())?;
        ensure!(
            statuses == [Status::QueueError],
            "{kind:?}: the last call returns {statuses:?}"
        );
        let error = error_of(&link.connection)?;
        let right = match &error {
            Error::QueueFailed { rank, syndrome, .. } => {
                told = syndrome.0 == REMOTE_ACCESS;
                told && *rank == Some(1)
            }
            _ => has_refused(&error, 1),
        };
        ensure!(right, "{kind:?}: the host's error is {error:?}");
        // Later calls fail at once.
        let calls = [(0, Call::Signal), (0, Call::Flush), (0, Call::Wait)];
        let done = Steps::launch(&[link.base()], &calls)?.finish(context.deadline())?;
        for done in done {
            let status = done.status()?;
            ensure!(
                status == Status::QueueError,
                "a later call returns {status:?}"
            );
        }
    } else {
        let lists: [&[_]; 1] = [&[(0, Call::Wait); 1]];
        let waiting = Steps::launch_threads(&[link.base()], &lists)?;
        fixture.meet()?;
        context.stage("wait for a peer that is refused");
        let status = waiting
            .finish_threads(context.deadline())?
            .pop()
            .and_then(|mut done| done.pop())
            .context("a wait")?
            .status()?;
        ensure!(
            matches!(status, Status::QueueError | Status::PeerDown),
            "{kind:?}: the wait returns {status:?}"
        );
        let error = error_of(&link.connection)?;
        ensure!(error.status() == status, "{kind:?}: {status:?}, {error:?}");
    }
    let took = start.elapsed();
    ensure!(took < Duration::from_secs(5), "{kind:?}: it took {took:?}");
    Ok(context.exchange(told)?[0])
}

/// Packets that nobody answers any more: the poster's NIC gives up, its kernels end and its host has
/// the reason; so does the peer's kernel, which only waits.
fn network_down(context: &Context, backend: &'static Backend) -> TestResult {
    /// What a NIC says that repeats a request too often.
    const RETRIES_USED_UP: u8 = 0x15;
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(64)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let calls = match context.rank() {
        0 => vec![(0, Call::PutWithSignal(link.first(8))), (0, Call::Flush)],
        _ => vec![(0, Call::Wait)],
    };
    fixture.meet()?;
    if context.rank() == 0 {
        nic(&fixture)?.set_link_up(false);
    }
    context.stage("nobody answers");
    let start = Instant::now();
    let done = Steps::launch(&[link.base()], &calls)?.finish(context.deadline())?;
    let status = done.last().context("a call")?.status()?;
    let took = start.elapsed();
    let error = error_of(&link.connection)?;
    ensure!(
        status == Status::QueueError && error.status() == status,
        "the last call returns {status:?}; on the host: {error:?}"
    );
    let right = match (context.rank(), &error) {
        (0, Error::QueueFailed { rank, syndrome, .. }) => {
            *rank == Some(1) && syndrome.0 == RETRIES_USED_UP
        }
        (1, Error::PeerFailed { rank, .. }) => *rank == Some(0),
        _ => false,
    };
    ensure!(right, "on the host: {error:?}");
    ensure!(took < Duration::from_secs(15), "it took {took:?}");
    context.measure("until the last call returned", took.as_secs_f64(), "s");
    context.meet()
}
