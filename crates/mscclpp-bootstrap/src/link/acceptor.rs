// SPDX-License-Identifier: MIT
//! The accepting end: one listener, any number of expected connections, and any
//! number of strangers.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream as StdStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::guests::Guests;
use super::handshake::{Acceptance, Claims, HELLO, PROOF, Refusal, VERSION};
use super::registry::{Admission, Registry, Service};
use super::{LinkId, LinkKey};
use crate::background::Background;
use crate::{BootstrapError, Deadline, socket};

/// How many connections may be in the midst of proving themselves. A proof takes
/// two round trips, so this is far more than an honest job needs at once.
const GUESTS: usize = 256;

/// How long one of them may take. Ranks need milliseconds; a starved machine may
/// need seconds.
const GUEST_TIME: Duration = Duration::from_secs(5);

/// Accepts connections that prove themselves, on one port, until it is dropped.
/// Strangers (garbage, silence, half a message, a wrong proof, a flood) are
/// dropped without harm or delay to the connections that are expected: each has
/// 5 s and some hundred bytes, and when more than 256 are at it, those who named
/// nothing that is known go first, the ones from the busiest address before
/// others.
///
/// May be used from several threads. One thread with a tokio runtime runs inside.
pub struct Acceptor {
    registry: Arc<Registry>,
    address: SocketAddr,
    _background: Background,
}

