// SPDX-License-Identifier: MIT
//! How two ranks make connections, memories and semaphores together.

mod lines;
mod peers;
mod pending;
mod record;
mod slot;

use std::ops::Range;
use std::sync::Arc;

use mscclpp_bootstrap::{Bootstrap, Deadline};

use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::context::{Context, ContextConfig};
use crate::counters::Snapshot;
use crate::endpoint::{EndpointConfig, EndpointRecord};
use crate::error::{Error, Result};
use crate::memory::{MemoryOptions, RegisteredMemory, SignalMemory};
use crate::semaphore::Semaphore;
use crate::status::StickyStatus;
use lines::Lines;
use peers::Peers;
use pending::Line;
pub use pending::Pending;
use record::{Kind, Record};

/// Makes connections, memories and semaphores with other ranks, over a bootstrap.
///
/// Calls never wait for the peer's: this rank's half is sent at once, and what needs the peer's half
/// is a [`Pending`] whose [`get`](Pending::get) waits, under a deadline. So ranks may make their
/// calls to different peers in any order. For each rank and tag the calls of both sides pair up one
/// by one, in order; different tags are independent, and none meets the tags of the bootstrap's
/// users. The own rank is a peer like any other.
///
/// A rank that dies is noticed by the bootstrap: all connections to it are marked, which releases
/// kernels that wait on them with `PeerDown`, and makes later calls fail at once with
/// [`Error::PeerDown`]. What a communicator made stays usable without it.
///
/// Cheap to clone; all methods may be called from any thread.
///
/// Two ranks, here threads, without a kernel: the host of one writes into the memory of the other.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use mscclpp_bootstrap::{Bootstrap, Deadline, TcpBootstrap};
/// use mscclpp_port::{
///     Buffer, Communicator, Device, EndpointConfig, Host2HostSemaphore, TransportKind,
/// };
///
/// type AnyError = Box<dyn std::error::Error + Send + Sync>;
///
/// fn rank(bootstrap: Arc<dyn Bootstrap>) -> Result<u64, AnyError> {
///     let (rank, peer) = (bootstrap.rank(), 1 - bootstrap.rank());
///     let communicator = Communicator::new(bootstrap)?;
///     let buffer = Buffer::new(Device::cpu(), 4096)?;
///     let local = communicator.register_memory(&buffer, 0..4096)?;
///     communicator.send_memory(&local, peer, 0)?;
///     let remote = communicator.recv_memory(peer, 0)?;
///     let endpoint = EndpointConfig::new(TransportKind::Ethernet);
///     let connection = communicator.connect(endpoint, peer, 0)?.get()?;
///     let semaphore = communicator.build_semaphore(&connection, peer, 0)?.get()?;
///     let semaphore = Host2HostSemaphore::new(semaphore)?;
///     if rank == 0 {
///         buffer.store_u64(0, 42)?;
///         connection.write(&remote.get()?, 0, &local, 0, 8)?;
///         semaphore.signal()?;
///     } else {
///         semaphore.wait(Deadline::default())?;
///     }
///     let found = buffer.load_u64(0)?;
///     // Nobody leaves while others still need it.
///     communicator.bootstrap().barrier()?;
///     Ok(found)
/// }
///
/// # fn main() -> Result<(), AnyError> {
/// let timeout = Duration::from_secs(20);
/// let zero = TcpBootstrap::new(0, 2)?;
/// let id = zero.create_unique_id_at([127, 0, 0, 1].into())?;
/// let copy = id.clone();
/// let other = std::thread::spawn(move || {
///     let one = TcpBootstrap::new(1, 2)?;
///     one.initialize(&copy, timeout)?;
///     rank(Arc::new(one))
/// });
/// zero.initialize(&id, timeout)?;
/// rank(Arc::new(zero))?;
/// assert_eq!(other.join().unwrap()?, 42);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Communicator {
    shared: Arc<Shared>,
}

struct Shared {
    bootstrap: Arc<dyn Bootstrap>,
    context: Context,
    peers: Arc<Peers>,
    lines: Lines,
}

impl Communicator {
    /// A communicator of all ranks of a bootstrap that has joined. Every rank makes one; nothing
    /// is sent yet.
    ///
    /// # Errors
    /// Those of [`Context::new`].
    pub fn new(bootstrap: Arc<dyn Bootstrap>) -> Result<Self> {
        let config = ContextConfig::of_rank(&*bootstrap);
        Self::with_config(bootstrap, config)
    }

