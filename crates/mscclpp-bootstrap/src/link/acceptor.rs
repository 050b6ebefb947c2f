// SPDX-License-Identifier: MIT
//! The accepting end: a port, a Unix socket if one is asked for, and any number
//! of expected connections.

use std::net::{IpAddr, SocketAddr, TcpStream as StdTcp};
use std::os::unix::net::UnixStream as StdUnix;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::LOOK_EVERY;
use super::handshake::{Claims, Refusal};
use super::registry::{Admission, Registry, Service};
use super::serve::serve;
use super::wire::{Place, UnixAddress, Wire};
use super::{LinkId, LinkKey};
use crate::background::Background;
use crate::{BootstrapError, Deadline, Deadlines, socket};

/// Accepts connections that prove themselves, on one port, until it is dropped.
/// Strangers (garbage, silence, half a message, a wrong proof, a flood) are
/// dropped without harm or delay to the connections that are expected: each has
/// [`Deadlines::proof`] and some hundred bytes, and when more than 256 are at it, those who named
/// nothing that is known go first, the ones from the busiest address before
/// others.
///
/// Processes of the same host may come over a Unix socket instead, which is
/// faster: [`expect_unix`](Self::expect_unix). They prove themselves in the same
/// way. Whoever expects a connection decides which way it comes, and has both
/// ends agree, by [`host::id`](crate::host::id): the two ways do not meet.
///
/// May be used from several threads. One thread with a tokio runtime runs inside.
pub struct Acceptor {
    registry: Arc<Registry<TcpStream>>,
    address: SocketAddr,
    unix: Mutex<Option<Local>>,
    /// How long a connection may take to prove itself.
    proof: Duration,
    background: Background,
}

/// The Unix socket, from its first use on.
#[derive(Clone)]
struct Local {
    registry: Arc<Registry<UnixStream>>,
    address: UnixAddress,
}

impl Acceptor {
    /// Listens at `ip`, on a port that the system chooses.
    ///
    /// # Errors
    /// [`BootstrapError::Io`] when that is not possible.
    pub fn bind(ip: IpAddr) -> Result<Self, BootstrapError> {
        Self::bind_with(ip, &Deadlines::default())
    }

    /// As [`bind`](Self::bind), with deadlines of the caller's, of which it uses
    /// [`Deadlines::proof`], and [`Deadlines::teardown`] for the end of its thread.
    ///
    /// # Errors
    /// As there.
    pub fn bind_with(ip: IpAddr, deadlines: &Deadlines) -> Result<Self, BootstrapError> {
        let proof = deadlines.proof;
        let (listener, address) = socket::listen(SocketAddr::new(ip, 0))?;
        let background = Background::start("mscclpp-accept", deadlines.teardown, || async {})?;
        let registry = Arc::new(Registry::default());
        let listener = {
            let _inside = background.handle().enter();
            TcpListener::from_std(listener)
                .map_err(|e| BootstrapError::io(format!("listening at {address}"), e))?
        };
        background
            .handle()
            .spawn(serve(listener, Arc::clone(&registry), proof));
        Ok(Self {
            registry,
            address,
            unix: Mutex::default(),
            proof,
            background,
        })
    }

    /// The port that it listens at.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Expects one connection with this id and key from now on. A later
    /// expectation with the same id takes the place of an earlier one.
    #[must_use]
    pub fn expect(&self, id: LinkId, key: LinkKey) -> Expected {
        expect(&self.registry, Place::Tcp(self.address), id, key)
    }

    /// Where processes of this host reach it; see
    /// [`expect_unix`](Self::expect_unix). The socket is made at the first call.
    ///
    /// # Errors
    /// [`BootstrapError::Io`] when there can be no such socket, as outside Linux.
    pub fn unix_address(&self) -> Result<UnixAddress, BootstrapError> {
        self.local().map(|local| local.address)
    }

    /// As [`expect`](Self::expect), for a connection that
    /// [`connect_unix`](super::connect_unix) makes to
    /// [`unix_address`](Self::unix_address). Only a process of this host can: the
    /// caller knows from the peer's [`host::id`](crate::host::id) that it is one.
    ///
    /// # Errors
    /// [`BootstrapError::Io`] when there can be no such socket, as outside Linux.
    pub fn expect_unix(
        &self,
        id: LinkId,
        key: LinkKey,
    ) -> Result<Expected<StdUnix>, BootstrapError> {
        let local = self.local()?;
        let place = Place::Unix(local.address);
        Ok(expect(&local.registry, place, id, key))
    }

