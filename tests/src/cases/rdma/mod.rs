// SPDX-License-Identifier: MIT
//! What only RDMA devices have: networks that lose packets, links that go down, keys that are wrong,
//! peers that die with requests under way. Run in a guest with Soft-RoCE, whose network is theirs to
//! break.

mod failures;
mod guest;
mod memory;
mod network;
mod teardown;

use mscclpp_port::IbMode;

use crate::backend::Backend;
use crate::harness::Registry;

pub(super) use failures::{KILL_RDMA, play_kill};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    if !matches!(backend.mode, IbMode::Host | IbMode::HostNoAtomic) {
        return;
    }
    memory::register(registry, backend);
    network::register(registry, backend);
    failures::register(registry, backend);
    teardown::register(registry, backend);
}

/// The name of a test.
fn name(test: &str, backend: &Backend) -> String {
    format!("RdmaTest.{test}{}", backend.suffix)
}
