// SPDX-License-Identifier: MIT
//! Queues between many ranks that come up together or not at all.

mod counts;
mod demand;
mod edges;
mod pairwise;
mod record;
mod setup;
mod state;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use mscclpp_bootstrap::{Bootstrap, Deadline};

use crate::async_errors::AsyncErrors;
use crate::buffer::Buffer;
use crate::communicator::{Communicator, Pending};
use crate::connection::Connection;
use crate::context::ContextConfig;
use crate::counters::Snapshot;
use crate::device::Device;
use crate::endpoint::EndpointConfig;
use crate::env::env;
use crate::error::{Error, Result};
use crate::gpu_queue::{Hca, IbConfig, IbMode};
use crate::memory::{MemoryOptions, RegisteredMemory};
use crate::port_channel::PortChannel;
use crate::semaphore::Semaphore;
use crate::sync::lock_plain as lock;
use crate::transport::TransportKind;
pub use counts::QueueCounts;
use pairwise::Pairwise;
use state::{Ready, Settles, State};

/// What the one HCA of a service is to its context.
const TRANSPORT: TransportKind = TransportKind::IB0;

/// How the queues of a [`GpuNetIoService`] are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuNetIoConfig {
    /// Form, kind of signals and size of the queues. The mode is always [`IbMode::GpuNetIo`].
    pub queue: IbConfig,
    /// Which GID of the HCA is used: 0, or what `MSCCLPP_IB_GID_INDEX` says.
    pub gid_index: u32,
}

impl Default for GpuNetIoConfig {
    fn default() -> Self {
        Self {
            queue: IbConfig::default(),
            gid_index: env().gid_index.unwrap_or(0),
        }
    }
}

/// Send queues that kernels post to, between this rank and those that it names: made by all ranks of
/// a bootstrap together.
///
/// The calls come in this order; another one is [`Error::NotSetUp`]:
///
/// 1. [`new`](Self::new), on every rank, touches no other rank.
/// 2. [`setup`](Self::setup), on every rank, once: how many queues to which peers. Both ends of an
///    edge ask for the same number, edges may differ, and a rank may ask for none.
/// 3. [`connect`](Self::connect) selects a queue, without asking anybody.
/// 4. [`register_memory`](Self::register_memory), [`exchange_memory`](Self::exchange_memory) and
///    [`build_semaphore`](Self::build_semaphore), pairwise.
/// 5. [`port_channel`](Self::port_channel): what kernels put, signal and wait through. Each channel
///    posts to the queue of its semaphore's connection, and counts its own signals.
///
/// Two ranks alone make queues by [`connect_on_demand`](Self::connect_on_demand), and make those of one
/// edge again by [`rebuild`](Self::rebuild).
///
/// No proxy takes part. The service needs no `ProxyService`, and what it made outlives it.
///
/// # Fails together
///
/// `setup` has phases: plan, capability, port, allocate, exchange, wire, INIT, RTR, RTS, self-test,
/// publish. After each, the ranks hear of each other whether it succeeded everywhere, in O(log world)
/// messages, and no rank begins the next one otherwise. While all ranks live and answer, all of them
/// get the same [`Error::Setup`], which names the phase, the rank and the cause; each has let go of
/// all that it made when the call returns. A rank that dies or does not answer is named to all others
/// by the deadline. When it dies after the last phase, setup succeeds and its connections fail. A rank
/// whose step panics counts as one that failed; the panic goes on on its own thread.
///
/// Queues, their memory and what is told of them exist for the plan's edges alone. Nothing is chosen
/// silently: one HCA a service, whose name is given, and a setup that cannot be done as asked is an
/// error, on all ranks.
///
/// What is not covered: a call of an HCA's driver that never returns holds up its own rank (the
/// others go on with an error that names it), and the pairwise exchanges after the setup fail one by
/// one, under deadlines of their own.
///
/// With a bootstrap that has no [`turns`](Bootstrap::turns), take another tag after a failure: what the
/// failed setup has left behind cannot be told apart there. Take another tag on any bootstrap after a
/// setup that some rank did not call at all, and rebuild an edge by one call at a time.
///
/// Several services may use one bootstrap, and be set up at once, with different tags; the tags of
/// their later exchanges must differ, too. All methods may be called from any thread.
pub struct GpuNetIoService {
    communicator: Communicator,
    endpoint: EndpointConfig,
    gid_index: u32,
    state: Mutex<State>,
    pairwise: Pairwise,
}

impl GpuNetIoService {
    /// A service over one HCA, for kernels of `device`. Touches neither the bootstrap's other ranks
    /// nor the HCA, which is opened, and found to be there or not, in the setup. Make it on all ranks
    /// before any begins its setup: a rank that has none cannot tell the others.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`]; [`Error::InvalidUsage`] for an HCA without a name; those of
    /// making a [`Context`](crate::Context).
    pub fn new(bootstrap: Arc<dyn Bootstrap>, hca: Hca, device: Device) -> Result<Self> {
        Self::with_config(bootstrap, hca, device, GpuNetIoConfig::default())
    }