    /// A communicator whose context is made as described, for example with other HCAs than the
    /// environment names. Start from [`ContextConfig::of_rank`]; the rank is always the bootstrap's.
    ///
    /// # Errors
    /// Those of [`Context::with_config`].
    pub fn with_config(bootstrap: Arc<dyn Bootstrap>, config: ContextConfig) -> Result<Self> {
        let rank = Some(bootstrap.rank());
        let context = Context::with_config(ContextConfig { rank, ..config })?;
        let peers = Peers::new(&bootstrap);
        Ok(Self {
            shared: Arc::new(Shared {
                bootstrap,
                context,
                peers,
                lines: Lines::default(),
            }),
        })
    }

    /// The bootstrap underneath.
    pub fn bootstrap(&self) -> &Arc<dyn Bootstrap> {
        &self.shared.bootstrap
    }

    /// The context in which memories and endpoints are made.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// What its connections and HCAs have done so far; the same as [`Context::counters`].
    #[must_use]
    pub fn counters(&self) -> Snapshot {
        self.shared.context.counters()
    }

    /// Opens a range of a buffer, in bytes, to this rank's peers.
    ///
    /// # Errors
    /// Those of [`Context::register_memory`].
    pub fn register_memory(&self, buffer: &Buffer, range: Range<u64>) -> Result<RegisteredMemory> {
        self.shared.context.register_memory(buffer, range)
    }

    /// Opens a range of a buffer, in bytes, to this rank's peers, over some transports and for some
    /// operations.
    ///
    /// # Errors
    /// Those of [`Context::register_memory_with`].
    pub fn register_memory_with(
        &self,
        buffer: &Buffer,
        range: Range<u64>,
        options: MemoryOptions,
    ) -> Result<RegisteredMemory> {
        (self.shared.context).register_memory_with(buffer, range, options)
    }

    /// Sends the right to reach a memory to `rank`, who takes it with
    /// [`recv_memory`](Self::recv_memory) on the same tag. Waits for no call of the peer.
    ///
    /// # Errors
    /// [`Error::PeerDown`] or [`Error::Bootstrap`] when it cannot be sent;
    /// [`Error::InvalidUsage`] for an empty placeholder.
    pub fn send_memory(&self, memory: &RegisteredMemory, rank: usize, tag: u32) -> Result<()> {
        let record = Record::new(Kind::Memory, memory.serialize()?);
        self.line("send a memory", rank, tag)?.send(&record)
    }

    /// Receives a memory that `rank` sends with [`send_memory`](Self::send_memory) on this tag.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] when there is no such rank. The result has errors of its own.
    pub fn recv_memory(&self, rank: usize, tag: u32) -> Result<Pending<RegisteredMemory>> {
        let line = self.line("receive a memory", rank, tag)?;
        Ok(line.receive(Kind::Memory, self.memory_of(rank, tag)))
    }

    /// Sends a memory and receives the peer's, in one: no other call with this rank and tag comes
    /// between.
    pub(crate) fn exchange_memory(
        &self,
        memory: &RegisteredMemory,
        rank: usize,
        tag: u32,
    ) -> Result<Pending<RegisteredMemory>> {
        let half = ((), memory.serialize()?);
        let mut make = self.memory_of(rank, tag);
        let make = move |(): &mut (), record: &[u8], deadline| make(record, deadline);
        (self.line("exchange memory", rank, tag)?).exchange(Kind::Memory, Ok(half), make)
    }

