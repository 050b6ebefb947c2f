// SPDX-License-Identifier: MIT
//! What a rank's connections and memories have in common.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::{Bound, RangeBounds};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mscclpp_bootstrap::link::Acceptor;
use mscclpp_bootstrap::{Bootstrap, Deadline, JobKey};
use serde::{Deserialize, Serialize};

use crate::arrival::Arrival;
use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::endpoint::{Endpoint, EndpointConfig, EndpointQueue, EndpointRecord};
use crate::env::env;
use crate::error::{Error, Result, check_range};
use crate::ethernet::{self, EthernetTransport, Settings};
use crate::gpu_queue::{
    self, Ends, GpuTransport, Handshake, Hca, Hcas, QueueEnd, QueuePlan, QueueRecord, Route, Turns,
    Watcher, WriteOrdering,
};
use crate::loopback::Loopback;
use crate::memory::{
    Access, MemoryOptions, Owner, Region, RegisteredMemory, Registration, RegistrationTable,
    random_u64,
};
use crate::status::StickyStatus;
use crate::transport::{Transport, TransportKind};

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

/// How a [`Context`] is made.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ContextConfig {
    /// The address that peers connect to; not the unspecified one.
    pub ip: IpAddr,
    /// The rank that errors and records name.
    pub rank: Option<usize>,
    /// The key that peers prove to have. Without, whoever sees an endpoint's record can connect.
    pub job_key: Option<JobKey>,
    /// How long a peer may take and acknowledge nothing, although there is something to, before
    /// its connection fails with [`Error::Stalled`]; also how long the network may be silent. 30 s
    /// by default, or what `MSCCLPP_CONNECTION_TIMEOUT` says, in seconds.
    pub stall_timeout: Duration,
    /// The HCAs that `IB0`, `IB1`, ... stand for, in this order; by default those that
    /// `MSCCLPP_HCA_DEVICES` names. Each is opened when it is first used.
    pub hca_devices: Vec<Hca>,
}

impl ContextConfig {
    /// The default at an address.
    #[must_use]
    pub fn new(ip: IpAddr) -> Self {
        Self {
            ip,
            rank: None,
            job_key: None,
            stall_timeout: env().connection_timeout,
            hca_devices: env().hca_devices.iter().map(Hca::named).collect(),
        }
    }

