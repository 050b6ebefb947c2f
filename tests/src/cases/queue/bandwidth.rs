// SPDX-License-Identifier: MIT
//! Bandwidth over several queues to one peer.

use std::env;

use anyhow::{Context as _, ensure};
use mscclpp_port::{Buffer, QueueForm, SignalMode};
use mscclpp_softnic::DeviceConfig;

use super::setup;
use crate::backend::Backend;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::Puts;
use crate::pair::Way;

/// How many queues; the first that is set counts. The second is upstream's name.
const VARIABLES: [&str; 2] = [
    "MSCCLPP_GPUNETIO_QPS_PER_PEER",
    "MSCCLPP_EP_GPUNETIO_QPS_PER_PEER",
];

/// Queues to a peer that upstream's plan allows.
const MOST: usize = 64;

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    for way in [Way::Endpoints(backend), Way::Service] {
        let name = format!(
            "PortChannelOneToOneTest.GpuNetIoMultiQpBandwidth{}",
            way.suffix()
        );
        registry
            .add(name, move |context| bandwidth(context, way))
            .perf()
            .ranks(2, 2)
            .seconds(300);
    }
}

/// As rank 0 was told; 4 if not.
fn queues(context: &Context) -> anyhow::Result<usize> {
    let told = VARIABLES
        .iter()
        .find_map(|name| Some((name, env::var(name).ok()?)));
    let mine = match told {
        None => 4,
        Some((name, text)) => {
            let queues = text.trim().parse().ok();
            (queues.filter(|queues| (1..=MOST).contains(queues)))
                .with_context(|| format!("{name} is {text:?}: a number from 1 to {MOST}"))?
        }
    };
    Ok(context.exchange(mine)?[0])
}

/// Rank 0 puts over all queues at once, 10 times to warm up, then 256 times; fewer above 64 KiB in
/// the quick profile. What arrived is looked at after the clock has stopped.
fn bandwidth(context: &Context, way: Way) -> TestResult {
    const WARM_UP: u64 = 10;
    const TIMED: u64 = 256;
    const LARGEST: u64 = 8 << 20;
    let queues = queues(context)?;
    let exclusive = (QueueForm::Exclusive, SignalMode::Atomic);
    let setup = setup(exclusive, DeviceConfig::default());
    let pair = way.open(context, &setup, queues as u32)?;
    let mut channels = Vec::new();
    let mut buffers = Vec::new();
    for queue in 0..queues {
        let buffer = pair.buffer(LARGEST)?;
        channels.push(pair.channel(queue as u32, &buffer, &buffer)?);
        buffers.push(buffer);
    }
    for shift in (8..=23).step_by(3) {
        let bytes = 1u64 << shift;
        // Quick: at most 64 MiB a queue.
        let count = context.profile().pick(TIMED.min((64 << 20) / bytes), TIMED);
        context.stage(format!("{bytes} bytes over {queues} queues"));
        for (queue, buffer) in buffers.iter().enumerate() {
            let fill = match context.rank() {
                0 => pattern(queue, bytes),
                _ => vec![0; bytes as usize],
            };
            buffer.write(0, &fill)?;
        }
        pair.meet()?;
        if context.rank() == 0 {
            let puts = |count| Puts {
                channels: channels.clone(),
                bytes,
                count,
            };
            puts(WARM_UP).launch()?.finish(context.deadline())?;
            let took = puts(count).launch()?.finish(context.deadline())?;
            let total = bytes * count * queues as u64;
            context.measure(
                format!("{queues} queues, {count} puts of {bytes} bytes each"),
                total as f64 / took.as_secs_f64() * 1e-9,
                "GB/s",
            );
        }
        pair.meet()?;
        if context.rank() == 1 {
            for (queue, buffer) in buffers.iter().enumerate() {
                arrived(queue, bytes, buffer)?;
            }
        }
    }
    pair.meet()
}

fn pattern(queue: usize, bytes: u64) -> Vec<u8> {
    (0..bytes)
        .map(|i| (i * 37 + i / 241 + bytes / 256 + queue as u64 * 11 + 1) as u8)
        .collect()
}

fn arrived(queue: usize, bytes: u64, buffer: &Buffer) -> TestResult {
    let mut found = vec![0; bytes as usize];
    buffer.read(0, &mut found)?;
    ensure!(
        found == pattern(queue, bytes),
        "queue {queue} delivered other bytes, {bytes} of them"
    );
    Ok(())
}