    /// Makes a memory of a rank's record.
    fn memory_of(
        &self,
        rank: usize,
        tag: u32,
    ) -> impl FnMut(&[u8], Deadline) -> Result<RegisteredMemory> + Send + 'static {
        let context = self.shared.context.clone();
        move |record, deadline| {
            RegisteredMemory::deserialize_by(&context, record, deadline)
                .map_err(Error::said_by(rank, tag))
        }
    }

    /// Connects to `rank`, who must do the same on the same tag, with an endpoint that can be
    /// connected to this one. The result is there when the peer's half has come; from then on the
    /// connection may take as long as the bootstrap's timeout to come up, which nobody has to wait for.
    ///
    /// # Errors
    /// Those of [`Context::create_endpoint`]: the peer is told, and its result is
    /// [`Error::PeerGaveUp`]. Those of sending: the same call may be made again. A half that may still
    /// arrive though the time was up takes the peer's with it, so that both ranks call again. The result
    /// has errors of its own.
    pub fn connect(
        &self,
        config: EndpointConfig,
        rank: usize,
        tag: u32,
    ) -> Result<Pending<Connection>> {
        let line = self.line("connect", rank, tag)?;
        let context = self.shared.context.clone();
        let peers = Arc::clone(&self.shared.peers);
        let timeout = self.shared.bootstrap.timeout();
        let half = context.create_endpoint(config).and_then(|endpoint| {
            let record = endpoint.serialize()?;
            Ok((Some(endpoint), record))
        });
        line.exchange(Kind::Endpoint, half, move |local, record, _| {
            // Called once, of an endpoint.
            let local = local.take().ok_or_else(|| Error::InvalidUsage {
                operation: "connect",
                detail: "the endpoint is connected already".into(),
            })?;
            // Not the caller's deadline: it comes up by itself, when the peer has asked, too.
            let deadline = Deadline::after(timeout);
            let connection = EndpointRecord::decode(record)
                .and_then(|remote| {
                    check_owner("endpoint", remote.rank(), rank)?;
                    context.connect_to(local, &remote, deadline)
                })
                .map_err(Error::said_by(rank, tag))?;
            peers.enter(connection.sticky(), rank, tag);
            Ok(connection)
        })
    }

    /// Makes a semaphore over a connection with `rank`, who must do the same on the same tag, with its
    /// end of the same connection: the halves meet by the tag alone. So use another tag for each
    /// connection between the same ranks.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if the connection leads to another rank. The connection's, if it is down
    /// already, and those of allocating and registering a token: the peer is told. Those of sending, as
    /// with [`connect`](Self::connect). The result has errors of its own.
    pub fn build_semaphore(
        &self,
        connection: &Connection,
        rank: usize,
        tag: u32,
    ) -> Result<Pending<Semaphore>> {
        if let Some(peer) = connection.peer().filter(|peer| *peer != rank) {
            return Err(Error::InvalidUsage {
                operation: "build a semaphore",
                detail: format!("the connection leads to rank {peer}, not to rank {rank}"),
            });
        }
        let line = self.line("build a semaphore", rank, tag)?;
        let context = self.shared.context.clone();
        let (device, transport) = (connection.local_device(), connection.transport());
        let half = (connection.sticky().check())
            .and_then(|()| SignalMemory::new(&context, device, transport))
            .and_then(|own| own.record().map(|record| (own, record)));
        let status = Arc::clone(connection.sticky());
        let connection = connection.clone();
        let pending = line.exchange(Kind::Semaphore, half, move |own, record, deadline| {
            let remote = RegisteredMemory::deserialize_by(&context, record, deadline)
                .and_then(|remote| {
                    check_owner("semaphore", remote.owner_rank(), rank)?;
                    Ok(remote)
                })
                .map_err(Error::said_by(rank, tag))?;
            Ok(Semaphore::new(connection.clone(), own.clone(), remote))
        })?;
        Ok(pending.over(&status))
    }

    /// The rank that a connection of this communicator leads to.
    ///
    /// # Errors
    /// [`Error::UnknownConnection`] if this communicator did not make it.
    pub fn remote_rank_of(&self, connection: &Connection) -> Result<usize> {
        Ok(self.shared.peers.find(connection)?.0)
    }

    /// The tag that a connection of this communicator was made with.
    ///
    /// # Errors
    /// [`Error::UnknownConnection`] if this communicator did not make it.
    pub fn tag_of(&self, connection: &Connection) -> Result<u32> {
        Ok(self.shared.peers.find(connection)?.1)
    }

    /// Marks the status of a connection that is made elsewhere when its rank dies.
    pub(crate) fn adopt(&self, status: &Arc<StickyStatus>, rank: usize, tag: u32) {
        self.shared.peers.enter(status, rank, tag);
    }

    fn line(&self, operation: &'static str, rank: usize, tag: u32) -> Result<Arc<Line>> {
        let world = self.shared.bootstrap.world_size();
        if rank >= world {
            return Err(Error::InvalidUsage {
                operation,
                detail: format!(
                    "rank {rank} does not exist: the world has {world} ranks, numbered from 0 (tag {tag})"
                ),
            });
        }
        Ok(self.shared.lines.get(&self.shared.bootstrap, rank, tag))
    }
}

/// Refuses what a rank sends as its own and another has said.
fn check_owner(what: &'static str, owner: Option<usize>, rank: usize) -> Result<()> {
    if owner == Some(rank) {
        return Ok(());
    }
    let owner = owner.map_or("of no rank".into(), |owner| format!("that of rank {owner}"));
    Err(Error::Record {
        what,
        detail: format!("it is {owner}, not that of rank {rank}"),
    })
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.shared.bootstrap.rank())
            .field("world_size", &self.shared.bootstrap.world_size())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
