// SPDX-License-Identifier: MIT
//! What a rank's connections and memories have in common.

mod config;
mod queues;
mod registration;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use mscclpp_bootstrap::link::Acceptor;
use mscclpp_bootstrap::{Bootstrap, Deadline, Deadlines};
use serde::{Deserialize, Serialize};
use tracing::field::display;

pub use config::ContextConfig;

use crate::arrival::Arrival;
use crate::async_errors::{AsyncError, AsyncErrors, Listeners};
use crate::connection::{self, Connection, Ends};
use crate::counters::Snapshot;
#[cfg(feature = "cuda")]
use crate::cuda_ipc::Sharing;
use crate::endpoint::{Endpoint, EndpointConfig, EndpointRecord};
use crate::error::{Error, Result};
use crate::ethernet::{self, EthernetTransport, Settings};
use crate::gpu_queue::Hcas;
use crate::loopback::Loopback;
use crate::memory::RegistrationTable;
use crate::random::random_bytes;
use crate::status::StickyStatus;
use crate::sync::lock_plain as lock;
use crate::trace::LinkTrace;
use crate::transport::{Transport, TransportKind};
use crate::watcher::Watcher;
pub(crate) use queues::incompatible;

/// Names an endpoint. Random.
type Nonce = [u8; 16];

/// Names a context to its peers. Random.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct ContextId([u8; 16]);

impl ContextId {
    fn random() -> Result<Self> {
        random_bytes().map(Self)
    }

    #[cfg(test)]
    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// A rank's registrations, and the port at which its connections arrive.
///
/// Clones share it. All methods may be called from any thread. Connections and memories outlive it.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    id: ContextId,
    config: ContextConfig,
    table: Arc<RegistrationTable>,
    listeners: Arc<Listeners>,
    /// Made when the first endpoint needs it.
    acceptor: Mutex<Option<Arc<Acceptor>>>,
    hcas: Hcas,
    /// For CUDA IPC.
    #[cfg(feature = "cuda")]
    sharing: Sharing,
    /// Those that exist are among them.
    connections: Mutex<Vec<Weak<connection::Inner>>>,
    /// Made when the first queue needs it.
    watcher: Mutex<Option<Arc<Watcher>>>,
    /// Endpoints that are not connected yet, by their nonces, each with the control streams that
    /// other endpoints of this context, by theirs, have left for it.
    meetings: Mutex<HashMap<Nonce, HashMap<Nonce, UnixStream>>>,
}

impl Context {
    /// A context whose peers connect to `ip`.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] for the unspecified address; [`Error::Io`] without random numbers.
    pub fn new(ip: IpAddr) -> Result<Self> {
        Self::with_config(ContextConfig::new(ip))
    }

    /// A context as described.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::InvalidUsage`] for a stall timeout under 1 ms.
    pub fn with_config(config: ContextConfig) -> Result<Self> {
        let invalid = |detail: &str| Error::InvalidUsage {
            operation: "make a context",
            detail: detail.into(),
        };
        if config.ip.is_unspecified() {
            return Err(invalid("peers cannot connect to the unspecified address"));
        }
        if config.deadlines.stall < Duration::from_millis(1) {
            return Err(invalid("the stall timeout is under 1 ms"));
        }
        Ok(Self {
            inner: Arc::new(Inner {
                id: ContextId::random()?,
                hcas: Hcas::new(&config.hca_devices, config.trace.clone()),
                config,
                table: Arc::default(),
                listeners: Arc::default(),
                acceptor: Mutex::default(),
                #[cfg(feature = "cuda")]
                sharing: Sharing::default(),
                connections: Mutex::default(),
                watcher: Mutex::default(),
                meetings: Mutex::default(),
            }),
        })
    }

