// SPDX-License-Identifier: MIT
//! Waits with a budget end when it is used up, and never as if they were done.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use mscclpp_port::{QueueForm, SignalMode, Status};
use mscclpp_softnic::{DeviceConfig, NetworkConfig};

use super::{nic, setup};
use crate::backend::Backend;
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, Posts, Steps};

/// Far fewer than fit in the time after which a NIC gives a silent network up.
const LOOKS: i64 = 100;

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let name = format!("PortChannelOneToOneTest.GpuNetIoBudgets{}", backend.suffix);
    registry.add_on(backend, name, budgets).ranks(2, 2);
}

fn budgets(context: &Context, backend: &'static Backend) -> TestResult {
    for form in [QueueForm::Shared, QueueForm::Exclusive] {
        let mut setup = setup((form, SignalMode::Atomic), DeviceConfig::default());
        setup.queue.max_send_wr = Some(16);
        let fixture = Fixture::with(context, backend, &setup)?;
        let buffer = fixture.buffer(64)?;
        let link = fixture.pair_in_place(0, &buffer)?;
        fixture.meet()?;
        if context.rank() == 0 {
            context.stage("no signal comes");
            let waits = [(0, Call::WaitWithin(0)), (0, Call::WaitWithin(LOOKS))];
            for done in Steps::launch(&[link.base()], &waits)?.finish(context.deadline())? {
                let status = done.status()?;
                ensure!(status == Status::Timeout, "a wait returns {status:?}");
            }
            context.stage("the network is down");
            nic(&fixture)?.set_link_up(false);
            let mut calls = vec![(0, Call::PutWithSignal(link.first(8))); 8];
            // The ring is full.
            calls.extend([(0, Call::FlushWithin(0)), (0, Call::FlushWithin(LOOKS))]);
            let done = Steps::launch(&[link.base()], &calls)?.finish(context.deadline())?;
            ensure!(
                done[..8].iter().all(|done| done.is_ok()),
                "there is room for 16 requests"
            );
            for done in &done[8..] {
                let status = done.status()?;
                ensure!(status == Status::Timeout, "a flush returns {status:?}");
            }
            let before = Posts::of(&link.base()).context("a queue")?;
            let put = Call::PutWithSignalAndFlushWithin(link.first(8), LOOKS);
            let put = Steps::launch(&[link.base()], &[(0, put)])?;
            let status = put.finish(context.deadline())?[0].status()?;
            let after = Posts::of(&link.base()).context("a queue")?;
            ensure!(
                status == Status::Timeout && after.posted == before.posted,
                "a put into a full ring returns {status:?}; {before:?} became {after:?}"
            );
            context.stage("the network is up again");
            nic(&fixture)?.set_link_up(true);
            let calls = [(0, Call::Flush), (0, Call::FlushWithin(0))];
            Steps::run(&[link.base()], &calls, context.deadline())?;
        } else {
            context.stage("signals of a network that was down");
            Steps::run(&[link.base()], &[(0, Call::Wait); 8], context.deadline())?;
            let done = Steps::launch(&[link.base()], &[(0, Call::WaitWithin(LOOKS))])?;
            let status = done.finish(context.deadline())?[0].status()?;
            ensure!(status == Status::Timeout, "a ninth wait returns {status:?}");
        }
        fixture.meet()?;
    }
    delayed(context, backend)
}

/// A flush that is granted little returns before the acknowledgement of a slow network, and says so.
fn delayed(context: &Context, backend: &'static Backend) -> TestResult {
    /// Delays are drawn from none to the longest, and a thread may not run between its put and the flush:
    /// then the acknowledgement is there.
    const TRIES: usize = 10;
    let nic = DeviceConfig {
        network: NetworkConfig {
            delay: Duration::from_millis(20),
            ..NetworkConfig::default()
        },
        ..DeviceConfig::default()
    };
    let fixture = Fixture::with(
        context,
        backend,
        &setup((QueueForm::Shared, SignalMode::Atomic), nic),
    )?;
    let buffer = fixture.buffer(64)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    fixture.meet()?;
    let calls = [
        (0, Call::Put(link.first(8))),
        (0, Call::FlushWithin(3)),
        (0, Call::Flush),
        (0, Call::FlushWithin(0)),
    ];
    let mut seen = false;
    for _ in 0..TRIES {
        let done = Steps::launch(&[link.base()], &calls)?.finish(context.deadline())?;
        let statuses: Vec<Status> = (done.iter())
            .map(|done| done.status())
            .collect::<anyhow::Result<_>>()?;
        seen = statuses == [Status::Ok, Status::Timeout, Status::Ok, Status::Ok];
        ensure!(
            seen || statuses == [Status::Ok; 4],
            "put and flushes return {statuses:?}"
        );
        if seen {
            break;
        }
    }
    ensure!(seen, "each of {TRIES} flushes was granted enough");
    fixture.meet()
}