    /// The same with other queues than the usual ones.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn with_config(
        bootstrap: Arc<dyn Bootstrap>,
        hca: Hca,
        device: Device,
        config: GpuNetIoConfig,
    ) -> Result<Self> {
        device.check_available()?;
        if hca.name().trim().is_empty() {
            return Err(Error::InvalidUsage {
                operation: "make a GpuNetIoService",
                detail: "its HCA has no name: give one, for example soft0".into(),
            });
        }
        let mut context = ContextConfig::of_rank(&*bootstrap);
        context.hca_devices = vec![hca];
        let endpoint = EndpointConfig {
            device,
            ib: IbConfig {
                mode: IbMode::GpuNetIo,
                ..config.queue
            },
            ..EndpointConfig::gpu_initiated(TRANSPORT)
        };
        Ok(Self {
            communicator: Communicator::with_config(bootstrap, context)?,
            endpoint,
            gid_index: config.gid_index,
            state: Mutex::new(State::New),
            pairwise: Pairwise::default(),
        })
    }

    /// Makes all queues, together with all other ranks, within the bootstrap's timeout. Each rank
    /// calls it once, with the same tag; a rank without queues, too.
    ///
    /// ```no_run
    /// # fn f(service: &mscclpp_port::GpuNetIoService) -> mscclpp_port::Result<()> {
    /// // On rank 0 of 4: two queues to rank 1, one to rank 3, none to rank 2.
    /// service.setup(&[0, 2, 0, 1], 0)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Setup`], the same on all ranks: for a plan that is not valid on one rank (a count
    /// below 0 or above 64, queues of a rank to itself, a rank that does not exist) or not the same
    /// on both ends of an edge, and for whatever fails on some rank. Of this rank alone:
    /// [`Error::SetUpAgain`], also after a failure, without touching other ranks; [`Error::Timeout`]
    /// while another setup of this rank has the tag.
    pub fn setup<'a>(&self, counts: impl Into<QueueCounts<'a>>, tag: u32) -> Result<()> {
        let deadline = Deadline::after(self.bootstrap().timeout());
        self.setup_by(counts, tag, deadline)
    }

    /// The same with a deadline of the caller's choice. The earliest of all ranks counts.
    ///
    /// # Errors
    /// Those of [`setup`](Self::setup).
    pub fn setup_by<'a>(
        &self,
        counts: impl Into<QueueCounts<'a>>,
        tag: u32,
        deadline: Deadline,
    ) -> Result<()> {
        {
            let mut state = self.lock();
            if !matches!(*state, State::New) {
                let found = state.found();
                return Err(Error::SetUpAgain { found });
            }
            *state = State::Running;
        }
        let settles = Settles::new(self);
        let ready = setup::run(self, &counts.into(), tag, deadline)?;
        settles.well(ready);
        Ok(())
    }

    /// As [`setup`](Self::setup), with `count` queues between any two ranks: a full mesh.
    ///
    /// # Errors
    /// Those of [`setup`](Self::setup).
    pub fn setup_full_mesh(&self, count: i32, tag: u32) -> Result<()> {
        self.setup(QueueCounts::Uniform(count), tag)
    }

    /// Queue `index` to `peer`, of those that the setup made: 0, 1, ... The peer's end is its queue
    /// of the same index to this rank. Asks nobody; the same queue may be selected again.
    ///
    /// # Errors
    /// [`Error::NotSetUp`]; [`Error::InvalidUsage`] for this rank itself and one that does not exist;
    /// [`Error::NoQueue`] beyond what the setup made.
    pub fn connect(&self, peer: usize, index: u32) -> Result<Connection> {
        let ready = self.ready("connect")?;
        self.check_peer("connect", peer)?;
        let slot = ready.plan.slot(peer, index);
        let connection = slot.and_then(|slot| lock(&ready.connections).get(slot).cloned());
        connection.ok_or_else(|| Error::NoQueue {
            peer,
            index,
            count: ready.plan.count(peer),
        })
    }

    /// Registers a range of a buffer, in bytes, with the service's HCA: as a source, as a destination,
    /// or both. Offsets into the result start at the start of the range.
    ///
    /// # Errors
    /// [`Error::NotSetUp`]; those of
    /// [`Context::register_memory_with`](crate::Context::register_memory_with).
    pub fn register_memory(&self, buffer: &Buffer, range: Range<u64>) -> Result<RegisteredMemory> {
        self.usable("register memory")?;
        let options = MemoryOptions {
            transports: TRANSPORT.into(),
            ..MemoryOptions::default()
        };
        (self.communicator).register_memory_with(buffer, range, options)
    }

    /// Sends the right to reach a memory to `peer` and receives what the peer sends by the same call
    /// with the same tag. The sizes may differ. Waits for no call of the peer; asking for the result
    /// does.
    ///
    /// # Errors
    /// [`Error::NotSetUp`]; [`Error::InvalidUsage`] for this rank itself, one that does not exist, and
    /// an empty placeholder; [`Error::NoQueue`] for a peer without queues; [`Error::PeerDown`] or
    /// [`Error::Bootstrap`] when it cannot be sent. The result has errors of its own.
    pub fn exchange_memory(
        &self,
        peer: usize,
        memory: &RegisteredMemory,
        tag: u32,
    ) -> Result<Pending<RegisteredMemory>> {
        self.usable("exchange memory")?;
        self.check_peer("exchange memory", peer)?;
        if self.queues(peer) == 0 && !self.pairwise.has_queues_to(peer) {
            return Err(no_queue(peer));
        }
        self.communicator.exchange_memory(memory, peer, tag)
    }

    /// Makes a semaphore over a connection of this service; the peer does so, too, with its end and
    /// the same tag. Make one for each channel.
    ///
    /// # Errors
    /// [`Error::NotSetUp`]; [`Error::UnknownConnection`] for a connection that is not this service's;
    /// those of [`Communicator::build_semaphore`].
    pub fn build_semaphore(&self, connection: &Connection, tag: u32) -> Result<Pending<Semaphore>> {
        self.usable("build a semaphore")?;
        let peer = self.communicator.remote_rank_of(connection)?;
        self.communicator.build_semaphore(connection, peer, tag)
    }

    /// A channel on the queue of a semaphore's connection: from `local`, memory of this rank, to
    /// `remote`, the peer's. The same as [`PortChannel::on_queue`].
    ///
    /// # Errors
    /// [`Error::NotSetUp`]; those of [`PortChannel::on_queue`].
    pub fn port_channel(
        &self,
        semaphore: Semaphore,
        remote: &RegisteredMemory,
        local: &RegisteredMemory,
    ) -> Result<PortChannel> {
        self.usable("make a port channel")?;
        PortChannel::on_queue(semaphore, remote, local)
    }

    /// How many queues the setup made to `peer`; 0 before it has succeeded.
    #[must_use]
    pub fn queues(&self, peer: usize) -> u32 {
        match &*self.lock() {
            State::Ready(ready) => ready.plan.count(peer),
            _ => 0,
        }
    }

    /// A stream of what ends connections of this service from now on, for a supervisor; the same as
    /// [`Context::async_errors`](crate::Context::async_errors).
    #[must_use]
    pub fn async_errors(&self) -> AsyncErrors {
        self.communicator.context().async_errors()
    }

    /// What the service's queues and HCA have done so far; the same as
    /// [`Context::counters`](crate::Context::counters).
    #[must_use]
    pub fn counters(&self) -> Snapshot {
        self.communicator.counters()
    }

    /// The bootstrap underneath.
    #[must_use]
    pub fn bootstrap(&self) -> &Arc<dyn Bootstrap> {
        self.communicator.bootstrap()
    }

    fn ready(&self, operation: &'static str) -> Result<Arc<Ready>> {
        match &*self.lock() {
            State::Ready(ready) => Ok(Arc::clone(ready)),
            other => Err(Error::NotSetUp {
                operation,
                found: other.found(),
            }),
        }
    }

    /// Whether there may be queues.
    fn usable(&self, operation: &'static str) -> Result<()> {
        match self.pairwise.has_queues() {
            true => Ok(()),
            false => self.ready(operation).map(drop),
        }
    }

    fn check_peer(&self, operation: &'static str, peer: usize) -> Result<()> {
        let (rank, world) = (self.bootstrap().rank(), self.bootstrap().world_size());
        let detail = if peer >= world {
            format!("rank {peer} does not exist: the world has {world} ranks, numbered from 0")
        } else if peer == rank {
            format!("rank {peer} is this rank itself")
        } else {
            return Ok(());
        };
        Err(Error::InvalidUsage { operation, detail })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Whether an error says that another rank has failed or is gone.
fn is_of_another(error: &Error) -> bool {
    matches!(error, Error::PeerFailed { .. } | Error::PeerDown { .. })
}

fn no_queue(peer: usize) -> Error {
    Error::NoQueue {
        peer,
        index: 0,
        count: 0,
    }
}

impl fmt::Debug for GpuNetIoService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuNetIoService")
            .field("communicator", &self.communicator)
            .field("state", &self.lock().found())
            .finish_non_exhaustive()
    }
}
