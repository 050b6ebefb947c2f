// SPDX-License-Identifier: MIT
//! The bootstrap over TCP.

mod connection;
mod failures;
mod frame;
mod joining;
mod mailbox;
mod outgoing;
mod peers;
mod rendezvous;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use self::joining::{Joined, Listening};
use crate::address::RootAddress;
use crate::launcher::{self, environment, root_in};
use crate::{
    Bootstrap, BootstrapError, Deadline, FailureObserver, JobKey, PeerFailure, Secret, Tag, Turns,
    UniqueId, collectives, interface,
};

/// The largest world; ranks travel as 32 bits, and each rank has a record of each.
const MAX_WORLD: usize = 1 << 20;

/// Ranks that meet at an address of rank 0 and talk over TCP.
///
/// Made by [`TcpBootstrap::new`], which touches nothing, and joined once by one of
/// the `initialize` methods, or both at once by [`TcpBootstrap::from_launcher`].
/// Inside, one thread runs a tokio runtime; the methods block and may be called
/// from several threads at once, though not from within a tokio task.
///
/// `send` returns when the network has the message; the receiving rank always
/// drains its connections, into memory, until a peer has left 1 GiB untaken: so
/// all ranks may send large messages before any receives. Dropping the object says
/// goodbye to the peers: what was sent before still arrives.
///
/// # Examples
///
/// Two ranks, here two threads:
///
/// ```
/// use std::time::Duration;
/// use mscclpp_bootstrap::{Bootstrap, BootstrapError, TcpBootstrap};
///
/// fn main() -> Result<(), BootstrapError> {
///     let timeout = Duration::from_secs(10);
///     let zero = TcpBootstrap::new(0, 2)?;
///     let id = zero.create_unique_id()?;
///     std::thread::scope(|scope| {
///         let other = scope.spawn(|| {
///             let one = TcpBootstrap::new(1, 2)?;
///             one.initialize(&id, timeout)?;
///             one.all_gather(b"one")
///         });
///         zero.initialize(&id, timeout)?;
///         assert_eq!(zero.all_gather(b"zero")?, [b"zero".to_vec(), b"one".to_vec()]);
///         other.join().unwrap()?;
///         Ok(())
///     })
/// }
/// ```
pub struct TcpBootstrap {
    rank: usize,
    world: usize,
    secret: Option<Secret>,
    open: bool,
    phase: Mutex<Phase>,
    joined: OnceLock<Joined>,
    turns: Turns,
}

enum Phase {
    New,
    /// Rank 0 listens at the address of an id that it made.
    Listening(Box<Listening>, UniqueId),
    Joining,
    Joined,
    Failed(String),
}

