// SPDX-License-Identifier: MIT
//! NICs that can do little, or other things than the peer's, and channels that need none.

use anyhow::{Context as _, ensure};
use mscclpp_device::abi;
use mscclpp_port::{Buffer, EndpointConfig, IbConfig, MemoryOptions, TransportKind};
use mscclpp_softnic::{Capabilities, DeviceConfig, Mtu};

use super::{KINDS, nic, setup};
use crate::backend::{Backend, Setup};
use crate::fixture::{Fixture, Link};
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, PingPong, Posts, Steps};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let suffix = backend.suffix;
    let mut add = |test: &str, body: fn(&Context, &'static Backend) -> TestResult| {
        registry
            .add(
                format!("PortChannelOneToOneTest.GpuNetIo{test}{suffix}"),
                move |c| body(c, backend),
            )
            .ranks(2, 2);
    };
    add("PutsAboveTheLargestMessage", small_messages);
    add("UnequalNics", unequal);
    add("BesideAProxyChannel", beside_a_proxy);
}

/// 32-bit words of the ping-pongs here: no round number of messages or packets.
const WORDS: u64 = 12_345;

fn ping_pong(fixture: &Fixture<'_>, link: &Link, buffer: &Buffer, iterations: u64) -> TestResult {
    let kernel = PingPong {
        channel: link.channel.clone(),
        buffer: buffer.clone(),
        elements: WORDS,
        iterations,
        polls: None,
        rank: fixture.context.rank(),
        flush: true,
        check: true,
        answers_last: false,
    };
    (kernel.launch(4)?.finish(fixture.context.deadline())).map(drop)
}

/// One put takes several requests, in a queue that has room for few; the signal follows all of them.
fn small_messages(context: &Context, backend: &'static Backend) -> TestResult {
    const LARGEST: u64 = 1 << 10;
    const ITERATIONS: u64 = 10;
    for (queue_form, signal_mode) in KINDS {
        let setup = Setup {
            nic: DeviceConfig {
                capabilities: Capabilities {
                    max_message: LARGEST,
                    ..Capabilities::default()
                },
                ..super::strict()
            },
            queue: IbConfig {
                queue_form,
                signal_mode,
                max_send_wr: Some(16),
                ..IbConfig::default()
            },
        };
        let fixture = Fixture::with(context, backend, &setup)?;
        let buffer = fixture.buffer(4 * WORDS)?;
        let link = fixture.pair_in_place(0, &buffer)?;
        let before = Posts::of(&link.base()).context("a queue")?;
        ping_pong(&fixture, &link, &buffer, ITERATIONS)?;
        let made = Posts::of(&link.base()).context("a queue")?.posted - before.posted;
        // Rank 1 does not answer the last.
        let sends = ITERATIONS - context.rank() as u64;
        let expected = sends * ((4 * WORDS).div_ceil(LARGEST) + 1);
        ensure!(
            made == expected,
            "{made} requests instead of {expected} for {sends} puts"
        );
        fixture.meet()?;
    }
    Ok(())
}

/// Another packet size and fewer atomics at once on rank 1: both use what both can.
fn unequal(context: &Context, backend: &'static Backend) -> TestResult {
    let mut nic = super::strict();
    if context.rank() == 1 {
        nic.capabilities = Capabilities {
            mtu: Mtu::Bytes256,
            max_outstanding_reads: 1,
            ..Capabilities::default()
        };
    }
    for kind in KINDS {
        let fixture = Fixture::with(context, backend, &setup(kind, nic.clone()))?;
        let buffer = fixture.buffer(4 * WORDS)?;
        let link = fixture.pair_in_place(0, &buffer)?;
        ping_pong(&fixture, &link, &buffer, 10)?;
        let mut calls = vec![(0, Call::Signal); 200];
        calls.extend([(0, Call::Get(link.first(4 * WORDS))); 4]);
        calls.push((0, Call::Flush));
        calls.extend([(0, Call::Wait); 200]);
        Steps::run(&[link.base()], &calls, context.deadline())?;
        fixture.meet()?;
    }
    Ok(())
}

/// A service has channels of both kinds. What does not ask for a queue has none: a proxy's channel
/// leaves the NIC alone, though there is one.
fn beside_a_proxy(context: &Context, backend: &'static Backend) -> TestResult {
    const ITERATIONS: u64 = 50;
    let mut fixture = Fixture::new(context, backend)?;
    fixture.service.start_proxy()?;
    let buffer = fixture.buffer(4 * WORDS)?;
    let options = MemoryOptions {
        transports: TransportKind::Ethernet | fixture.endpoint.transport,
        ..MemoryOptions::default()
    };
    let memory = (fixture.communicator).register_memory_with(&buffer, 0..buffer.len(), options)?;
    let on_queue = fixture.endpoint;
    fixture.endpoint = EndpointConfig {
        device: on_queue.device,
        ..EndpointConfig::new(TransportKind::Ethernet)
    };
    let proxied = fixture.pair(0, &memory, &memory)?;
    let handle = proxied.channel.device_handle().base;
    ensure!(
        handle.backend == abi::Backend::Proxy as u32
            && handle.queue == abi::QueueChannel::default(),
        "a proxy's channel has a queue: {handle:?}"
    );
    ping_pong(&fixture, &proxied, &buffer, ITERATIONS)?;
    let counters = nic(&fixture)?.counters();
    ensure!(
        counters.live.queue_pairs == 0 && counters.doorbells == 0,
        "a proxy's channel made a queue: {:?}",
        counters.live
    );
    fixture.endpoint = on_queue;
    let queued = fixture.pair(1, &memory, &memory)?;
    let before = Posts::of(&queued.base()).context("a queue")?;
    ping_pong(&fixture, &queued, &buffer, ITERATIONS)?;
    // Rank 1 does not answer the last, and may still be looking at it.
    fixture.meet()?;
    ping_pong(&fixture, &proxied, &buffer, ITERATIONS)?;
    let made = Posts::of(&queued.base()).context("a queue")?.posted - before.posted;
    let sends = ITERATIONS - context.rank() as u64;
    ensure!(made == 2 * sends, "{made} requests for {sends} puts");
    fixture.meet()
}
