// SPDX-License-Identifier: MIT
//! Ranks that meet and talk over TCP.

mod connection;
mod failures;
mod frame;
#[cfg(all(test, not(loom)))]
mod hostile;
mod join;
mod liveness;
pub(crate) mod mailbox;
mod meter;
mod node;
mod options;
mod outgoing;
mod peers;
mod suspicion;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::time::Duration;

use tracing::Instrument;

use self::failures::Failures;
use self::join::{Join, Meeting};
pub use self::meter::WireBytes;
use self::node::{Joined, Node};
pub use self::options::TcpOptions;
use crate::address::Root;
use crate::background::Background;
use crate::failure::{FailureObserver, PeerFailure};
use crate::{
    Bootstrap, BootstrapError, Deadline, Deadlines, JobKey, Tag, Turns, UniqueId, interface,
    launcher, socket,
};

/// The largest world.
const MAX_WORLD: usize = 1 << 20;
/// Shorter than this no silence tells anything.
const SHORTEST_SILENCE: Duration = Duration::from_millis(50);
/// And so long no job runs; what is longer can not be added to the time.
const LONGEST_SILENCE: Duration = Duration::from_secs(365 * 24 * 3600);
/// A join that does not end by its own deadline is given up after this more.
const GRACE: Duration = Duration::from_secs(1);

/// A bootstrap over TCP, from a [`UniqueId`], an address, or a launcher.
///
/// All calls block, and may be made from several threads at once, inside an async
/// runtime too; one background thread does the I/O. A rank joins once per object.
/// After joining it holds connections to its neighbours in a tree (O(log world))
/// and to the peers that it talks to, one each.
///
/// `send` copies the message and returns when it is written to the socket. The
/// peer's background thread always reads, whether or not `recv` is called there,
/// so that ranks which all send first do not block each other; up to 1 GiB (and
/// one message more) may wait there untaken, then `send` waits for room. What a
/// rank sends to itself is not limited. The largest message has 4 GiB.
///
/// Dropping the object says goodbye: peers that want something from this rank
/// later get [`BootstrapError::PeerLeft`]. A process that ends without the drop
/// counts as dead, and every rank hears of it. The drop takes up to
/// [`Deadlines::goodbye`] when peers do not respond.
///
/// In a program that a launcher starts, all there is to do:
///
/// ```no_run
/// use std::time::Duration;
/// use mscclpp_bootstrap::{Bootstrap, TcpBootstrap};
///
/// # fn main() -> Result<(), mscclpp_bootstrap::BootstrapError> {
/// let bootstrap = TcpBootstrap::from_launcher(Duration::from_secs(30))?;
/// println!("rank {} of {}", bootstrap.rank(), bootstrap.world_size());
/// bootstrap.barrier()?;
/// # Ok(())
/// # }
/// ```
pub struct TcpBootstrap {
    rank: usize,
    world: usize,
    options: TcpOptions,
    failures: Arc<Failures>,
    phase: Mutex<Phase>,
    joined: OnceLock<Inside>,
}

enum Phase {
    New(Option<(UniqueId, TcpListener)>),
    Joining,
    Joined,
    Failed(String),
}

struct Inside {
    joined: Joined,
    /// Ends with a goodbye when dropped.
    _background: Background,
}

impl TcpBootstrap {
    /// Rank `rank` of `world`. Touches nothing outside the process.
    ///
    /// # Errors
    /// [`BootstrapError::WorldSize`] and [`BootstrapError::RankOutOfRange`].
    pub fn new(rank: usize, world: usize) -> Result<Self, BootstrapError> {
        Self::with_options(rank, world, TcpOptions::new())
    }