impl TcpBootstrap {
    /// A rank that has not joined yet.
    ///
    /// # Errors
    /// [`BootstrapError::WorldSize`] for no ranks or more than 2^20,
    /// [`BootstrapError::RankOutOfRange`] for a rank beyond them.
    pub fn new(rank: usize, world: usize) -> Result<Self, BootstrapError> {
        if world == 0 || world > MAX_WORLD {
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
            secret: None,
            open: false,
            phase: Mutex::new(Phase::New),
            joined: OnceLock::new(),
            turns: Turns::new(),
        })
    }

    /// The secret for [`TcpBootstrap::initialize_at`], in place of the
    /// environment's.
    #[must_use]
    pub fn with_secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Lets [`TcpBootstrap::initialize_at`] work without a secret at addresses
    /// that other machines reach. Whoever reaches the port can then join the job;
    /// a warning says so.
    #[must_use]
    pub fn allow_strangers(mut self) -> Self {
        self.open = true;
        self
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An id with which all ranks can join, made by rank 0 and taken to the others
    /// by other means. Rank 0 listens at its address from now on, until it has
    /// joined or is dropped. Asked again before joining, it gives the same id.
    ///
    /// # Errors
    /// When no interface fits ([`interface::choose`]), none can be listened at, or
    /// the object has joined or tried to.
    pub fn create_unique_id(&self) -> Result<UniqueId, BootstrapError> {
        let mut phase = self.phase();
        match &*phase {
            Phase::Listening(_, id) => Ok(id.clone()),
            Phase::New => {
                let ip = interface::choose(None)?;
                let listening = Listening::start(SocketAddr::new(ip, 0))?;
                let id = UniqueId::new(listening.address())?;
                *phase = Phase::Listening(Box::new(listening), id.clone());
                Ok(id)
            }
            other => Err(self.not_new(other)),
        }
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

    /// Joins with an id of rank 0 and returns when all ranks have.
    ///
    /// # Errors
    /// [`BootstrapError::Timeout`] naming the ranks that are missing;
    /// [`BootstrapError::JoinFailed`], [`BootstrapError::DuplicateRank`],
    /// [`BootstrapError::ProofRefused`] and others when it can not work. The
    /// object can not be used after that.
    pub fn initialize(&self, id: &UniqueId, timeout: Duration) -> Result<(), BootstrapError> {
        let root = RootAddress {
            interface: None,
            socket: id.address(),
        };
        let secret = id.secret()?;
        self.once(Some(id), |listening| {
            let deadline = Deadline::after(timeout);
            joining::at(self.rank, self.world, listening, &root, &secret, deadline)
        })
    }

    /// Joins at an address that all ranks know: `ip:port`, `interface:ip:port`,
    /// `[ipv6]:port` or `interface:[ipv6]:port`, where rank 0 listens. Ranks prove
    /// the secret of [`TcpBootstrap::with_secret`], or of `MSCCLPP_SECRET` or
    /// `MSCCLPP_SECRET_FILE`.
    ///
    /// # Errors
    /// As [`TcpBootstrap::initialize`]; [`BootstrapError::SecretRequired`] when
    /// there is no secret and the address is not loopback;
    /// [`BootstrapError::BadAddress`].
    pub fn initialize_at(&self, address: &str, timeout: Duration) -> Result<(), BootstrapError> {
        let root: RootAddress = address.parse()?;
        let secret = self.secret_at(root.socket)?;
        self.once(None, |listening| {
            let deadline = Deadline::after(timeout);
            joining::at(self.rank, self.world, listening, &root, &secret, deadline)
        })
    }

    /// A rank as the launcher of this process made it, joined with the others; see
    /// [`mod@launcher`] for what is read. A file as meeting place needs a secret
    /// unless all ranks are on one machine.
    ///
    /// # Errors
    /// As [`TcpBootstrap::initialize_at`]; [`BootstrapError::NoLauncher`] and
    /// [`BootstrapError::NoRoot`] when the environment does not tell.
    pub fn from_launcher(timeout: Duration) -> Result<Self, BootstrapError> {
        let info = launcher::detect()?.ok_or(BootstrapError::NoLauncher)?;
        let root = root_in(&environment, info.launcher)?;
        let this = Self::new(info.rank, info.world)?;
        let one_machine = info.local_size == Some(info.world);
        this.once(None, |listening| {
            let deadline = Deadline::after(timeout);
            let secret = |address| this.secret_at(address);
            joining::through(
                (this.rank, this.world),
                listening,
                &root,
                one_machine,
                &secret,
                deadline,
            )
        })?;
        Ok(this)
    }

    fn secret_at(&self, address: SocketAddr) -> Result<Secret, BootstrapError> {
        if let Some(secret) = &self.secret {
            return Ok(secret.clone());
        }
        if let Some(secret) = Secret::from_environment()? {
            return Ok(secret);
        }
        if !address.ip().is_loopback() {
            if !self.open {
                return Err(BootstrapError::SecretRequired { address });
            }
            tracing::warn!(%address, "joining without a secret: whoever reaches the port can join");
        }
        Secret::new(*b"no secret was given")
    }

    /// Runs a join, once in the life of the object.
    fn once(
        &self,
        id: Option<&UniqueId>,
        join: impl FnOnce(Option<Box<Listening>>) -> Result<Joined, BootstrapError>,
    ) -> Result<(), BootstrapError> {
        let listening = {
            let mut phase = self.phase();
            match std::mem::replace(&mut *phase, Phase::Joining) {
                Phase::New => None,
                Phase::Listening(listening, own) => {
                    // Another rank's id, or an address: our own listener goes.
                    (self.rank == 0 && id.is_some_and(|id| id.same_as(&own))).then_some(listening)
                }
                other => {
                    let error = self.not_new(&other);
                    *phase = other;
                    return Err(error);
                }
            }
        };
        let outcome = join(listening).and_then(|joined| {
            let timeout = joined.left();
            self.joined.get_or_init(|| joined);
            // Makes the connections to the neighbours in the tree.
            collectives::barrier(self, timeout)
        });
        *self.phase() = match &outcome {
            Ok(()) => Phase::Joined,
            Err(error) => Phase::Failed(error.to_string()),
        };
        outcome
    }

    fn joined(&self) -> Result<&Joined, BootstrapError> {
        self.joined.get().ok_or(BootstrapError::NotInitialized { rank: self.rank })
    }

    /// Where another rank listens.
    ///
    /// # Errors
    /// When this rank has not joined or the other does not exist.
    pub fn address_of(&self, rank: usize) -> Result<SocketAddr, BootstrapError> {
        let peers = &self.joined()?.peers;
        if rank >= self.world {
            return Err(BootstrapError::RankOutOfRange {
                what: "rank",
                rank,
                world: self.world,
            });
        }
        Ok(peers.address(rank))
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
        self.joined()?.peers.send(peer, tag, data, deadline)
    }

    fn recv(&self, peer: usize, tag: Tag, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        self.joined()?.peers.recv(peer, tag, deadline, || None)
    }

    fn local_ip(&self) -> Option<IpAddr> {
        let joined = self.joined.get()?;
        Some(joined.peers.address(self.rank).ip())
    }

    fn job_key(&self) -> Option<JobKey> {
        self.joined.get().map(|joined| joined.job_key.clone())
    }

    fn observe_failures(&self, observer: Weak<dyn FailureObserver>) {
        match self.joined.get() {
            Some(joined) => joined.peers.observe(observer),
            None => tracing::warn!(rank = self.rank, "failures are observed after joining only"),
        }
    }

    fn known_failure(&self) -> Option<PeerFailure> {
        self.joined.get()?.peers.failures.first_death(None)
    }

    fn failure_of(&self, rank: usize) -> Option<PeerFailure> {
        self.joined.get()?.peers.failures.of(rank)
    }

    fn recv_in_collective(
        &self,
        peer: usize,
        tag: Tag,
        members: Option<&[usize]>,
        deadline: Deadline,
    ) -> Result<Vec<u8>, BootstrapError> {
        let peers = &self.joined()?.peers;
        peers.recv(peer, tag, deadline, || peers.failures.first_death(members))
    }

    fn turns(&self) -> Option<&Turns> {
        Some(&self.turns)
    }
}

impl fmt::Debug for TcpBootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match &*self.phase() {
            Phase::New => "new",
            Phase::Listening(..) => "listening",
            Phase::Joining => "joining",
            Phase::Joined => "joined",
            Phase::Failed(_) => "failed",
        };
        f.debug_struct("TcpBootstrap")
            .field("rank", &self.rank)
            .field("world", &self.world)
            .field("phase", &phase)
            .finish_non_exhaustive()
    }
}

/// What is shared with the tasks of the runtime.
type SharedPeers = Arc<peers::Peers>;
