// SPDX-License-Identifier: MIT
//! Ends of connections that go while the other end posts, in every order.

use std::any::Any;
use std::time::{Duration, Instant};

use anyhow::ensure;
use mscclpp_port::{QueueForm, SignalMode, Status};
use mscclpp_softnic as softnic;

use super::{nic, setup};
use crate::backend::Backend;
use crate::fixture::{Fixture, error_of};
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, Flood, Steps};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let suffix = backend.suffix;
    let name = |test: &str| format!("PortChannelLifetimeTest.{test}{suffix}");
    registry
        .add_on(backend, name("GpuNetIoPeerPostsAtTeardown"), posts)
        .ranks(2, 2)
        .seconds(120);
    registry
        .add_on(backend, name("GpuNetIoEveryDropOrder"), drop_orders)
        .ranks(2, 2)
        .seconds(120);
}

/// Both ranks post to each other from several threads; one stops its own kernel and drops all that
/// it has. The other's kernels end, and its host knows.
fn posts(context: &Context, backend: &'static Backend) -> TestResult {
    for round in 0..context.profile().pick(6, 30) {
        let goes = round % 2;
        let fixture = Fixture::new(context, backend)?;
        let buffer = fixture.buffer(1 << 14)?;
        let link = fixture.pair_in_place(0, &buffer)?;
        let bytes = [8, 1 << 14][round / 2 % 2];
        let flood = Flood::new(link.channel.device_handle(), &link.channel, bytes)?.launch(3)?;
        flood.wait(200, context.deadline())?;
        context.meet()?;
        context.stage(format!("round {round}: rank {goes} goes"));
        if context.rank() == goes {
            flood.stop()?;
            let statuses = flood.finish(context.deadline())?;
            ensure!(
                statuses.iter().all(|status| *status == Status::Ok),
                "round {round}: calls of the rank that goes return {statuses:?}"
            );
            drop((link, fixture));
        } else {
            let start = Instant::now();
            let statuses = flood.finish(context.deadline())?;
            let took = start.elapsed();
            let ended = |status: &Status| matches!(status, Status::PeerDown | Status::QueueError);
            ensure!(
                statuses.iter().all(ended),
                "round {round}: calls of the rank that stays return {statuses:?}"
            );
            ensure!(
                took < Duration::from_secs(5),
                "round {round}: they end after {took:?}"
            );
            error_of(&link.connection)?;
        }
        context.meet()?;
    }
    Ok(())
}

/// What a pair is made of, let go in every order, on both ranks at once and differently. Rank 1's
/// kernel waits meanwhile, and is released. Rank 0's NIC has nothing left at the end.
fn drop_orders(context: &Context, backend: &'static Backend) -> TestResult {
    const ORDERS: usize = 720;
    let sample = context.profile().pick(24, ORDERS);
    let start = seed(context)?;
    for number in 0..sample {
        // 7 and 720 have no common factor: a walk through all orders.
        let order = (start as usize + number * 7 * (ORDERS / sample).max(1) + number) % ORDERS;
        let order = if sample == ORDERS { number } else { order };
        context.stage(format!("order {order}"));
        let form = [QueueForm::Shared, QueueForm::Exclusive][number % 2];
        let setup = setup((form, SignalMode::Atomic), softnic::DeviceConfig::default());
        let fixture = Fixture::with(context, backend, &setup)?;
        let buffer = fixture.buffer(64)?;
        let memory = fixture.register(&buffer)?;
        let link = fixture.pair(0, &memory, &memory)?;
        let put = Call::PutWithSignal(link.first(64));
        let calls = [(0, put), (0, Call::Wait), (0, Call::Flush)];
        Steps::run(&[link.base()], &calls, context.deadline())?;
        // A handle that is held elsewhere sees what is left; without it the NIC goes too.
        let watch = (context.rank() == 0)
            .then(|| nic(&fixture).cloned())
            .transpose()?;
        let waiting = (context.rank() == 1)
            .then(|| Steps::launch(&[link.base()], &[(0, Call::Wait)]))
            .transpose()?;
        fixture.meet()?;
        let parts: [Box<dyn Any>; 6] = [
            Box::new(fixture.communicator),
            Box::new(fixture.service),
            Box::new(fixture.nic),
            Box::new(link.connection),
            Box::new(link.channel),
            Box::new((link.remote, memory, buffer)),
        ];
        let mut parts: Vec<_> = parts.into_iter().collect();
        // The other rank goes in the order that mirrors this one's.
        let mut index = if context.rank() == 0 {
            order
        } else {
            ORDERS - 1 - order
        };
        while !parts.is_empty() {
            let count = parts.len();
            drop(parts.remove(index % count));
            index /= count;
        }
        if let Some(waiting) = waiting {
            let status = waiting.finish(context.deadline())?[0].status()?;
            // By the peer's end, or by this rank's service.
            ensure!(
                matches!(status, Status::PeerDown | Status::Aborted),
                "order {order}: the wait returns {status:?}"
            );
        }
        if let Some(watch) = watch {
            nothing_left(&watch, order)?;
        }
        context.meet()?;
    }
    Ok(())
}

fn nothing_left(watch: &softnic::Device, order: usize) -> TestResult {
    let start = Instant::now();
    loop {
        let live = watch.counters().live;
        if live.total() == 0 {
            return Ok(());
        }
        ensure!(
            start.elapsed() < Duration::from_secs(5),
            "order {order}: the NIC still has {live:?}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Of this run, told with its verdict.
fn seed(context: &Context) -> anyhow::Result<u64> {
    let mut bytes = [0; 2];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("no random bytes: {error}"))?;
    let seed = context.exchange(u16::from_le_bytes(bytes))?[0];
    context.measure("seed", f64::from(seed), "");
    Ok(seed.into())
}
