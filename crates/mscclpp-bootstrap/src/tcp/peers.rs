// SPDX-License-Identifier: MIT
//! The ranks of a job as one of them sees them, after joining.
//!
//! Two ranks share at most one connection, made when the first of them has
//! something to say. When both connect at once, the lower rank's connection is
//! taken and the other declined. The edges of the binomial tree come to be in the
//! barrier that ends the joining, so that every rank is watched by its neighbours
//! and the news of a death, which travels on all connections, reaches all.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::connection;
use super::failures::Failures;
use super::frame::MAX_MESSAGE;
use super::mailbox::{Mailbox, NoMessage};
use super::outgoing::{Link, News, Outgoing, Sent, Waiting};
use crate::failure::{FailureKind, FailureObserver, PeerFailure};
use crate::link::{
    Admission, Call, CallError, Claims, LinkId, LinkKey, Refusal, Service, connect_async,
};
use crate::{BootstrapError, Deadline, JobKey, Tag};

/// How long the news of a death may take to overtake the refusal of a connection.
const NEWS: Duration = Duration::from_millis(300);
/// How long a leaving rank waits for its peers to take its goodbye.
const FAREWELL: Duration = Duration::from_secs(1);

pub(super) struct Peers {
    pub(super) rank: usize,
    world: usize,
    addresses: Vec<SocketAddr>,
    key: LinkKey,
    handle: Handle,
    peers: Vec<Peer>,
    pub(super) failures: Failures,
    leaving: AtomicBool,
    /// A clone is held by every connection; closed when the last has ended.
    alive: Mutex<Option<mpsc::Sender<()>>>,
    ended: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

#[derive(Default)]
pub(super) struct Peer {
    pub(super) outgoing: Outgoing,
    pub(super) mailbox: Mailbox,
}

impl Peers {
    pub(super) fn new(
        rank: usize,
        addresses: Vec<SocketAddr>,
        job_key: &JobKey,
        handle: Handle,
    ) -> Arc<Self> {
        let (alive, ended) = mpsc::channel(1);
        Arc::new(Self {
            rank,
            world: addresses.len(),
            peers: addresses.iter().map(|_| Peer::default()).collect(),
            addresses,
            key: peer_key(job_key),
            handle,
            failures: Failures::default(),
            leaving: AtomicBool::new(false),
            alive: Mutex::new(Some(alive)),
            ended: tokio::sync::Mutex::new(ended),
        })
    }

    /// What the acceptor of this rank is to expect: connections of peers.
    pub(super) fn service(self: &Arc<Self>) -> (LinkId, LinkKey, Arc<dyn Service>) {
        let service = Arc::new(PeerService(Arc::clone(self)));
        (LinkId::of_service(&self.key), self.key.clone(), service)
    }

    pub(super) fn peer(&self, rank: usize) -> &Peer {
        &self.peers[rank]
    }

    pub(super) fn address(&self, rank: usize) -> SocketAddr {
        self.addresses[rank]
    }

    fn exists(&self, rank: usize) -> Result<(), BootstrapError> {
        if rank < self.world {
            return Ok(());
        }
        Err(BootstrapError::RankOutOfRange {
            what: "peer rank",
            rank,
            world: self.world,
        })
    }

    pub(super) fn send(
        self: &Arc<Self>,
        peer: usize,
        tag: Tag,
        data: &[u8],
        deadline: Deadline,
    ) -> Result<(), BootstrapError> {
        self.exists(peer)?;
        if data.len() as u64 > MAX_MESSAGE {
            return Err(BootstrapError::MessageTooLarge {
                bytes: data.len() as u64,
                max: MAX_MESSAGE,
            });
        }
        if peer == self.rank {
            // To itself there is no window: whoever sends can also receive.
            self.peers[peer].mailbox.deliver(tag, data.to_vec(), u64::MAX);
            return Ok(());
        }
        let outgoing = &self.peers[peer].outgoing;
        let gone = || self.failures.of(peer);
        match outgoing.send(tag, data, deadline, gone, || self.connect(peer)) {
            Sent::Written => Ok(()),
            Sent::Gone(failure) => Err(self.wanted_of(&failure, format!("sending {tag:?}"))),
            Sent::Expired(waiting, trouble) => Err(BootstrapError::Timeout {
                rank: self.rank,
                operation: format!(
                    "sending {} bytes with {tag:?}, {}",
                    data.len(),
                    match waiting {
                        Waiting::ForConnection => "waiting for a connection",
                        Waiting::ForRoom => "waiting for the receiver to take earlier messages",
                        Waiting::ForWriter => "waiting for the network to take it",
                    }
                ),
                waiting_for: vec![peer],
                waited: deadline.budget(),
                hint: trouble.unwrap_or_default(),
            }),
        }
    }