    /// The default for a bootstrap's rank: at the bootstrap's address and with its job key. A
    /// bootstrap that has no address gets the loopback address, which serves one machine.
    #[must_use]
    pub fn of_rank(bootstrap: &dyn Bootstrap) -> Self {
        let ip = bootstrap.local_ip().unwrap_or_else(|| {
            tracing::debug!("the bootstrap has no address: peers must be on this machine");
            std::net::Ipv4Addr::LOCALHOST.into()
        });
        Self {
            rank: Some(bootstrap.rank()),
            job_key: bootstrap.job_key(),
            ..Self::new(ip)
        }
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
    /// Made when the first endpoint needs it.
    acceptor: Mutex<Option<Arc<Acceptor>>>,
    hcas: Hcas,
    /// Made when the first queue needs it.
    watcher: Mutex<Option<Arc<Watcher>>>,
    turns: Arc<Turns>,
    /// Ends of control streams within this context, by both endpoints' nonces: the first end leaves
    /// the other half for the second.
    meetings: Mutex<HashMap<[u8; 16], UnixStream>>,
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
        if config.stall_timeout < Duration::from_millis(1) {
            return Err(invalid("the stall timeout is under 1 ms"));
        }
        Ok(Self {
            inner: Arc::new(Inner {
                id: ContextId::random()?,
                hcas: Hcas::new(&config.hca_devices),
                config,
                table: Arc::default(),
                acceptor: Mutex::default(),
                watcher: Mutex::default(),
                turns: Arc::default(),
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

    pub(crate) fn table(&self) -> &RegistrationTable {
        &self.inner.table
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn table_arc(&self) -> Arc<RegistrationTable> {
        Arc::clone(&self.inner.table)
    }

    /// The rank, where the context has one.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        self.inner.config.rank
    }

    /// Opens a range of a buffer, in bytes, to peers, for all operations. Offsets into the result
    /// start at the start of the range. Nothing is pinned or copied; a range of many GiB costs
    /// nothing.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::InvalidUsage`] for an empty range.
    pub fn register_memory(
        &self,
        buffer: &Buffer,
        range: impl RangeBounds<u64>,
    ) -> Result<RegisteredMemory> {
        self.register_memory_with(buffer, range, MemoryOptions::default())
    }

    /// Opens a range of a buffer to peers, over some transports and for some operations.
    ///
    /// # Errors
    /// As [`register_memory`](Self::register_memory); [`Error::Unsupported`] for a transport that
    /// this build lacks; [`Error::HcaUnavailable`]; [`Error::Hca`] if an HCA refuses.
    pub fn register_memory_with(
        &self,
        buffer: &Buffer,
        range: impl RangeBounds<u64>,
        options: MemoryOptions,
    ) -> Result<RegisteredMemory> {
        let out = |offset, len| Error::OutOfBounds {
            what: REGISTER,
            offset,
            len,
            size: buffer.len(),
        };
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.checked_add(1).ok_or_else(|| out(*before, 1))?,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.checked_add(1).ok_or_else(|| out(*last, 1))?,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => buffer.len(),
        };
        let len = end.saturating_sub(start);
        check_range(REGISTER, start, len, buffer.len())?;
        // Inside the buffer, so the offset fits an address.
        let base = buffer.as_ptr().wrapping_add(start as usize);
        let base = NonNull::new(base).ok_or_else(|| out(start, len))?;
        let plan = Plan {
            options,
            ordering: WriteOrdering::Relaxed,
            buffer: Some((buffer, start)),
        };
        // SAFETY: the range was checked to lie in the buffer, which goes with it.
        unsafe { self.register(base, len, plan) }
    }

    /// Opens all of a buffer to peers over one transport, as what their signals go to.
    pub(crate) fn register_signal(
        &self,
        buffer: &Buffer,
        transport: TransportKind,
    ) -> Result<RegisteredMemory> {
        let plan = Plan {
            options: MemoryOptions {
                transports: transport.into(),
                ..MemoryOptions::default()
            },
            ordering: WriteOrdering::Strict,
            buffer: Some((buffer, 0)),
        };
        let base = NonNull::new(buffer.as_ptr()).ok_or(Error::OutOfBounds {
            what: REGISTER,
            offset: 0,
            len: buffer.len(),
            size: 0,
        })?;
        // SAFETY: all of the buffer, which goes with it.
        unsafe { self.register(base, buffer.len(), plan) }
    }

    /// Opens memory that is not a [`Buffer`] to peers, over Ethernet.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if `len` is 0 or passes the end of the address space.
    ///
    /// # Safety
    /// `base` must be valid for reads and writes of `len` bytes from any thread until the last
    /// clone and sub-range of the result in this process is dropped. That drop ends all access:
    /// it waits for a copy that is going on (of 1 MiB at most), and a write that was posted from
    /// the memory and not yet sent fails its connection with [`Error::SourceGone`]. Until then,
    /// this program must access the memory only by atomic accesses where a peer may write it.
    pub unsafe fn register_raw(
        &self,
        base: NonNull<u8>,
        len: u64,
        access: Access,
    ) -> Result<RegisteredMemory> {
        let fits = usize::try_from(len).ok().is_some_and(|len| {
            isize::try_from(len).is_ok() && base.addr().get().checked_add(len).is_some()
        });
        if !fits {
            return Err(Error::InvalidUsage {
                operation: REGISTER,
                detail: format!("{len} bytes pass the end of the address space"),
            });
        }
        let plan = Plan {
            options: MemoryOptions {
                access,
                ..MemoryOptions::default()
            },
            ordering: WriteOrdering::Relaxed,
            buffer: None,
        };
        // SAFETY: the caller's promise.
        unsafe { self.register(base, len, plan) }
    }

    /// # Safety
    /// As [`Region::new`].
    unsafe fn register(
        &self,
        base: NonNull<u8>,
        len: u64,
        plan: Plan<'_>,
    ) -> Result<RegisteredMemory> {
        let invalid = |detail: &str| Error::InvalidUsage {
            operation: REGISTER,
            detail: detail.into(),
        };
        if len == 0 {
            return Err(invalid("the range is empty"));
        }
        let MemoryOptions { transports, access } = plan.options;
        let mut hcas = Vec::new();
        for transport in TransportKind::ALL {
            match transport {
                _ if !transports.has(transport) => {}
                TransportKind::Unknown => return Err(invalid("UNK is no transport")),
                TransportKind::CudaIpc => {
                    return Err(Error::Unsupported {
                        operation: REGISTER,
                        transport,
                        missing: "this build has no CUDA support",
                    });
                }
                TransportKind::Ethernet => {}
                _ => {
                    let hca = self.inner.hcas.get(transport)?;
                    let Some((buffer, offset)) = plan.buffer else {
                        return Err(invalid("HCAs reach buffers only"));
                    };
                    let registration = hca.register(buffer, offset, len, access, plan.ordering)?;
                    hcas.push((transport, registration));
                }
            }
        }
        if transports.none() {
            return Err(invalid("no transport was chosen"));
        }
        // What peers may do over Ethernet; HCAs look after their own.
        let over_ethernet = if transports.has(TransportKind::Ethernet) {
            access
        } else {
            Access::LOCAL
        };
        let buffer = plan.buffer.map(|(buffer, _)| buffer.clone());
        // SAFETY: the caller's promise.
        let region = Arc::new(unsafe { Region::new(base, len, over_ethernet, buffer) });
        let table = &self.inner.table;
        let registration = table.insert(Arc::clone(&region), |key| {
            Arc::new(Registration {
                key,
                owner: Owner {
                    context: self.inner.id,
                    rank: self.inner.config.rank,
                },
                transports,
                region,
                table: Arc::clone(table),
                hcas,
            })
        })?;
        Ok(RegisteredMemory::local(registration))
    }

    /// Makes one end of a connection.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a transport that this build lacks; [`Error::InvalidUsage`] for
    /// none, for a queue of under 3, or for what the HCA cannot do; [`Error::DeviceUnavailable`];
    /// [`Error::Bootstrap`] if no port can be opened; [`Error::HcaUnavailable`], and [`Error::Hca`]
    /// if the HCA makes no queue.
    pub fn create_endpoint(&self, config: EndpointConfig) -> Result<Endpoint> {
        config.check()?;
        let queue = (config.transport.is_ib())
            .then(|| self.create_queue(&config))
            .transpose()?;
        Ok(Endpoint {
            config,
            context: self.clone(),
            nonce: random_bytes()?,
            acceptor: self.acceptor()?,
            queue,
        })
    }

    fn create_queue(&self, config: &EndpointConfig) -> Result<EndpointQueue> {
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
    /// [`Error::Record`]; [`Error::InvalidUsage`] for an endpoint of another context.
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
        let remote = EndpointRecord::decode(remote)?;
        if !local.config.transport.reaches(remote.transport) {
            return Err(Error::IncompatibleTransports {
                local: local.config.transport,
                remote: remote.transport,
            });
        }
        let status = StickyStatus::new();
        let rank = remote.rank();
        let (config, remote_transport) = (local.config, remote.transport);
        let link: Box<dyn Transport> = match (&remote.queue, remote.context == self.id()) {
            (Some(queue), _) => {
                Box::new(self.connect_queue(local, &remote, queue, &status, deadline)?)
            }
            (None, true) => {
                let table = Arc::clone(&self.inner.table);
                Box::new(Loopback::new(table, Arc::clone(&status), self.id(), rank))
            }
            (None, false) => {
                let job_key = self.inner.config.job_key.as_ref();
                let arrival = Arrival::of(&local, &remote, job_key, ethernet::PURPOSE, deadline)?;
                let settings = Settings {
                    table: Arc::clone(&self.inner.table),
                    status: Arc::clone(&status),
                    rank,
                    peer: remote.context,
                    queue: local.config.max_write_queue_size,
                    stall_timeout: self.inner.config.stall_timeout,
                };
                Box::new(EthernetTransport::new(arrival, settings)?)
            }
        };
        Ok(Connection::new(
            link,
            status,
            rank,
            config,
            remote_transport,
        ))
    }

    /// Begins to bring up a queue that kernels post to.
    fn connect_queue(
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
            job_key,
            stall_timeout: self.inner.config.stall_timeout,
            deadline,
        };
        GpuTransport::start(end, handshake, route, self.watcher()?)
    }

    /// The control stream between two endpoints of this context.
    fn meet(&self, local: [u8; 16], remote: [u8; 16]) -> Result<UnixStream> {
        let both = std::array::from_fn(|i| local[i] ^ remote[i]);
        let mut meetings = lock(&self.inner.meetings);
        if let Some(stream) = meetings.remove(&both) {
            return Ok(stream);
        }
        let (ours, theirs) = UnixStream::pair()
            .map_err(|error| Error::io("make a control stream within a context", error))?;
        meetings.insert(both, theirs);
        Ok(ours)
    }

    fn watcher(&self) -> Result<Arc<Watcher>> {
        let mut watcher = lock(&self.inner.watcher);
        if let Some(watcher) = &*watcher {
            return Ok(Arc::clone(watcher));
        }
        Ok(Arc::clone(watcher.insert(Arc::new(Watcher::new()?))))
    }

    fn acceptor(&self) -> Result<Arc<Acceptor>> {
        let mut acceptor = lock(&self.inner.acceptor);
        if let Some(acceptor) = &*acceptor {
            return Ok(Arc::clone(acceptor));
        }
        let made = Acceptor::bind(self.inner.config.ip).map_err(|source| Error::Bootstrap {
            operation: "open a port for connections".into(),
            source: Arc::new(source),
        })?;
        Ok(Arc::clone(acceptor.insert(Arc::new(made))))
    }
}

const REGISTER: &str = "register memory";

/// What is to be registered, and how.
struct Plan<'a> {
    options: MemoryOptions,
    ordering: WriteOrdering,
    /// The buffer that the memory is of, and where in it.
    buffer: Option<(&'a Buffer, u64)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn random_bytes() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&random_u64()?.to_le_bytes());
    bytes[8..].copy_from_slice(&random_u64()?.to_le_bytes());
    Ok(bytes)
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("ip", &self.inner.config.ip)
            .field("rank", &self.inner.config.rank)
            .finish_non_exhaustive()
    }
}
