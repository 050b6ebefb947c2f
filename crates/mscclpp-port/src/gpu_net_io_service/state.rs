// SPDX-License-Identifier: MIT
//! How far the setup of a service has come.

use std::sync::{Arc, Mutex};

use mscclpp_bootstrap::Plan;

use super::GpuNetIoService;
use crate::connection::Connection;

#[derive(Clone)]
pub(super) enum State {
    New,
    Running,
    Failed,
    Ready(Arc<Ready>),
}

/// What a setup has made.
pub(super) struct Ready {
    pub(super) plan: Plan,
    /// One a queue, in the order of [`Plan::slot`].
    pub(super) connections: Mutex<Vec<Connection>>,
}

/// Settles how a setup has ended, also when one of its steps panics.
pub(super) struct Settles<'a> {
    service: &'a GpuNetIoService,
    end: State,
}

impl<'a> Settles<'a> {
    /// It has failed, unless one hears otherwise.
    pub(super) fn new(service: &'a GpuNetIoService) -> Self {
        let end = State::Failed;
        Self { service, end }
    }

    /// It has succeeded.
    pub(super) fn well(mut self, ready: Ready) {
        self.end = State::Ready(Arc::new(ready));
    }
}

impl Drop for Settles<'_> {
    fn drop(&mut self) {
        let end = self.end.clone();
        // Memory may be registered where there are queues on demand.
        if matches!(end, State::Failed) && !self.service.pairwise.has_queues() {
            self.service.communicator.context().close_unused_hcas();
        }
        *self.service.lock() = end;
    }
}

impl State {
    pub(super) fn found(&self) -> &'static str {
        match self {
            Self::New => {
                "there was no setup: `setup` makes queues with all ranks, `connect_on_demand` with one"
            }
            Self::Running => "the setup is under way",
            Self::Failed => {
                "the setup has failed: make a new service, or queues with one rank by `connect_on_demand`"
            }
            Self::Ready(_) => "the setup has succeeded",
        }
    }
}
