// SPDX-License-Identifier: MIT
//! What only backends have whose kernels post to queues of their own.

mod bandwidth;
mod basic;
mod bounds;
mod budget;
mod counts;
mod failures;
mod faults;
mod get;
mod lent;
mod nics;
mod ordering;
mod policy;
mod teardown;

use anyhow::Context as _;
use mscclpp_port::{IbConfig, QueueForm, SignalMode};
use mscclpp_softnic as softnic;

use crate::backend::{Backend, Setup};
use crate::fixture::Fixture;
use crate::harness::Registry;

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    get::register_unsupported(registry, backend);
    if !backend.posts_to_queue() {
        return;
    }
    basic::register(registry, backend);
    counts::register(registry, backend);
    ordering::register(registry, backend);
    get::register(registry, backend);
    lent::register(registry, backend);
    bounds::register(registry, backend);
    budget::register(registry, backend);
    policy::register(registry, backend);
    faults::register(registry, backend);
    nics::register(registry, backend);
    failures::register(registry, backend);
    teardown::register(registry, backend);
    bandwidth::register(registry, backend);
}

/// The kinds of queues that there are.
const KINDS: [(QueueForm, SignalMode); 3] = [
    (QueueForm::Shared, SignalMode::Atomic),
    (QueueForm::Exclusive, SignalMode::Atomic),
    (QueueForm::Exclusive, SignalMode::InlineWrite),
];

/// A kind of queue on a NIC that behaves in some way.
fn setup((queue_form, signal_mode): (QueueForm, SignalMode), nic: softnic::DeviceConfig) -> Setup {
    Setup {
        nic,
        queue: IbConfig {
            queue_form,
            signal_mode,
            ..IbConfig::default()
        },
    }
}

/// A NIC that behaves, and looks closely at who posts.
fn strict() -> softnic::DeviceConfig {
    Setup::strict().nic
}

/// The NIC of a fixture whose backend has one.
fn nic<'a>(fixture: &'a Fixture<'_>) -> anyhow::Result<&'a softnic::Device> {
    (fixture.nic.as_ref()).context("the backend's NIC is in software")
}

/// Requests that this rank's NIC has taken.
fn requests(fixture: &Fixture<'_>) -> anyhow::Result<u64> {
    Ok(nic(fixture)?.counters().requests.values().sum())
}
