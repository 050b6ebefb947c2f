// SPDX-License-Identifier: MIT
//! What a signal announces is there, whatever freedom the NIC takes.

use std::time::Duration;

use anyhow::Context as _;
use mscclpp_softnic::{Acknowledge, DeviceConfig, Landing, NetworkConfig, TriggerMode};

use super::{KINDS, setup, strict};
use crate::backend::{Backend, MANY};
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::Generations;

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let suffix = backend.suffix;
    let name = |test: String| format!("PortChannelOrderingTest.{test}{suffix}");
    for (trigger, text) in [
        (TriggerMode::Doorbell, "Doorbell"),
        (TriggerMode::Record, "Record"),
        (TriggerMode::Either, "Either"),
        (TriggerMode::PollRecord, "PollRecord"),
    ] {
        registry
            .add(name(format!("GpuNetIoNoStaleData{text}")), move |context| {
                no_stale_data(context, backend, trigger)
            })
            .ranks(2, 2)
            .seconds(180);
    }
    registry
        .add_on(
            backend,
            name("GpuNetIoNoStaleDataOverALossyNetwork".into()),
            lossy,
        )
        .ranks(2, 2)
        .seconds(120);
}

/// One way to be started; every way to land, to acknowledge and to signal. The ranks' NICs differ in
/// their chance.
fn no_stale_data(context: &Context, backend: &'static Backend, trigger: TriggerMode) -> TestResult {
    let scattered = Landing::Scattered {
        linger: Duration::from_micros(100),
    };
    let mut seed = 2 * trigger as u64 + context.rank() as u64;
    for landing in [Landing::AtOnce, scattered] {
        for acknowledge in [Acknowledge::Landed, Acknowledge::Accepted] {
            for kind in KINDS {
                seed += 100;
                let nic = DeviceConfig {
                    seed,
                    trigger,
                    landing,
                    acknowledge,
                    ..strict()
                };
                let what = format!("{trigger:?}, {landing:?}, {acknowledge:?}, {kind:?}");
                let fixture = Fixture::with(context, backend, &setup(kind, nic))?;
                exchange(&fixture, context.profile().pick(15, 300)).context(what)?;
            }
        }
    }
    Ok(())
}

/// The same where packets are lost one by one, and sent again.
fn lossy(context: &Context, backend: &'static Backend) -> TestResult {
    for kind in KINDS {
        let nic = DeviceConfig {
            seed: 7 + context.rank() as u64,
            trigger: TriggerMode::Either,
            landing: Landing::Scattered {
                linger: Duration::from_micros(50),
            },
            acknowledge: Acknowledge::Accepted,
            network: NetworkConfig {
                loss: 0.005,
                delay: Duration::from_micros(20),
                single_packets: true,
            },
            ..strict()
        };
        let fixture = Fixture::with(context, backend, &setup(kind, nic))?;
        exchange(&fixture, context.profile().pick(20, 200)).context(format!("{kind:?}"))?;
    }
    Ok(())
}

fn exchange(fixture: &Fixture<'_>, rounds: u64) -> TestResult {
    const MESSAGES: u64 = 6;
    /// More than a packet of the largest size.
    const WORDS: u64 = 600;
    let outgoing = fixture.buffer(16 * MESSAGES * WORDS)?;
    let incoming = fixture.buffer(16 * MESSAGES * WORDS)?;
    let link = fixture.pair(
        0,
        &fixture.register(&outgoing)?,
        &fixture.register(&incoming)?,
    )?;
    fixture.context.stage(format!("{rounds} rounds"));
    let kernel = Generations {
        channel: link.channel,
        outgoing,
        incoming,
        first: 0,
        rounds,
        messages: MESSAGES,
        words: WORDS,
        rank: fixture.context.rank(),
        planted: false,
    };
    kernel
        .launch(fixture.backend.threads(2, MANY))?
        .finish(fixture.context.deadline())?;
    // The NICs look for a record without a doorbell once in a while.
    fixture.meet()?;
    fixture.meet()
}
