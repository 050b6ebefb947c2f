// SPDX-License-Identifier: MIT
//! A rank that waits for another one leaves the core to others.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use mscclpp_bootstrap::{Bootstrap as _, Tag};

use crate::backend::Backend;
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult, cpu_time, is_guest};
use crate::kernels::{Call, Steps};

/// How long rank 1 waits: thousands of naps, of a millisecond at most.
fn how_long(context: &Context) -> Duration {
    Duration::from_secs(context.profile().pick(2, 5))
}

/// Of a core, in per cent, with all threads of the process counted.
const TARGET: f64 = 10.0;

/// Above this it fails: a loaded machine charges more for the same naps.
const LIMIT: f64 = 2.0 * TARGET;

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let suffix = backend.suffix;
    registry
        .add_on(
            backend,
            format!("BlockedRankTest.KernelWait{suffix}"),
            kernel,
        )
        .ranks(2, 2);
    registry
        .add_on(backend, format!("BlockedRankTest.Idle{suffix}"), idle)
        .ranks(2, 2);
}

/// The same of what all backends stand on.
pub(super) fn register_bootstrap(registry: &mut Registry) {
    registry
        .add("BlockedRankTest.BootstrapRecv", recv)
        .ranks(2, 2);
    registry
        .add("BlockedRankTest.BootstrapBarrier", barrier)
        .ranks(2, 2);
}

/// What rank 1 uses of a core while it is in `wait`, which rank 0 ends. Where rank 0 counts the time from
/// when the two meet, `wait` begins with that: rank 1 may come out of it late.
fn blocked(context: &Context, wait: impl FnOnce() -> TestResult) -> TestResult {
    let wanted = how_long(context);
    let (start, before) = (Instant::now(), cpu_time()?);
    wait()?;
    let (took, used) = (start.elapsed(), cpu_time()? - before);
    let share = used.as_secs_f64() / took.as_secs_f64() * 100.0;
    context.measure(
        format!("blocked for {:.1} s", took.as_secs_f64()),
        share,
        "% of a core",
    );
    ensure!(took >= wanted, "blocked for {took:?} only");
    ensure!(
        share <= LIMIT,
        "used {share:.1} % of a core, the target is {TARGET} %"
    );
    Ok(())
}

/// On an emulated core the same naps cost ten times as much.
fn real_core(context: &Context) -> TestResult {
    context.skip_unless(is_guest().then(|| "the cores are emulated".to_owned()))
}

fn kernel(context: &Context, backend: &'static Backend) -> TestResult {
    real_core(context)?;
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(64)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    if context.rank() == 0 {
        fixture.meet()?;
        // The clock is what is tested here, not what orders the ranks.
        thread::sleep(how_long(context) + Duration::from_millis(200));
        Steps::run(
            &[link.base()],
            &[(0, Call::Signal), (0, Call::Flush)],
            context.deadline(),
        )?;
    } else {
        blocked(context, || {
            fixture.meet()?;
            Steps::run(&[link.base()], &[(0, Call::Wait)], context.deadline())
        })?;
    }
    fixture.meet()
}

fn idle(context: &Context, backend: &'static Backend) -> TestResult {
    real_core(context)?;
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(64)?;
    let _link = fixture.pair_in_place(0, &buffer)?;
    fixture.meet()?;
    if context.rank() == 1 {
        blocked(context, || {
            thread::sleep(how_long(context));
            Ok(())
        })?;
    }
    fixture.meet()
}

fn recv(context: &Context) -> TestResult {
    let bootstrap = context.bootstrap()?;
    if context.rank() == 0 {
        bootstrap.barrier()?;
        thread::sleep(how_long(context) + Duration::from_millis(200));
        bootstrap.send(1, Tag::user(0), b"go on", context.deadline())?;
    } else {
        blocked(context, || {
            bootstrap.barrier()?;
            Ok(bootstrap
                .recv(0, Tag::user(0), context.deadline())
                .map(drop)?)
        })?;
    }
    Ok(bootstrap.barrier()?)
}

fn barrier(context: &Context) -> TestResult {
    let bootstrap = context.bootstrap()?;
    if context.rank() == 0 {
        bootstrap.barrier()?;
        thread::sleep(how_long(context) + Duration::from_millis(200));
        bootstrap.barrier()?;
    } else {
        blocked(context, || {
            bootstrap.barrier()?;
            Ok(bootstrap.barrier()?)
        })?;
    }
    Ok(bootstrap.barrier()?)
}
