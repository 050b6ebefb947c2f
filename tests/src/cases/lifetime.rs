// SPDX-License-Identifier: MIT
//! Stopping and dropping while kernels wait and peers post.

use std::any::Any;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use mscclpp_port::{Error, Status};

use crate::backend::Backend;
use crate::fixture::{Fixture, error_of};
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, Steps};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let suffix = backend.suffix;
    let mut add = |test: &str, body: fn(&Context, &'static Backend) -> TestResult| {
        registry
            .add(
                format!("PortChannelLifetimeTest.{test}{suffix}"),
                move |c| body(c, backend),
            )
            .ranks(2, 2)
            .seconds(120);
    };
    if !backend.posts_to_queue() {
        add("StopWhileKernelsWait", stop_while_kernels_wait);
        add("StopDrains", stop_drains);
    }
    add("DropWhileThePeerPosts", drop_while_the_peer_posts);
    add("DropReleasesThePeersKernel", drop_releases);
    add("DropBeforeItIsConnectedReleasesToo", drop_at_once);
}

/// Stopping the proxy releases a kernel that waits and ends a flush that comes after; what the
/// kernel waited for is not lost, and the proxy can be started again.
fn stop_while_kernels_wait(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(64)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let deadline = context.deadline();
    if context.rank() == 1 {
        fixture.meet()?;
        Steps::run(
            &[link.base()],
            &[(0, Call::Signal), (0, Call::Flush)],
            deadline,
        )?;
        fixture.meet()?;
        return fixture.meet();
    }
    let lists: [&[_]; 3] = [&[(0, Call::Wait)]; 3];
    let waiting = Steps::launch_threads(&[link.base()], &lists)?;
    context.stage("stop the proxy beside a waiting kernel");
    fixture.service.stop_proxy()?;
    for done in waiting.finish_threads(deadline)?.iter().flatten() {
        let status = done.status()?;
        ensure!(status == Status::Aborted, "the wait returns {status:?}");
    }
    context.stage("flush on a stopped proxy");
    let flush = Steps::launch(&[link.base()], &[(0, Call::Flush)])?;
    let status = flush.finish(deadline)?[0].status()?;
    ensure!(
        status == Status::Aborted,
        "a flush on a stopped proxy returns {status:?}"
    );
    fixture.meet()?;
    fixture.meet()?;
    fixture.service.start_proxy()?;
    let put = Call::PutWithSignal(link.first(64));
    context.stage("the proxy was started again");
    let calls = [(0, Call::Wait), (0, put), (0, Call::Flush)];
    Steps::run(&[link.base()], &calls, deadline)?;
    fixture.meet()
}

/// What was pushed before the stop arrives.
fn stop_drains(context: &Context, backend: &'static Backend) -> TestResult {
    const SIGNALS: usize = 300;
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(64)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let deadline = context.deadline();
    if context.rank() == 0 {
        Steps::run(&[link.base()], &[(0, Call::Signal); SIGNALS], deadline)?;
        fixture.service.stop_proxy()?;
    } else {
        context.stage("wait for what was pushed before the stop");
        Steps::run(&[link.base()], &[(0, Call::Wait); SIGNALS], deadline)?;
    }
    fixture.meet()
}

/// Rank 0 drops all that it has, in another order each time, while rank 1 posts. Rank 1 is told;
/// nobody crashes or waits for ever.
fn drop_while_the_peer_posts(context: &Context, backend: &'static Backend) -> TestResult {
    for round in 0..context.profile().pick(6, 24) {
        context.stage(format!("round {round}: set up"));
        let fixture = Fixture::new(context, backend)?;
        let buffer = fixture.buffer(1 << 16)?;
        let link = fixture.pair_in_place(0, &buffer)?;
        let put = (0, Call::PutWithSignal(link.first(1 << 16)));
        if context.rank() == 1 {
            let mut calls = vec![put; 20_000];
            calls[0] = (0, Call::Flush);
            calls.push((0, Call::Flush));
            let kernel = Steps::launch(&[link.base()], &calls)?;
            // The connection stands, and some puts have arrived, before rank 0 starts to drop.
            kernel.wait(0, 10, context.deadline())?;
            context.meet()?;
            context.stage(format!("round {round}: post to a rank that is going"));
            let flush = kernel
                .finish(context.deadline())?
                .pop()
                .context("a flush")?
                .status()?;
            // The peer may have been quick to take all of it.
            let fine = matches!(flush, Status::Ok | Status::PeerDown | Status::QueueError);
            ensure!(fine, "the flush returns {flush:?}");
            if flush != Status::Ok {
                error_of(&link.connection).with_context(|| format!("after {flush:?}"))?;
            }
        } else {
            context.meet()?;
            context.stage(format!("round {round}: drop"));
            let Fixture {
                communicator,
                service,
                nic,
                ..
            } = fixture;
            let mut parts: Vec<Box<dyn Any>> = vec![
                Box::new(communicator),
                Box::new(service),
                Box::new(nic),
                Box::new(link.connection),
                Box::new(link.channel),
                Box::new(link.remote),
                Box::new(buffer),
            ];
            let mut seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(round + 1);
            while !parts.is_empty() {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                drop(parts.swap_remove((seed >> 33) as usize % parts.len()));
            }
        }
        context.meet()?;
    }
    Ok(())
}

/// A kernel that waits for a rank that dropped its end returns, within seconds and with the rank's
/// name on the host.
fn drop_releases(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(64)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    fixture.meet()?;
    if context.rank() == 1 {
        let waiting = Steps::launch(&[link.base()], &[(0, Call::Wait)])?;
        context.meet()?;
        context.stage("wait for a rank that drops its end");
        let start = Instant::now();
        let status = waiting.finish(context.deadline())?[0].status()?;
        let took = start.elapsed();
        ensure!(status == Status::PeerDown, "the wait returns {status:?}");
        ensure!(
            took < Duration::from_secs(5),
            "the wait returns after {took:?}"
        );
        let error = error_of(&link.connection)?;
        let named = matches!(error, Error::PeerDown { rank: Some(0), .. });
        ensure!(named, "the host's error is {error:?}");
    } else {
        context.meet()?;
        drop((link, fixture));
    }
    context.meet()
}

/// The same for a rank that drops its end at once, when the connection may not stand yet.
fn drop_at_once(context: &Context, backend: &'static Backend) -> TestResult {
    for round in 0..context.profile().pick(10, 50) {
        let fixture = Fixture::new(context, backend)?;
        let buffer = fixture.buffer(64)?;
        let start = Instant::now();
        let link = match fixture.pair_in_place(0, &buffer) {
            // A queue is tried out before its channel is handed out.
            Err(error) if backend.posts_to_queue() && context.rank() == 1 => {
                let named = matches!(
                    error.downcast_ref(),
                    Some(Error::PeerDown { rank: Some(0), .. })
                );
                ensure!(named, "round {round}: {error:?}");
                context.meet()?;
                continue;
            }
            other => other?,
        };
        if context.rank() == 1 {
            context.stage(format!("round {round}: wait for a rank that drops its end"));
            let waiting = Steps::launch(&[link.base()], &[(0, Call::Wait)])?;
            let status = waiting.finish(context.deadline())?[0].status()?;
            let took = start.elapsed();
            ensure!(
                status == Status::PeerDown,
                "round {round}: the wait returns {status:?}"
            );
            ensure!(
                took < Duration::from_secs(5),
                "round {round}: it returns after {took:?}"
            );
        }
        drop((link, fixture));
        context.meet()?;
    }
    Ok(())
}
