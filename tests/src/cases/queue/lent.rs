// SPDX-License-Identifier: MIT
//! Payload that the receiver's NIC in software fetches from the sender's memory, instead of getting
//! it over the wire between the two.

use std::time::Duration;

use anyhow::ensure;

use super::{nic, strict};
use crate::backend::{Backend, Executor, Setup};
use crate::fixture::{Fixture, Link};
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, PingPong, Steps};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let name = format!(
        "PortChannelOneToOneTest.GpuNetIoFetchesFromThePeer{}",
        backend.suffix
    );
    registry.add_on(backend, name, fetches).ranks(2, 2);
}

const WORDS: u64 = 12_345;
const ITERATIONS: u64 = 30;

/// What this rank's NIC has fetched from the peer's memory, and mappings of it.
fn mapped(fixture: &Fixture<'_>) -> anyhow::Result<(u64, u64)> {
    let counters = nic(fixture)?.counters();
    Ok((counters.bytes_mapped, counters.mappings))
}

/// Puts and gets of both ranks, until both have mapped the other's memory; then all goes that way.
fn fetches(context: &Context, backend: &'static Backend) -> TestResult {
    /// The host's memory cannot be mapped by others.
    const ON_HOST: &str = "a NIC in software maps its peer's memory on GPUs only";
    context.skip_unless((backend.executor == Executor::Host).then(|| ON_HOST.to_owned()))?;
    let setup = Setup {
        nic: strict(),
        ..Setup::default()
    };
    let fixture = Fixture::with(context, backend, &setup)?;
    let buffer = fixture.buffer(4 * WORDS)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let ping_pong = || -> TestResult {
        let kernel = PingPong {
            channel: link.channel.clone(),
            buffer: buffer.clone(),
            elements: WORDS,
            iterations: ITERATIONS,
            polls: None,
            rank: context.rank(),
            flush: true,
            check: true,
            answers_last: true,
        };
        kernel.launch(4)?.finish(context.deadline())?;
        fixture.meet()
    };
    context.stage("until the memory is mapped");
    loop {
        ping_pong()?;
        let both = context.exchange(mapped(&fixture)?)?;
        if both.iter().all(|(bytes, _)| *bytes > 0) {
            break;
        }
        ensure!(
            context.deadline().remaining() > Duration::from_secs(20),
            "bytes fetched from the peer, and mappings, of each rank: {both:?}"
        );
    }
    context.stage("with mapped memory");
    let (before, _) = mapped(&fixture)?;
    ping_pong()?;
    let (bytes, mappings) = mapped(&fixture)?;
    ensure!(
        bytes - before == 4 * WORDS * ITERATIONS && mappings == 1,
        "{} bytes of {} puts were fetched from the peer, {mappings} mappings",
        bytes - before,
        ITERATIONS
    );
    gets(&fixture, &link)?;
    let (after, _) = mapped(&fixture)?;
    ensure!(
        after - bytes == 8 * WORDS,
        "{} bytes of a get were fetched from the peer",
        after - bytes
    );
    fixture.meet()
}

/// Each rank gets what the other has, twice.
fn gets(fixture: &Fixture<'_>, link: &Link) -> TestResult {
    let get = Call::Get(link.first(4 * WORDS));
    let calls = [(0, get), (0, Call::Flush), (0, get), (0, Call::Flush)];
    Steps::run(&[link.base()], &calls, fixture.context.deadline())?;
    fixture.meet()
}