    /// As [`TcpBootstrap::new`], with options.
    ///
    /// # Errors
    /// As [`TcpBootstrap::new`].
    pub fn with_options(
        rank: usize,
        world: usize,
        options: TcpOptions,
    ) -> Result<Self, BootstrapError> {
        if !(1..=MAX_WORLD).contains(&world) {
            return Err(BootstrapError::WorldSize {
                world,
                max: MAX_WORLD,
            });
        }
        if rank >= world {
            return Err(BootstrapError::RankOutOfRange {
                what: "rank",
                rank,
                world,
            });
        }
        Ok(Self {
            rank,
            world,
            options,
            failures: Arc::default(),
            phase: Mutex::new(Phase::New(None)),
            joined: OnceLock::new(),
        })
    }

    /// Makes the id that all ranks pass to [`TcpBootstrap::initialize`], on rank
    /// 0. The port in it is taken from here on, and kept until the ranks have
    /// joined. A second call returns the same id.
    ///
    /// # Errors
    /// [`BootstrapError::NoInterface`] and others of [`interface::choose`];
    /// [`BootstrapError::Io`] when it can not listen there;
    /// [`BootstrapError::AlreadyInitialized`].
    pub fn create_unique_id(&self) -> Result<UniqueId, BootstrapError> {
        self.create_id_at(|| match self.options.interface.as_deref() {
            Some(name) => interface::named(name, None),
            None => interface::choose(None),
        })
    }

    /// As [`TcpBootstrap::create_unique_id`], listening at `ip`.
    ///
    /// # Errors
    /// As there.
    pub fn create_unique_id_at(&self, ip: IpAddr) -> Result<UniqueId, BootstrapError> {
        self.create_id_at(|| Ok(ip))
    }

    fn create_id_at(
        &self,
        ip: impl FnOnce() -> Result<IpAddr, BootstrapError>,
    ) -> Result<UniqueId, BootstrapError> {
        let mut phase = self.phase();
        match &mut *phase {
            Phase::New(Some((id, _))) => Ok(id.clone()),
            Phase::New(kept) => {
                let (listener, address) = socket::listen(SocketAddr::new(ip()?, 0))?;
                let id = UniqueId::new(address)?;
                *kept = Some((id.clone(), listener));
                Ok(id)
            }
            _ => Err(self.not_new(&phase)),
        }
    }

    /// Joins the ranks that have the same id; returns when all have joined.
    ///
    /// # Errors
    /// [`BootstrapError::Timeout`] naming who is missing;
    /// [`BootstrapError::AlreadyInitialized`] on the second call;
    /// [`BootstrapError::PeerFailed`] when a rank dies meanwhile;
    /// [`BootstrapError::DuplicateRank`], [`BootstrapError::WorldMismatch`],
    /// [`BootstrapError::ProofRefused`] and [`BootstrapError::JoinFailed`] when
    /// the ranks do not fit together.
    pub fn initialize(&self, id: &UniqueId, timeout: Duration) -> Result<(), BootstrapError> {
        self.enter(timeout, false, |kept| {
            let listener = kept.and_then(|(own, listener)| own.same_as(id).then_some(listener));
            Meeting::Id(id.clone(), listener)
        })
    }

    /// Joins at an address of rank 0: `ip:port`, `interface:ip:port`,
    /// `[ipv6]:port`. An interface is the one that this rank uses for its own
    /// connections; without it, the rules of [`interface::choose`] apply. The
    /// secret is that of the options, of `MSCCLPP_SECRET` or of
    /// `MSCCLPP_SECRET_FILE`; without one, only loopback is allowed.
    ///
    /// # Errors
    /// As [`TcpBootstrap::initialize`]; also [`BootstrapError::BadAddress`],
    /// [`BootstrapError::SecretRequired`] and [`BootstrapError::BadSecret`].
    pub fn initialize_at(&self, address: &str, timeout: Duration) -> Result<(), BootstrapError> {
        let root = Root::At(address.parse()?);
        self.enter(timeout, false, |_| Meeting::At(root))
    }