    fn local(&self) -> Result<Local, BootstrapError> {
        let mut unix = self.unix.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(local) = &*unix {
            return Ok(local.clone());
        }
        let address = UnixAddress::random()?;
        let registry = Arc::default();
        let listener = {
            let _inside = self.background.handle().enter();
            socket::listen_unix(&address.name())
                .and_then(UnixListener::from_std)
                .map_err(|e| BootstrapError::io(format!("listening at @{address}"), e))?
        };
        self.background
            .handle()
            .spawn(serve(listener, Arc::clone(&registry), self.proof));
        Ok(unix.insert(Local { registry, address }).clone())
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        // Those who still wait learn that nobody will come.
        self.registry.clear();
        let unix = self.unix.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(local) = unix {
            local.registry.clear();
        }
    }
}

fn expect<S: Wire>(
    registry: &Arc<Registry<S>>,
    at: Place,
    id: LinkId,
    key: LinkKey,
) -> Expected<S::Blocking> {
    let (sender, arrival) = mpsc::sync_channel(1);
    let taken = Arc::default();
    let service = Arc::new(Once { sender, taken });
    let serial = registry.register(id, key, service);
    let registry = Arc::clone(registry);
    Expected {
        expectation: Box::new(Expectation {
            registry,
            id,
            serial,
        }),
        id,
        at,
        arrival,
    }
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acceptor")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A connection that an [`Acceptor`] expects. Dropping it ends the expectation.
pub struct Expected<S = StdTcp> {
    expectation: Box<dyn Unproven>,
    id: LinkId,
    at: Place,
    arrival: mpsc::Receiver<S>,
}

impl<S> Expected<S> {
    /// Waits for the connection. The stream is in blocking mode, a TCP one with
    /// `TCP_NODELAY`; both ends have proven themselves.
    ///
    /// # Errors
    /// [`BootstrapError::LinkTimeout`] when nobody came who could prove itself;
    /// [`BootstrapError::AcceptorGone`] when the acceptor was dropped or the id
    /// expected anew.
    pub fn accept(self, deadline: Deadline) -> Result<S, BootstrapError> {
        self.accept_while(deadline, &|| true)
    }

    /// As [`accept`](Self::accept), for as long as `wanted` says so, which is asked
    /// several times a second.
    ///
    /// # Errors
    /// As [`accept`](Self::accept); [`BootstrapError::LinkTimeout`] when it is not
    /// wanted any more.
    pub fn accept_while(
        self,
        deadline: Deadline,
        wanted: &dyn Fn() -> bool,
    ) -> Result<S, BootstrapError> {
        loop {
            let left = deadline.remaining().min(LOOK_EVERY);
            match self.arrival.recv_timeout(left) {
                Ok(stream) => return Ok(stream),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(BootstrapError::AcceptorGone);
                }
                Err(mpsc::RecvTimeoutError::Timeout) if !deadline.expired() && wanted() => {}
                Err(mpsc::RecvTimeoutError::Timeout) => break,
            }
        }
        let failed = self.expectation.unproven();
        Err(BootstrapError::LinkTimeout {
            with: format!("came to {}", self.at),
            waited: deadline.budget(),
            hint: match failed {
                0 => String::new(),
                _ => format!("{failed} connections failed their proof there so far"),
            },
        })
    }
}

impl<S> std::fmt::Debug for Expected<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Expected")
            .field("id", &self.id)
            .field("at", &format_args!("{}", self.at))
            .finish_non_exhaustive()
    }
}

/// An entry of a registry, for as long as this lives.
struct Expectation<S> {
    registry: Arc<Registry<S>>,
    id: LinkId,
    serial: u64,
}

/// What the one who waits wants of an expectation.
trait Unproven: Send + Sync {
    /// Connections that could not prove themselves.
    fn unproven(&self) -> u64;
}

impl<S: Send> Unproven for Expectation<S> {
    fn unproven(&self) -> u64 {
        self.registry.unproven()
    }
}

impl<S> Drop for Expectation<S> {
    fn drop(&mut self) {
        self.registry.remove(self.id, self.serial);
    }
}

/// Takes a single connection.
struct Once<B> {
    sender: mpsc::SyncSender<B>,
    taken: Arc<AtomicBool>,
}

impl<S: Wire> Service<S> for Once<S::Blocking> {
    fn admit(&self, _: Claims) -> Result<Box<dyn Admission<S>>, Refusal> {
        // A connector that broke off after its admission may come again, so that
        // only a delivered connection uses the place up.
        if self.taken.load(Ordering::Acquire) {
            return Err(Refusal::Crossing);
        }
        Ok(Box::new(Self {
            sender: self.sender.clone(),
            taken: Arc::clone(&self.taken),
        }))
    }
}

impl<S: Wire> Admission<S> for Once<S::Blocking> {
    fn deliver(self: Box<Self>, stream: S) {
        if self.taken.swap(true, Ordering::AcqRel) {
            return;
        }
        match stream.into_blocking() {
            // If nobody waits any more, the stream closes.
            Ok(stream) => drop(self.sender.try_send(stream)),
            Err(error) => tracing::warn!(%error, "an accepted connection was lost"),
        }
    }
}