    /// Takes a message of `peer`. `concerned` is asked for a failure that ends the
    /// wait, beside the peer's own.
    pub(super) fn recv(
        &self,
        peer: usize,
        tag: Tag,
        deadline: Deadline,
        concerned: impl Fn() -> Option<PeerFailure>,
    ) -> Result<Vec<u8>, BootstrapError> {
        self.exists(peer)?;
        let gone = || self.failures.of(peer).or_else(&concerned);
        match self.peers[peer].mailbox.take(tag, deadline, gone) {
            Ok(message) => {
                if peer != self.rank {
                    self.peers[peer].outgoing.took(message.len());
                }
                Ok(message)
            }
            Err(NoMessage::Gone(failure)) => {
                Err(self.wanted_of(&failure, format!("receiving {tag:?}")))
            }
            Err(NoMessage::Expired) => Err(BootstrapError::Timeout {
                rank: self.rank,
                operation: format!("receiving {tag:?}"),
                waiting_for: vec![peer],
                waited: deadline.budget(),
                hint: String::new(),
            }),
        }
    }

    /// Something is wanted of a rank that is gone.
    fn wanted_of(&self, failure: &PeerFailure, operation: String) -> BootstrapError {
        if failure.kind == FailureKind::Left && self.failures.report_departure(failure.rank) {
            self.failures.tell();
        }
        BootstrapError::from_failure(failure, self.rank, operation)
    }

    /// Starts to connect to a peer whose link says that this rank is connecting.
    fn connect(self: &Arc<Self>, peer: usize) {
        let peers = Arc::clone(self);
        let alive = self.alive();
        self.handle.spawn(async move {
            let call = Call {
                address: peers.addresses[peer],
                id: LinkId::of_service(&peers.key),
                key: peers.key.clone(),
                claims: Claims {
                    from: peers.rank as u32,
                    to: peer as u32,
                    world: peers.world as u32,
                },
            };
            let deadline = Deadline::after(crate::deadline::default_timeout());
            match connect_async(&call, false, deadline).await {
                Ok(stream) => connection::connected(peers, peer, stream).await,
                Err(CallError::Crossing) => peers.crossed(peer),
                Err(CallError::NobodyThere(_)) => {
                    // If it died, those who had connections to it say so now.
                    tokio::time::sleep(NEWS).await;
                    peers.gone(peer, FailureKind::Left, "nobody listens at its address any more");
                }
                Err(error) => {
                    let error = error.into_error(call.address);
                    peers.not_connected(peer, error.to_string());
                }
            }
            drop(alive);
        });
    }

    fn alive(&self) -> Option<mpsc::Sender<()>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The peer declined our connection because its own is on its way.
    fn crossed(&self, peer: usize) {
        let outgoing = &self.peers[peer].outgoing;
        let state = outgoing.lock();
        if matches!(state.link, Link::Connecting) {
            outgoing.set(state, Link::Awaiting);
        }
    }

    /// An attempt to connect failed; a sender that still waits makes another.
    pub(super) fn not_connected(&self, peer: usize, trouble: String) {
        let outgoing = &self.peers[peer].outgoing;
        let mut state = outgoing.lock();
        if matches!(state.link, Link::Connecting) {
            state.trouble = Some(trouble);
            outgoing.set(state, Link::Idle);
        }
    }

    /// A connection that the peer made broke before it counted.
    pub(super) fn not_accepted(&self, peer: usize, attempt: u64) {
        let outgoing = &self.peers[peer].outgoing;
        let state = outgoing.lock();
        if matches!(state.link, Link::Accepting(a) if a == attempt) {
            outgoing.set(state, Link::Idle);
        }
    }

    /// A peer told of a death.
    pub(super) fn told_of_death(&self, by: usize, rank: u64, cause: &str) {
        match usize::try_from(rank) {
            Ok(rank) if rank == self.rank => {
                tracing::warn!(rank, by, cause, "a peer takes this rank for dead");
            }
            Ok(rank) if rank < self.world => self.gone(rank, FailureKind::Died, cause),
            _ => tracing::warn!(by, rank, "a peer tells of the death of a rank that is none"),
        }
    }

