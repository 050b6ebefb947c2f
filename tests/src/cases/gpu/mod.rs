// SPDX-License-Identifier: MIT
//! What only GPUs run.

mod compat;
#[cfg(feature = "cuda")]
mod graph;

use crate::backend::{Backend, Executor};
use crate::harness::Registry;

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    if backend.executor != Executor::Cuda {
        return;
    }
    let name = |test: &str| format!("PortChannelOneToOneTest.{test}{}", backend.suffix);
    registry
        .add_on(backend, name("FileForMscclpp"), compat::user)
        .ranks(2, 2);
    #[cfg(feature = "cuda")]
    registry
        .add_on(backend, name("GraphReplay"), graph::replay)
        .ranks(2, 2)
        .seconds(180);
}
