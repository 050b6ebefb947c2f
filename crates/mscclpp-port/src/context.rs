// SPDX-License-Identifier: MIT
//! What a rank's connections and memories have in common.

use std::fmt;
use std::net::IpAddr;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mscclpp_bootstrap::link::Acceptor;
use mscclpp_bootstrap::{Bootstrap, Deadline, JobKey};
use serde::{Deserialize, Serialize};

use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::endpoint::{Endpoint, EndpointConfig, EndpointRecord};
use crate::env::env;
use crate::error::{Error, Result, check_range};
use crate::ethernet::{Arrival, EthernetTransport, Settings};
use crate::loopback::Loopback;
use crate::memory::{
    Access, Owner, Region, RegisteredMemory, Registration, RegistrationTable, random_u64,
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
                config,
                table: Arc::default(),
                acceptor: Mutex::default(),
            }),
        })
    }

    /// The context of a bootstrap's rank, at the bootstrap's address and with its job key. A
    /// bootstrap that has no address gets the loopback address, which serves one machine.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_rank(bootstrap: &dyn Bootstrap) -> Result<Self> {
        let ip = bootstrap.local_ip().unwrap_or_else(|| {
            tracing::debug!("the bootstrap has no address: peers must be on this machine");
            std::net::Ipv4Addr::LOCALHOST.into()
        });
        Self::with_config(ContextConfig {
            rank: Some(bootstrap.rank()),
            job_key: bootstrap.job_key(),
            ..ContextConfig::new(ip)
        })
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
        self.register_memory_with(buffer, range, Access::FULL)
    }

    /// Opens a range of a buffer to peers, for some operations.
    ///
    /// # Errors
    /// As [`register_memory`](Self::register_memory).
    pub fn register_memory_with(
        &self,
        buffer: &Buffer,
        range: impl RangeBounds<u64>,
        access: Access,
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
        // SAFETY: the range was checked to lie in the buffer, which goes with it.
        unsafe { self.register(base, len, access, Some(buffer.clone())) }
    }

    /// Opens memory that is not a [`Buffer`] to peers.
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
        // SAFETY: the caller's promise.
        unsafe { self.register(base, len, access, None) }
    }

    /// # Safety
    /// As [`Region::new`].
    unsafe fn register(
        &self,
        base: NonNull<u8>,
        len: u64,
        access: Access,
        buffer: Option<Buffer>,
    ) -> Result<RegisteredMemory> {
        if len == 0 {
            return Err(Error::InvalidUsage {
                operation: REGISTER,
                detail: "the range is empty".into(),
            });
        }
        // SAFETY: the caller's promise.
        let region = Arc::new(unsafe { Region::new(base, len, access, buffer) });
        let table = &self.inner.table;
        let registration = table.insert(Arc::clone(&region), |key| {
            Arc::new(Registration {
                key,
                owner: Owner {
                    context: self.inner.id,
                    rank: self.inner.config.rank,
                },
                transports: TransportKind::Ethernet.into(),
                region,
                table: Arc::clone(table),
            })
        })?;
        Ok(RegisteredMemory::local(registration))
    }

    /// Makes one end of a connection.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a transport that this build lacks; [`Error::InvalidUsage`] for
    /// none, or for a queue of under 3; [`Error::DeviceUnavailable`]; [`Error::Bootstrap`] if no
    /// port can be opened.
    pub fn create_endpoint(&self, config: EndpointConfig) -> Result<Endpoint> {
        config.check()?;
        Ok(Endpoint {
            config,
            context: self.clone(),
            nonce: random_bytes()?,
            acceptor: self.acceptor()?,
        })
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
    /// [`Error::IncompatibleTransports`], which the peer gets too; [`Error::Record`];
    /// [`Error::InvalidUsage`] for an endpoint of another context.
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
        let table = Arc::clone(&self.inner.table);
        let link: Box<dyn Transport> = if remote.context == self.id() {
            Box::new(Loopback::new(table, Arc::clone(&status), self.id(), rank))
        } else {
            let job_key = self.inner.config.job_key.as_ref();
            let arrival = Arrival::of(&local, &remote, job_key, deadline)?;
            let settings = Settings {
                table,
                status: Arc::clone(&status),
                rank,
                peer: remote.context,
                queue: local.config.max_write_queue_size,
                stall_timeout: self.inner.config.stall_timeout,
            };
            Box::new(EthernetTransport::new(arrival, settings)?)
        };
        Ok(Connection::new(
            link,
            status,
            rank,
            local.config,
            remote.transport,
        ))
    }

    fn acceptor(&self) -> Result<Arc<Acceptor>> {
        let mut acceptor = (self.inner.acceptor.lock()).unwrap_or_else(PoisonError::into_inner);
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