    /// Records that a rank is gone, ends what waits for it, and passes on the
    /// news of a death.
    pub(super) fn gone(&self, rank: usize, kind: FailureKind, cause: &str) {
        let cause = match kind {
            FailureKind::Died if !cause.contains("seen by rank") => {
                format!("{cause}, seen by rank {}", self.rank)
            }
            _ => cause.to_owned(),
        };
        if self.leaving.load(Ordering::Acquire)
            || !self.failures.record(PeerFailure::new(rank, kind, cause.clone()))
        {
            // A link may still be open where the news came from elsewhere.
            let outgoing = &self.peers[rank].outgoing;
            outgoing.set(outgoing.lock(), Link::Closed);
            return;
        }
        let outgoing = &self.peers[rank].outgoing;
        outgoing.set(outgoing.lock(), Link::Closed);
        self.peers[rank].mailbox.wake();
        if kind == FailureKind::Died {
            tracing::warn!(rank, cause, by = self.rank, "a rank has died");
            for peer in &self.peers {
                // Collectives wait for one rank and are ended by the death of any.
                peer.mailbox.wake();
                let state = peer.outgoing.lock();
                if let Link::Open(outbox) = &state.link {
                    let _closing = outbox.urgent.send(News::Death {
                        rank,
                        cause: cause.clone(),
                    });
                }
            }
            self.tell_observers();
        }
    }

    /// Tells a peer with a fresh connection of the deaths so far.
    pub(super) fn tell_deaths_to(&self, peer: usize) {
        let state = self.peers[peer].outgoing.lock();
        let Link::Open(outbox) = &state.link else {
            return;
        };
        for failure in self.failures.deaths() {
            let _closing = outbox.urgent.send(News::Death {
                rank: failure.rank,
                cause: failure.cause,
            });
        }
    }

    /// Observers may block, which the runtime's one thread must not.
    fn tell_observers(&self) {
        let failures = self.failures.clone();
        self.handle.spawn_blocking(move || failures.tell());
    }

    pub(super) fn observe(&self, observer: std::sync::Weak<dyn FailureObserver>) {
        self.failures.observe(observer);
    }

    /// Says goodbye on all connections and waits, within bounds, until the peers
    /// have taken it: a socket that is closed earlier would take with it what they
    /// have not read yet.
    pub(super) async fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        for peer in &self.peers {
            let state = peer.outgoing.lock();
            if let Link::Open(outbox) = &state.link {
                let _closing = outbox.urgent.send(News::Goodbye);
            }
        }
        drop(self.alive.lock().unwrap_or_else(PoisonError::into_inner).take());
        let ended = async { self.ended.lock().await.recv().await };
        if tokio::time::timeout(FAREWELL, ended).await.is_err() {
            tracing::debug!(rank = self.rank, "left before all peers took the goodbye");
        }
    }
}

pub(super) fn peer_key(job_key: &JobKey) -> LinkKey {
    LinkKey::derive(Some(job_key), "peer", b"")
}

/// Decides about peers that connect.
struct PeerService(Arc<Peers>);

impl Service for PeerService {
    fn admit(&self, claims: Claims, _: SocketAddr) -> Result<Box<dyn Admission>, Refusal> {
        let peers = &self.0;
        if claims.world as usize != peers.world {
            return Err(Refusal::WrongWorld);
        }
        let peer = claims.from as usize;
        if claims.to as usize != peers.rank || peer >= peers.world || peer == peers.rank {
            return Err(Refusal::WrongRank);
        }
        if peers.leaving.load(Ordering::Acquire) || peers.failures.of(peer).is_some() {
            return Err(Refusal::Gone);
        }
        let outgoing = &peers.peers[peer].outgoing;
        let state = outgoing.lock();
        let attempt = match &state.link {
            Link::Connecting if peer > peers.rank => return Err(Refusal::Crossing),
            Link::Open(_) => return Err(Refusal::Crossing),
            Link::Closed => return Err(Refusal::Gone),
            Link::Idle | Link::Connecting | Link::Awaiting | Link::Accepting(_) => {
                outgoing.accept(state)
            }
        };
        Ok(Box::new(Place {
            peers: Arc::clone(peers),
            peer,
            attempt,
            delivered: false,
        }))
    }
}

/// The place of a peer that has proven itself.
struct Place {
    peers: Arc<Peers>,
    peer: usize,
    attempt: u64,
    delivered: bool,
}

impl Admission for Place {
    fn deliver(mut self: Box<Self>, stream: TcpStream) {
        self.delivered = true;
        let (peers, peer, attempt) = (Arc::clone(&self.peers), self.peer, self.attempt);
        let alive = peers.alive();
        let handle = peers.handle.clone();
        handle.spawn(async move {
            connection::accepted(peers, peer, attempt, stream).await;
            drop(alive);
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.delivered {
            self.peers.not_accepted(self.peer, self.attempt);
        }
    }
}
