// SPDX-License-Identifier: MIT
//! Connections over HCAs and between GPUs, which have a control stream beside their data.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use mscclpp_bootstrap::Deadline;

use super::{Context, Nonce, lock};
use crate::arrival::Arrival;
use crate::control::Route;
use crate::control_end::ControlEnd;
use crate::cuda_ipc::{self, IpcTransport};
use crate::endpoint::{Endpoint, EndpointConfig, EndpointQueue, EndpointRecord, MadeQueue};
use crate::error::{Error, Result};
#[cfg(feature = "ib")]
use crate::gpu_queue::IbMode;
use crate::gpu_queue::{
    self, Ends, GpuTransport, Handshake, Path, QueueEnd, QueuePlan, QueueRecord,
};
#[cfg(feature = "ib")]
use crate::ib::{self, IbQueue};
use crate::status::StickyStatus;
use crate::transport::{Transport, TransportKind};
use crate::watcher::Watcher;

impl Context {
    /// Whether the HCA of an endpoint can do what is asked for; makes nothing.
    pub(crate) fn check_capability(&self, config: &EndpointConfig) -> Result<()> {
        config.check()?;
        let EndpointConfig { transport, ib, .. } = config;
        let hca = gpu_queue::hca_for(&self.inner.hcas, *transport, ib)?;
        gpu_queue::check_local(*transport, ib, &hca.capabilities()).map(drop)
    }

    /// Whether the HCA's port can be used with a GID.
    pub(crate) fn check_port(&self, transport: TransportKind, gid_index: u32) -> Result<()> {
        self.inner.hcas.get(transport)?.check_port(gid_index)
    }

    /// Lets go of the HCAs that were opened and have no queue.
    pub(crate) fn close_unused_hcas(&self) {
        self.inner.hcas.close_unused();
    }

    /// The queue of an endpoint to be.
    pub(super) fn create_queue(&self, config: &EndpointConfig) -> Result<EndpointQueue> {
        let EndpointConfig { transport, ib, .. } = config;
        let hca = gpu_queue::hca_for(&self.inner.hcas, *transport, ib)?;
        let capabilities = hca.capabilities();
        let mode = gpu_queue::check_local(*transport, ib, &capabilities)?;
        let record = |address| QueueRecord::new(mode, ib.signal_mode, &capabilities, address);
        #[cfg(feature = "ib")]
        if let Some(verbs) = hca.verbs().filter(|_| mode != IbMode::GpuNetIo) {
            let queue = IbQueue::new(verbs, config, mode, self.inner.config.ip.is_ipv6())?;
            let record = queue.complete(record(queue.address()));
            let queue = MadeQueue::Host(Box::new(queue));
            return Ok(EndpointQueue { queue, hca, record });
        }
        let queue = hca.create_queue(QueuePlan {
            device: config.device,
            placement: ib.queue_placement,
            form: ib.queue_form,
            signal_mode: ib.signal_mode,
            blocks: ib.blocks(),
            #[cfg(feature = "gpunetio")]
            asked: *ib,
        })?;
        gpu_queue::check_made(hca.name(), &*queue, ib)?;
        let record = queue.complete(record(queue.address()));
        let queue = MadeQueue::Kernels(queue);
        Ok(EndpointQueue { queue, hca, record })
    }

    /// Begins to bring up a queue.
    pub(super) fn connect_queue(
        &self,
        local: Endpoint,
        remote: &EndpointRecord,
        theirs: &QueueRecord,
        status: &Arc<StickyStatus>,
        deadline: Deadline,
    ) -> Result<Box<dyn Transport>> {
        #[cfg(feature = "ib")]
        if let Some(MadeQueue::Host(_)) = local.queue.as_ref().map(|made| &made.queue) {
            return self.connect_host_queue(local, remote, theirs, status, deadline);
        }
        let (end, handshake, route) = self.join_queue(local, remote, theirs, status, deadline)?;
        let transport = GpuTransport::start(end, handshake, route, self.watcher()?)?;
        Ok(Box::new(transport))
    }

    /// The same where the host posts.
    #[cfg(feature = "ib")]
    fn connect_host_queue(
        &self,
        mut local: Endpoint,
        remote: &EndpointRecord,
        theirs: &QueueRecord,
        status: &Arc<StickyStatus>,
        deadline: Deadline,
    ) -> Result<Box<dyn Transport>> {
        let Some(EndpointQueue { queue, hca, record }) = local.queue.take() else {
            return Err(incompatible(&local, remote));
        };
        let path = path(&record, theirs, remote)?;
        let (MadeQueue::Host(queue), Some(port)) = (queue, theirs.port) else {
            return Err(incompatible(&local, remote));
        };
        let route = self.route(&local, remote, ib::CONTROL, deadline)?;
        check_itself(&route, &record, theirs)?;
        let joined = ib::Joined {
            places: ib::Places {
                own: (self.id(), local.config.transport),
                peer: (remote.context, remote.transport),
            },
            rank: remote.rank(),
            path,
            port,
            hca,
            status: Arc::clone(status),
            table: Arc::clone(self.table()),
            route,
            deadlines: self.inner.config.deadlines,
            deadline,
        };
        Ok(Box::new(queue.start(joined, self.watcher()?)?))
    }