    /// The context of a bootstrap's rank: see [`ContextConfig::of_rank`].
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_rank(bootstrap: &dyn Bootstrap) -> Result<Self> {
        Self::with_config(ContextConfig::of_rank(bootstrap))
    }

    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self::new(std::net::Ipv4Addr::LOCALHOST.into()).unwrap()
    }

    pub(crate) fn id(&self) -> ContextId {
        self.inner.id
    }

    pub(crate) fn table(&self) -> &Arc<RegistrationTable> {
        &self.inner.table
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn table_arc(&self) -> Arc<RegistrationTable> {
        Arc::clone(&self.inner.table)
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn sharing(&self) -> &Sharing {
        &self.inner.sharing
    }

    pub(crate) fn deadlines(&self) -> &Deadlines {
        &self.inner.config.deadlines
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn job_key(&self) -> Option<&mscclpp_bootstrap::JobKey> {
        self.inner.config.job_key.as_ref()
    }

    /// The rank, where the context has one.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        self.inner.config.rank
    }

    /// Makes one end of a connection.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a transport that this build lacks; [`Error::InvalidUsage`] for
    /// none, for a queue of under 3, or for what the HCA cannot do; [`Error::DeviceUnavailable`];
    /// [`Error::Bootstrap`] if no port can be opened; [`Error::HcaUnavailable`], and [`Error::Hca`]
    /// if the HCA makes no queue.
    pub fn create_endpoint(&self, config: EndpointConfig) -> Result<Endpoint> {
        let (rank, transport) = (self.rank(), display(config.transport));
        let _span = tracing::debug_span!("create_endpoint", rank, transport).entered();
        config.check()?;
        #[cfg(feature = "cuda")]
        if config.device.kind() == crate::device::DeviceKind::Gpu {
            self.inner.sharing.note(config.device);
        }
        let queue = (config.transport.is_ib())
            .then(|| self.create_queue(&config))
            .transpose()?;
        let (nonce, acceptor) = (random_bytes()?, self.acceptor()?);
        lock(&self.inner.meetings).insert(nonce, HashMap::new());
        Ok(Endpoint {
            config,
            context: self.clone(),
            nonce,
            acceptor,
            queue,
        })
    }

    /// An endpoint is gone, or connected: what was left for it ends.
    pub(crate) fn forget_endpoint(&self, nonce: Nonce) {
        let left = lock(&self.inner.meetings).remove(&nonce);
        drop(left);
    }

    /// Connects an endpoint of this context to the one whose record the peer has sent. The peer
    /// does the same with this one's.
    ///
    /// This does not wait for the peer: the connection is made in the background, until
    /// `deadline`, and posts wait in its queue. So ranks may connect in any order. If it cannot be
    /// made, [`Connection::status`] tells why, and what waits for it ends with that error;
    /// [`Connection::wait_connected`] waits for the outcome.
    ///
    /// An endpoint may be connected to itself or to another of its context: the result reaches
    /// this process's own memory.
    ///
    /// # Errors
    /// [`Error::IncompatibleTransports`] and [`Error::IncompatibleEndpoints`], which the peer gets too;
    /// [`Error::Unsupported`] over CUDA IPC for an endpoint of another host; [`Error::Record`];
    /// [`Error::InvalidUsage`] for an endpoint of another context; over GPUs, [`Error::Cuda`].
    pub fn connect(
        &self,
        local: Endpoint,
        remote: &[u8],
        deadline: Deadline,
    ) -> Result<Connection> {
        if local.context.id() != self.id() {
            return Err(Error::InvalidUsage {
                operation: "connect",
                detail: "the endpoint is of another context".into(),
            });
        }
        self.connect_to(local, &EndpointRecord::decode(remote)?, deadline)
    }

    /// The same with a record that has been decoded and checked.
    pub(crate) fn connect_to(
        &self,
        local: Endpoint,
        remote: &EndpointRecord,
        deadline: Deadline,
    ) -> Result<Connection> {
        if !local.config.transport.reaches(remote.transport) {
            return Err(incompatible(&local, remote));
        }
        let rank = remote.rank();
        let transport = display(local.config.transport);
        let span = tracing::debug_span!("connect", rank = self.rank(), peer = rank, transport);
        // Threads that bring the connection up take the span along.
        let _span = span.entered();
        let status = self.new_status(rank, local.config.transport)?;
        let (config, remote_transport) = (local.config, remote.transport);
        let link: Box<dyn Transport> = match (&remote.queue, remote.context == self.id()) {
            (Some(queue), _) => self.connect_queue(local, remote, queue, &status, deadline)?,
            (None, _) if config.transport == TransportKind::CudaIpc => {
                self.connect_ipc(&local, remote, &status, deadline)?
            }
            (None, true) => {
                let table = Arc::clone(&self.inner.table);
                Box::new(Loopback::new(table, Arc::clone(&status), self.id(), rank))
            }
            (None, false) => {
                let job_key = self.inner.config.job_key.as_ref();
                let trace = (self.inner.config.trace.as_ref())
                    .map(|tracer| LinkTrace::new(tracer, rank, &local.nonce, &remote.nonce));
                let arrival = Arrival::of(&local, remote, job_key, ethernet::PURPOSE, deadline)?;
                let settings = Settings {
                    table: Arc::clone(&self.inner.table),
                    status: Arc::clone(&status),
                    own: self.rank(),
                    rank,
                    peer: remote.context,
                    queue: local.config.max_write_queue_size,
                    deadlines: self.inner.config.deadlines,
                    device: config.device,
                    trace,
                };
                Box::new(EthernetTransport::new(arrival, settings)?)
            }
        };
        Ok(self.new_connection(link, status, rank, (config, remote_transport)))
    }

    /// A connection over a transport that has been made for it.
    pub(crate) fn new_connection(
        &self,
        link: Box<dyn Transport>,
        status: Arc<StickyStatus>,
        peer: Option<usize>,
        (config, remote): (EndpointConfig, TransportKind),
    ) -> Connection {
        let ends = Ends::new(self.rank(), peer);
        let made = Connection::new(link, status, ends, config, remote);
        let mut connections = lock(&self.inner.connections);
        connections.retain(|connection| connection.strong_count() > 0);
        connections.push(made.downgrade());
        made
    }

    /// What the context's connections and HCAs have done so far: see
    /// [`Connection::counters`]. A connection whose last clone is dropped meanwhile may end on this
    /// thread. NICs in software are asked under their lock.
    #[must_use]
    pub fn counters(&self) -> Snapshot {
        // Let go of before a connection may end.
        let connections = lock(&self.inner.connections).clone();
        let connections = connections.iter().filter_map(Connection::of);
        Snapshot {
            connections: connections.map(|each| each.counters()).collect(),
            hcas: (self.inner.hcas.opened().iter())
                .filter_map(|hca| hca.counters())
                .map(|hca| hca.of_rank(self.rank()))
                .collect(),
            ..Snapshot::default()
        }
    }

    /// A stream of what ends connections of this context from now on, for a supervisor: who waits on
    /// a connection learns of its error in any case.
    #[must_use]
    pub fn async_errors(&self) -> AsyncErrors {
        self.inner.listeners.listen()
    }

    /// The status of a connection to be, whose error the context's listeners hear of.
    pub(crate) fn new_status(
        &self,
        peer: Option<usize>,
        transport: TransportKind,
    ) -> Result<Arc<StickyStatus>> {
        let (listeners, rank) = (Arc::clone(&self.inner.listeners), self.rank());
        StickyStatus::witnessed(move |error| {
            listeners.tell(&AsyncError {
                rank,
                peer,
                transport,
                error,
            });
        })
    }

    pub(crate) fn acceptor(&self) -> Result<Arc<Acceptor>> {
        let mut acceptor = lock(&self.inner.acceptor);
        if let Some(acceptor) = &*acceptor {
            return Ok(Arc::clone(acceptor));
        }
        let made = Acceptor::bind_with(self.inner.config.ip, self.deadlines());
        let made = made.map_err(|source| Error::Bootstrap {
            operation: "open a port for connections".into(),
            source: Arc::new(source),
        })?;
        Ok(Arc::clone(acceptor.insert(Arc::new(made))))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("ip", &self.inner.config.ip)
            .field("rank", &self.inner.config.rank)
            .finish_non_exhaustive()
    }
}