    /// The rank that the launcher's environment describes ([`launcher::detect`]),
    /// joined with the others where `MSCCLPP_ROOT` or the launcher says.
    ///
    /// # Errors
    /// As [`TcpBootstrap::initialize_at`]; also [`BootstrapError::NoLauncher`],
    /// [`BootstrapError::NoRoot`] and [`BootstrapError::BadEnvironment`].
    pub fn from_launcher(timeout: Duration) -> Result<Self, BootstrapError> {
        Self::from_launcher_with(TcpOptions::new(), timeout)
    }

    /// As [`TcpBootstrap::from_launcher`], with options.
    ///
    /// # Errors
    /// As there.
    pub fn from_launcher_with(
        options: TcpOptions,
        timeout: Duration,
    ) -> Result<Self, BootstrapError> {
        let info = launcher::detect()?.ok_or(BootstrapError::NoLauncher)?;
        let root = launcher::root_in(&launcher::environment, info.launcher)?;
        let bootstrap = Self::with_options(info.rank, info.world, options)?;
        let one_machine = info.local_size == Some(info.world);
        bootstrap.enter(timeout, one_machine, |_| Meeting::At(root))?;
        Ok(bootstrap)
    }

    /// How many connections to other ranks this one holds now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.joined.get().map_or(0, |i| i.joined.0.connections())
    }

    /// What its connections have carried so far, those that are gone included: nothing before it
    /// has joined.
    #[must_use]
    pub fn wire_bytes(&self) -> WireBytes {
        let inside = self.joined.get();
        inside.map_or_else(WireBytes::default, |inside| inside.joined.0.meter.read())
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn not_new(&self, phase: &Phase) -> BootstrapError {
        match phase {
            Phase::Failed(cause) => BootstrapError::FailedBefore {
                rank: self.rank,
                cause: cause.clone(),
            },
            _ => BootstrapError::AlreadyInitialized { rank: self.rank },
        }
    }

    fn enter(
        &self,
        timeout: Duration,
        one_machine: bool,
        meeting: impl FnOnce(Option<(UniqueId, TcpListener)>) -> Meeting,
    ) -> Result<(), BootstrapError> {
        let _span = tracing::info_span!("join", rank = self.rank, world = self.world).entered();
        let deadline = Deadline::after(timeout);
        let kept = {
            let mut phase = self.phase();
            match &mut *phase {
                Phase::New(kept) => {
                    let kept = kept.take();
                    *phase = Phase::Joining;
                    kept
                }
                _ => return Err(self.not_new(&phase)),
            }
        };
        let join = Join {
            meeting: meeting(kept),
            options: self.options.clone(),
            one_machine,
            deadline,
        };
        let outcome = self.join(join);
        *self.phase() = match &outcome {
            Ok(()) => Phase::Joined,
            Err(error) => Phase::Failed(error.to_string()),
        };
        outcome
    }

    fn join(&self, join: Join) -> Result<(), BootstrapError> {
        let deadline = join.deadline;
        let place: Arc<OnceLock<Arc<Node>>> = Arc::default();
        let at_end = Arc::clone(&place);
        let limits = self.options.limits();
        let ends_within = limits.goodbye + GRACE;
        let background = Background::start("mscclpp-bootstrap", ends_within, move || async move {
            if let Some(node) = at_end.get() {
                node.leave().await;
            }
        })?;
        let runtime = background.handle().clone();
        let silence = limits.silence.clamp(SHORTEST_SILENCE, LONGEST_SILENCE);
        let node = Node::new(
            self.rank,
            self.world,
            Deadlines { silence, ..limits },
            Arc::clone(&self.failures),
            runtime,
        );
        let places = self.run(&background, deadline, join::join(Arc::clone(&node), join))?;
        // Its neighbours are connected.
        liveness::start(&node);
        // From here on the end of this object is a goodbye. A rank that fails
        // earlier breaks off, so that the others do not wait for it.
        join::share_places(&node, &places, deadline)?;
        let _ = place.set(Arc::clone(&node));
        let inside = Inside {
            joined: Joined(node),
            _background: background,
        };
        // Empty until now: an object joins once.
        let _ = self.joined.set(inside);
        Ok(())
    }

    /// Runs `task` on the background thread and waits for it.
    fn run<T: Send + 'static>(
        &self,
        background: &Background,
        deadline: Deadline,
        task: impl Future<Output = Result<T, BootstrapError>> + Send + 'static,
    ) -> Result<T, BootstrapError> {
        let (done, outcome) = mpsc::sync_channel(1);
        let task = async move {
            // The caller may have given up.
            drop(done.send(task.await));
        };
        background.handle().spawn(task.in_current_span());
        outcome
            .recv_timeout(deadline.remaining() + GRACE)
            .unwrap_or_else(|_| {
                Err(BootstrapError::Timeout {
                    rank: self.rank,
                    operation: "joining".into(),
                    waiting_for: Vec::new(),
                    waited: deadline.budget(),
                    hint:
                        "the background thread did not answer; is the machine overloaded, or the \
                           file system of MSCCLPP_ROOT or MSCCLPP_SECRET_FILE not there?"
                            .into(),
                })
            })
    }

    fn inside(&self) -> Result<&Joined, BootstrapError> {
        match self.joined.get() {
            Some(inside) => Ok(&inside.joined),
            None => Err(match &*self.phase() {
                failed @ Phase::Failed(_) => self.not_new(failed),
                _ => BootstrapError::NotInitialized { rank: self.rank },
            }),
        }
    }
}

