// SPDX-License-Identifier: MIT
//! How fast one thread pushes triggers to a handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::ensure;
use mscclpp_port::{DEFAULT_FIFO_SIZE, Proxy, ProxyHandlerResult};

use crate::backend::Executor;
use crate::harness::Context;
use crate::kernels::FifoPush;

use super::point::Point;

/// One producer, one handler that looks at each trigger; from the first push until the last trigger
/// was handled.
pub(super) fn fifo(
    context: &Context,
    executor: Executor,
    suite: &'static str,
) -> anyhow::Result<Vec<Point>> {
    let (count, samples) = match executor {
        Executor::Host => context.profile().pick((2_000_000, 11), (5_000_000, 31)),
        // A push takes a GPU's thread a microsecond or two.
        Executor::Cuda => context.profile().pick((100_000, 11), (300_000, 31)),
    };
    let handled = Arc::new(AtomicU64::new(0));
    let wrong = Arc::new(AtomicU64::new(0));
    let handler = {
        let (handled, wrong) = (Arc::clone(&handled), Arc::clone(&wrong));
        move |trigger: mscclpp_device::abi::ProxyTrigger| {
            // Only this thread writes either.
            let number = handled.load(Ordering::Relaxed);
            if trigger.fst != number % count {
                wrong.store(number + 1, Ordering::Relaxed);
            }
            handled.store(number + 1, Ordering::Relaxed);
            ProxyHandlerResult::Continue
        }
    };
    let device = executor.device(0);
    let proxy = Arc::new(Proxy::new(DEFAULT_FIFO_SIZE, handler)?);
    proxy.bind(device)?;
    proxy.start()?;
    let push = || {
        FifoPush {
            proxy: Arc::clone(&proxy),
            count,
            device,
        }
        .launch(1)?
        .finish(context.deadline())
    };
    push()?;
    let mut rates = Vec::new();
    for _ in 0..samples {
        rates.push(count as f64 / push()?.as_secs_f64() * 1e-6);
    }
    let expected = count * (samples + 1);
    let (handled, wrong) = (
        handled.load(Ordering::Acquire),
        wrong.load(Ordering::Acquire),
    );
    ensure!(
        handled == expected,
        "{handled} of {expected} triggers were handled"
    );
    ensure!(wrong == 0, "trigger {wrong} was another than was pushed");
    let point = Point {
        suite,
        executor: Some(executor.name()),
        bytes: Some(16),
        queues: Some(1),
        threads: Some(1),
        metric: "push to handler",
        unit: "M/s",
        ..Point::default()
    };
    Ok(vec![point.with(&rates, &[])?])
}