impl Acceptor {
    /// Listens at `ip`, on a port that the system chooses.
    ///
    /// # Errors
    /// [`BootstrapError::Io`] when that is not possible.
    pub fn bind(ip: IpAddr) -> Result<Self, BootstrapError> {
        let (listener, address) = socket::listen(SocketAddr::new(ip, 0))?;
        let background = Background::start("mscclpp-accept", || async {})?;
        let registry = Arc::new(Registry::default());
        let listener = {
            let _inside = background.handle().enter();
            TcpListener::from_std(listener)
                .map_err(|e| BootstrapError::io(format!("listening at {address}"), e))?
        };
        background
            .handle()
            .spawn(serve(listener, Arc::clone(&registry)));
        Ok(Self {
            registry,
            address,
            _background: background,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Expects one connection with this id and key from now on. A later
    /// expectation with the same id takes the place of an earlier one.
    #[must_use]
    pub fn expect(&self, id: LinkId, key: LinkKey) -> Expected {
        let (sender, arrival) = mpsc::sync_channel(1);
        let service = Arc::new(Once {
            sender,
            taken: Arc::default(),
        });
        let serial = self.registry.register(id, key, service);
        Expected {
            registry: Arc::clone(&self.registry),
            id,
            serial,
            address: self.address,
            arrival,
        }
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
pub struct Expected {
    registry: Arc<Registry>,
    id: LinkId,
    serial: u64,
    address: SocketAddr,
    arrival: mpsc::Receiver<StdStream>,
}

impl Expected {
    /// Waits for the connection. The stream is in blocking mode with
    /// `TCP_NODELAY`; both ends have proven themselves.
    ///
    /// # Errors
    /// [`BootstrapError::LinkTimeout`] when nobody came who could prove itself;
    /// [`BootstrapError::AcceptorGone`] when the acceptor was dropped or the id
    /// expected anew; [`BootstrapError::Io`] when the stream can not be set up.
    pub fn accept(self, deadline: Deadline) -> Result<StdStream, BootstrapError> {
        match self.arrival.recv_timeout(deadline.remaining()) {
            Ok(stream) => {
                stream
                    .set_nonblocking(false)
                    .map_err(|e| BootstrapError::io("making an accepted stream blocking", e))?;
                Ok(stream)
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(BootstrapError::AcceptorGone),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let failed = self.registry.unproven();
                Err(BootstrapError::LinkTimeout {
                    with: format!("came to {}", self.address),
                    waited: deadline.budget(),
                    hint: if failed == 0 {
                        String::new()
                    } else {
                        format!("{failed} connections failed their proof at this port so far")
                    },
                })
            }
        }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.registry.remove(self.id, self.serial);
    }
}

impl std::fmt::Debug for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Expected")
            .field("id", &self.id)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Takes a single connection.
struct Once {
    sender: mpsc::SyncSender<StdStream>,
    taken: Arc<AtomicBool>,
}

impl Service for Once {
    fn admit(&self, _: Claims, _: SocketAddr) -> Result<Box<dyn Admission>, Refusal> {
        // A connector that broke off after its admission may come again, so that
        // only a delivered connection uses the place up.
        if self.taken.load(Ordering::Acquire) {
            return Err(Refusal::Crossing);
        }
        Ok(Box::new(OncePlace {
            sender: self.sender.clone(),
            taken: Arc::clone(&self.taken),
        }))
    }
}

struct OncePlace {
    sender: mpsc::SyncSender<StdStream>,
    taken: Arc<AtomicBool>,
}

impl Admission for OncePlace {
    fn deliver(self: Box<Self>, stream: TcpStream) {
        if self.taken.swap(true, Ordering::AcqRel) {
            return;
        }
        match stream.into_std() {
            // If nobody waits any more, the stream closes.
            Ok(stream) => drop(self.sender.try_send(stream)),
            Err(error) => tracing::warn!(%error, "an accepted connection was lost"),
        }
    }
}

/// Accepts for as long as the task lives.
pub(crate) async fn serve(listener: TcpListener, registry: Arc<Registry>) {
    let mut guests = Guests::new(GUESTS);
    let mut tasks: JoinSet<u64> = JoinSet::new();
    loop {
        tokio::select! {
            arrived = listener.accept() => match arrived {
                Ok((stream, from)) => {
                    let number = guests.next_number();
                    let promising = Arc::new(AtomicBool::new(false));
                    let task = receive(stream, from, Arc::clone(&registry), Arc::clone(&promising));
                    let handle = tasks.spawn(async move {
                        task.await;
                        number
                    });
                    if let Some(leaving) = guests.enter(from.ip(), promising, handle) {
                        leaving.handle.abort();
                        registry.count_stranger(from, "too many unproven connections");
                    }
                }
                Err(error) => recover(&error, &mut guests).await,
            },
            Some(done) = tasks.join_next() => {
                if let Ok(number) = done {
                    guests.leave(number);
                }
            }
        }
    }
}

/// After a failed accept: makes room if descriptors are short, and never spins.
async fn recover(error: &io::Error, guests: &mut Guests<tokio::task::AbortHandle>) {
    if error.kind() == io::ErrorKind::ConnectionAborted {
        return;
    }
    tracing::warn!(%error, "accepting a connection failed");
    if let Some(leaving) = guests.evict() {
        leaving.handle.abort();
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
}

/// One connection, from its first byte to its delivery.
async fn receive(
    mut stream: TcpStream,
    from: SocketAddr,
    registry: Arc<Registry>,
    promising: Arc<AtomicBool>,
) {
    let proof = prove(&mut stream, from, &registry, &promising);
    match tokio::time::timeout(GUEST_TIME, proof).await {
        Ok(Ok(Some(admission))) => admission.deliver(stream),
        Ok(Ok(None)) => {}
        Ok(Err(_)) => registry.count_stranger(from, "broke off before its proof"),
        Err(_) => registry.count_stranger(from, "took too long to prove itself"),
    }
}

async fn prove(
    stream: &mut TcpStream,
    from: SocketAddr,
    registry: &Registry,
    promising: &AtomicBool,
) -> io::Result<Option<Box<dyn Admission>>> {
    stream.set_nodelay(true)?;
    let mut raw = [0; HELLO];
    stream.read_exact(&mut raw).await?;
    let hello = match Acceptance::read(&raw) {
        Some(Ok(hello)) => hello,
        Some(Err(theirs)) => {
            tracing::warn!(%from, theirs, ours = VERSION, "a connection speaks another version");
            stream.write_all(&Acceptance::version_only()).await?;
            return Ok(None);
        }
        None => {
            registry.count_stranger(from, "does not speak this protocol");
            return Ok(None);
        }
    };
    let entry = registry.find(&hello.id);
    promising.store(entry.is_some(), Ordering::Relaxed);
    let acceptance = Acceptance::new(hello).map_err(io::Error::other)?;
    stream.write_all(acceptance.challenge()).await?;
    let mut proof = [0; PROOF];
    stream.read_exact(&mut proof).await?;
    // An id that is not known is treated like a wrong proof, at the same point, but in the log: a
    // peer may come before it is expected, and comes again.
    let known = entry.is_some();
    let Some(entry) = entry.filter(|entry| acceptance.proven(&entry.key, &proof)) else {
        if known {
            registry.count_failed_proof(from);
        } else {
            registry.count_unexpected(from);
        }
        stream.write_all(&Acceptance::bad_proof()).await?;
        return Ok(None);
    };
    match entry.service.admit(hello.claims, from) {
        Ok(admission) => {
            let verdict = acceptance.verdict(&entry.key, Ok(()));
            stream.write_all(&verdict).await?;
            Ok(Some(admission))
        }
        Err(refusal) => {
            let verdict = acceptance.verdict(&entry.key, Err(refusal));
            stream.write_all(&verdict).await?;
            Ok(None)
        }
    }
}