    /// An end of a connection, and what is needed to bring it up. From now on the other end's stream
    /// is expected.
    pub(crate) fn join_queue(
        &self,
        mut local: Endpoint,
        remote: &EndpointRecord,
        theirs: &QueueRecord,
        status: &Arc<StickyStatus>,
        deadline: Deadline,
    ) -> Result<(QueueEnd, Handshake, Route)> {
        // The transports reach each other, so this one has a queue, too.
        let Some(EndpointQueue { queue, hca, record }) = local.queue.take() else {
            return Err(incompatible(&local, remote));
        };
        let path = path(&record, theirs, remote)?;
        // The modes are the same, so this is for kernels, too.
        #[cfg_attr(
            not(feature = "ib"),
            expect(irrefutable_let_patterns, reason = "no other kind")
        )]
        let MadeQueue::Kernels(queue) = queue else {
            return Err(incompatible(&local, remote));
        };
        let job_key = self.inner.config.job_key.clone();
        let route = self.route(&local, remote, gpu_queue::CONTROL, deadline)?;
        check_itself(&route, &record, theirs)?;
        let ends = Ends {
            device: local.config.device,
            own: self.id(),
            local: local.config.transport,
            remote: remote.transport,
            peer: remote.context,
            rank: remote.rank(),
        };
        let signal_mode = local.config.ib.signal_mode;
        let status = Arc::clone(status);
        let control = ControlEnd::new(status, ends.rank, self.inner.config.deadlines);
        let end = QueueEnd::new(queue, hca, control, ends, path, signal_mode, deadline);
        let handshake = Handshake {
            acceptor: Arc::clone(&local.acceptor),
            peer: remote.address,
            socket: remote.socket.and_then(|socket| socket.here()),
            job_key,
            deadline,
        };
        Ok((end, handshake, route))
    }

    /// Begins to connect two GPUs of this host.
    pub(super) fn connect_ipc(
        &self,
        local: &Endpoint,
        remote: &EndpointRecord,
        status: &Arc<StickyStatus>,
        deadline: Deadline,
    ) -> Result<Box<dyn Transport>> {
        if remote.socket.and_then(|socket| socket.here()).is_none() {
            return Err(Error::Unsupported {
                operation: "connect",
                transport: TransportKind::CudaIpc,
                missing: "the peer is on another host",
            });
        }
        let route = self.route(local, remote, cuda_ipc::CONTROL, deadline)?;
        IpcTransport::start(
            (local.config.device, local.config.max_write_queue_size),
            (remote.context, remote.rank()),
            Arc::clone(status),
            (route, self.inner.config.deadlines),
            self.watcher()?,
        )
    }

    /// Where the control stream between two endpoints comes from.
    fn route(
        &self,
        local: &Endpoint,
        remote: &EndpointRecord,
        purpose: &str,
        deadline: Deadline,
    ) -> Result<Route> {
        let job_key = self.inner.config.job_key.as_ref();
        Ok(if remote.context != self.id() {
            Route::Network(Arrival::of(local, remote, job_key, purpose, deadline)?)
        } else if remote.nonce != local.nonce {
            Route::Context(self.meet(local.nonce, remote.nonce)?)
        } else {
            Route::Itself
        })
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

    pub(crate) fn watcher(&self) -> Result<Arc<Watcher>> {
        let mut watcher = lock(&self.inner.watcher);
        if let Some(watcher) = &*watcher {
            return Ok(Arc::clone(watcher));
        }
        Ok(Arc::clone(watcher.insert(Arc::new(Watcher::new()?))))
    }
}

/// The error of two ends whose transports do not reach each other.
pub(crate) fn incompatible(local: &Endpoint, remote: &EndpointRecord) -> Error {
    Error::IncompatibleTransports {
        local: local.config.transport,
        remote: remote.transport,
        rank: remote.rank(),
        tag: None,
    }
}

fn path(record: &QueueRecord, theirs: &QueueRecord, remote: &EndpointRecord) -> Result<Path> {
    gpu_queue::join(record, theirs).map_err(|reason| Error::IncompatibleEndpoints {
        reason,
        rank: remote.rank(),
        tag: None,
    })
}

/// An endpoint that is connected to itself has one queue.
fn check_itself(route: &Route, record: &QueueRecord, theirs: &QueueRecord) -> Result<()> {
    if matches!(route, Route::Itself) && theirs != record {
        return Err(Error::Record {
            what: "endpoint",
            detail: "it has this endpoint's number and another queue".into(),
        });
    }
    Ok(())
}
