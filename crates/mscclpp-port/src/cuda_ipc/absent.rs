// SPDX-License-Identifier: MIT
//! What stands for CUDA IPC in a build without GPUs.

use std::sync::Arc;

use mscclpp_bootstrap::{Deadline, Deadlines};

use crate::context::{Context, ContextId};
use crate::control::Route;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::gpu::{GpuMemory, Keep};
use crate::memory::{IpcRecord, Mapped};
use crate::status::StickyStatus;
use crate::transport::{Transport, TransportKind};
use crate::watcher::Watcher;

fn absent<T>(operation: &'static str) -> Result<T> {
    Err(Error::Unsupported {
        operation,
        transport: TransportKind::CudaIpc,
        missing: "this build lacks the feature `cuda`: it has no CUDA support",
    })
}

/// Whether there can be endpoints.
pub(crate) fn check() -> Result<()> {
    absent("create an endpoint")
}

/// There are no endpoints, so there are no connections.
pub(crate) enum IpcTransport {}

impl IpcTransport {
    pub(crate) fn start(
        _device: (Device, Option<usize>),
        _peer: (ContextId, Option<usize>),
        _status: Arc<StickyStatus>,
        _route: (Route, Deadlines),
        _watcher: Arc<Watcher>,
    ) -> Result<Box<dyn Transport>> {
        absent("connect")
    }
}

impl Context {
    pub(crate) fn share_memory(
        &self,
        memory: &Arc<GpuMemory>,
        _offset: u64,
        _len: u64,
        _for_signals: bool,
    ) -> Result<(IpcRecord, Keep)> {
        // There is no such memory.
        let _ = memory.address();
        absent("register memory")
    }

    pub(crate) fn map_memory(
        &self,
        _of: (u64, ContextId, Option<usize>),
        _record: &IpcRecord,
        _end: u64,
        _deadline: Deadline,
    ) -> Result<Mapped> {
        absent("reach a peer's memory")
    }
}
