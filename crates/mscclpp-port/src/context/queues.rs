// SPDX-License-Identifier: MIT
//! Connections on whose queues kernels post themselves.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use mscclpp_bootstrap::Deadline;

use super::{Context, Nonce, lock};
use crate::arrival::Arrival;
use crate::endpoint::{Endpoint, EndpointConfig, EndpointQueue, EndpointRecord};
use crate::error::{Error, Result};
use crate::gpu_queue::{
    self, Ends, GpuTransport, Handshake, QueueEnd, QueuePlan, QueueRecord, Route, Watcher,
};
use crate::status::StickyStatus;

impl Context {
    /// The queue of an endpoint to be.
    pub(super) fn create_queue(&self, config: &EndpointConfig) -> Result<EndpointQueue> {
        let EndpointConfig { transport, ib, .. } = config;
        let hca = gpu_queue::hca_for(&self.inner.hcas, *transport, ib)?;
        let capabilities = hca.capabilities();
        let mode = gpu_queue::check_local(*transport, ib, &capabilities)?;
        let queue = hca.create_queue(QueuePlan {
            form: ib.queue_form,
            signal_mode: ib.signal_mode,
            blocks: ib.blocks(),
        })?;
        let record = QueueRecord::new(mode, ib.signal_mode, &capabilities, queue.address());
        Ok(EndpointQueue { queue, hca, record })
    }

    /// Begins to bring up a queue that kernels post to.
    pub(super) fn connect_queue(
        &self,
        mut local: Endpoint,
        remote: &EndpointRecord,
        theirs: &QueueRecord,
        status: &Arc<StickyStatus>,
        deadline: Deadline,
    ) -> Result<GpuTransport> {
        // The transports reach each other, so this one has a queue, too.
        let Some(EndpointQueue { queue, hca, record }) = local.queue.take() else {
            return Err(Error::IncompatibleTransports {
                local: local.config.transport,
                remote: remote.transport,
            });
        };
        let path = gpu_queue::join(&record, theirs)?;
        let job_key = self.inner.config.job_key.clone();
        let route = if remote.context != self.id() {
            let purpose = gpu_queue::CONTROL;
            let arrival = Arrival::of(&local, remote, job_key.as_ref(), purpose, deadline)?;
            Route::Network(arrival)
        } else if remote.nonce != local.nonce {
            Route::Context(self.meet(local.nonce, remote.nonce)?)
        } else if *theirs == record {
            Route::Itself
        } else {
            return Err(Error::Record {
                what: "endpoint",
                detail: "it has this endpoint's number and another queue".into(),
            });
        };
        let ends = Ends {
            local: local.config.transport,
            remote: remote.transport,
            own: self.id(),
            peer: remote.context,
            rank: remote.rank(),
        };
        let signal_mode = local.config.ib.signal_mode;
        let status = Arc::clone(status);
        let end = QueueEnd::new(queue, hca, status, ends, path, signal_mode, deadline);
        let handshake = Handshake {
            turns: Arc::clone(&self.inner.turns),
            acceptor: Arc::clone(&local.acceptor),
            peer: remote.address,
            socket: remote.socket.and_then(|socket| socket.here()),
            job_key,
            stall_timeout: self.inner.config.stall_timeout,
            deadline,
        };
        GpuTransport::start(end, handshake, route, self.watcher()?)
    }

    /// The control stream between two endpoints of this context: the first leaves the other half for
    /// the second.
    fn meet(&self, local: Nonce, remote: Nonce) -> Result<UnixStream> {
        let mut meetings = lock(&self.inner.meetings);
        let left = meetings.get_mut(&local);
        if let Some(stream) = left.and_then(|left| left.remove(&remote)) {
            return Ok(stream);
        }
        let Some(left) = meetings.get_mut(&remote) else {
            return Err(Error::Record {
                what: "endpoint",
                detail:
                    "it is of an endpoint of this context that is gone, or connected to another"
                        .into(),
            });
        };
        let (ours, theirs) = UnixStream::pair()
            .map_err(|error| Error::io("make a control stream within a context", error))?;
        left.insert(local, theirs);
        Ok(ours)
    }

    fn watcher(&self) -> Result<Arc<Watcher>> {
        let mut watcher = lock(&self.inner.watcher);
        if let Some(watcher) = &*watcher {
            return Ok(Arc::clone(watcher));
        }
        Ok(Arc::clone(watcher.insert(Arc::new(Watcher::new()?))))
    }
}