impl Bootstrap for TcpBootstrap {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world
    }

    fn send(
        &self,
        peer: usize,
        tag: Tag,
        data: &[u8],
        deadline: Deadline,
    ) -> Result<(), BootstrapError> {
        let (rank, bytes) = (self.rank, data.len());
        let _span = tracing::trace_span!("send", rank, peer, bytes).entered();
        self.inside()?.send(peer, tag, data, deadline)
    }

    fn recv(&self, peer: usize, tag: Tag, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        let _span = tracing::trace_span!("receive", rank = self.rank, peer).entered();
        self.inside()?.recv(peer, tag, deadline)
    }

    fn deadlines(&self) -> Deadlines {
        self.options.limits()
    }

    /// Known from joining; not collective.
    fn ranks_per_node(&self) -> Result<usize, BootstrapError> {
        self.inside()?.ranks_per_node()
    }

    fn local_ip(&self) -> Option<IpAddr> {
        self.inside().ok()?.local_ip()
    }

    fn job_key(&self) -> Option<JobKey> {
        self.inside().ok()?.job_key()
    }

    fn observe_failures(&self, observer: Weak<dyn FailureObserver>) {
        self.failures.observe(observer);
    }

    fn known_failure(&self) -> Option<PeerFailure> {
        self.failures.first_death(None)
    }

    fn failure_of(&self, rank: usize) -> Option<PeerFailure> {
        self.failures.of(rank)
    }

    fn recv_in_collective(
        &self,
        peer: usize,
        tag: Tag,
        members: Option<&[usize]>,
        deadline: Deadline,
    ) -> Result<Vec<u8>, BootstrapError> {
        let _span = tracing::trace_span!("receive", rank = self.rank, peer).entered();
        self.inside()?
            .recv_in_collective(peer, tag, members, deadline)
    }

    fn turns(&self) -> Option<&Turns> {
        self.inside().ok()?.turns()
    }
}

impl Drop for TcpBootstrap {
    fn drop(&mut self) {
        let _span = tracing::info_span!("leave", rank = self.rank).entered();
        drop(self.joined.take());
    }
}

impl fmt::Debug for TcpBootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpBootstrap")
            .field("rank", &self.rank)
            .field("world", &self.world)
            .field("joined", &self.joined.get().is_some())
            .finish_non_exhaustive()
    }
}
