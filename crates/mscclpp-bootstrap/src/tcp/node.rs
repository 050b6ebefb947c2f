// SPDX-License-Identifier: MIT
//! One rank among its peers: what the threads of the user and the tasks of the
//! background thread share.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::failures::Failures;
use super::frame::MAX_MESSAGE;
use super::liveness::Heard;
use super::mailbox::{Mailbox, NoMessage};
use super::meter::Meter;
use super::outgoing::{Link, News, Outgoing, Sent, Waiting};
use super::peers;
use super::suspicion::Broken;
use crate::failure::{FailureKind, PeerFailure};
use crate::link::{LinkId, LinkKey};
use crate::secret::Secret;
use crate::{Bootstrap, BootstrapError, Deadline, Deadlines, JobKey, Tag, Turns};

/// The two directions of one peer.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    pub(crate) mailbox: Mailbox,
    pub(crate) outgoing: Outgoing,
    /// When it last sent anything.
    pub(crate) heard: Heard,
    /// Ends its connection soon, whatever is still to be written.
    pub(crate) cut: Notify,
}

/// Whom to tell of a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// Every peer: it was seen here.
    Everybody,
    /// Every peer but the one who told us.
    HeardFrom(usize),
    /// Nobody: it is a conclusion of this rank alone.
    Nobody,
}

/// What the ranks of one job share and nobody else knows.
pub(crate) struct Job {
    pub(crate) key: JobKey,
    pub(crate) link_key: LinkKey,
    pub(crate) link_id: LinkId,
}

impl Job {
    pub(crate) fn new(secret: &Secret, nonce: &[u8; 32], world: usize) -> Self {
        let key = secret.job_key(nonce);
        let link_key = LinkKey::derive(Some(&key), "peer", &(world as u64).to_le_bytes());
        let link_id = LinkId::of_service(&link_key);
        Self {
            key,
            link_key,
            link_id,
        }
    }
}

/// Where a rank listens and on which machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Place {
    pub(crate) address: SocketAddr,
    pub(crate) host: u64,
}

pub(crate) struct Node {
    pub(crate) rank: usize,
    pub(crate) world: usize,
    pub(crate) deadlines: Deadlines,
    pub(crate) runtime: Handle,
    pub(crate) failures: Arc<Failures>,
    pub(crate) job: OnceLock<Job>,
    /// Where every rank is; known once all have joined.
    pub(crate) places: OnceLock<Vec<Place>>,
    pub(crate) local_ip: OnceLock<IpAddr>,
    /// Set once this rank says goodbye: what breaks then is no death.
    pub(crate) leaving: AtomicBool,
    peers: Mutex<HashMap<usize, Arc<Peer>>>,
    turns: Turns,
    /// The peers that live although their connections to this rank broke lately.
    pub(super) broken: Mutex<Vec<Broken>>,
    connections: AtomicUsize,
    connection_closed: Notify,
    /// What went over all of them.
    pub(crate) meter: Arc<Meter>,
}

impl Node {
    pub(crate) fn new(
        rank: usize,
        world: usize,
        deadlines: Deadlines,
        failures: Arc<Failures>,
        runtime: Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            rank,
            world,
            deadlines,
            runtime,
            failures,
            job: OnceLock::new(),
            places: OnceLock::new(),
            local_ip: OnceLock::new(),
            leaving: AtomicBool::new(false),
            peers: Mutex::default(),
            turns: Turns::new(),
            broken: Mutex::default(),
            connections: AtomicUsize::new(0),
            connection_closed: Notify::new(),
            meter: Arc::default(),
        })
    }

    pub(crate) fn peer(&self, rank: usize) -> Arc<Peer> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(peers.entry(rank).or_default())
    }

    /// One that this rank has had to do with.
    pub(crate) fn known_peer(&self, rank: usize) -> Option<Arc<Peer>> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.get(&rank).cloned()
    }

    fn all_peers(&self) -> Vec<(usize, Arc<Peer>)> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.iter().map(|(r, p)| (*r, Arc::clone(p))).collect()
    }

    /// The peers that it is connected to.
    fn connected(&self) -> Vec<usize> {
        let open = |peer: &Peer| matches!(peer.outgoing.lock().link, Link::Open(_));
        let mut ranks: Vec<usize> = (self.all_peers().into_iter())
            .filter_map(|(rank, peer)| open(&peer).then_some(rank))
            .collect();
        ranks.sort_unstable();
        ranks
    }

    /// How many connections this rank holds.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Acquire)
    }

    pub(crate) fn connection_opened(&self) {
        self.connections.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn connection_closed(&self) {
        self.connections.fetch_sub(1, Ordering::AcqRel);
        self.connection_closed.notify_one();
    }

    /// Records that a peer is gone, ends every wait that this concerns, and tells
    /// of a death.
    pub(crate) fn gone(&self, failure: PeerFailure, spread: Spread) {
        if self.leaving.load(Ordering::Acquire) {
            return;
        }
        let (rank, kind, cause) = (failure.rank, failure.kind, failure.cause.clone());
        if rank == self.rank {
            self.excluded(failure.cause);
            return;
        }
        // One that the others have left out has nothing to say about them.
        if self.is_excluded() || !self.failures.record(failure) {
            return;
        }
        let peer = self.peer(rank);
        if kind == FailureKind::Died {
            // Should it be alive, it learns that nobody waits for it any more.
            let cause = cause.clone();
            peer.outgoing.tell(News::Death { rank, cause });
            peer.cut.notify_one();
        }
        peer.outgoing.set(peer.outgoing.lock(), Link::Closed);
        if kind != FailureKind::Died {
            peer.mailbox.wake();
            return;
        }
        tracing::warn!(rank, cause, "a rank has died");
        for (other, peer) in self.all_peers() {
            // Everybody may be in a collective with the dead.
            peer.mailbox.wake();
            peer.outgoing.wake();
            let heard_from = matches!(spread, Spread::HeardFrom(from) if from == other);
            if spread == Spread::Nobody || heard_from || other == rank {
                continue;
            }
            let cause = cause.clone();
            peer.outgoing.tell(News::Death { rank, cause });
        }
        self.tell_observers();
    }

    /// The others take this rank for dead. They wait for it no longer and would not know what it
    /// missed: nothing goes on here.
    pub(crate) fn excluded(&self, cause: String) {
        let failure = PeerFailure::new(self.rank, FailureKind::Died, cause.clone());
        if !self.failures.record(failure) {
            return;
        }
        tracing::warn!(
            rank = self.rank,
            cause,
            "the other ranks take this one for dead"
        );
        for (_, peer) in self.all_peers() {
            // Whoever does not know yet need not find out by itself.
            let (rank, cause) = (self.rank, cause.clone());
            peer.outgoing.tell(News::Death { rank, cause });
            peer.mailbox.wake();
            peer.outgoing.wake();
        }
        self.tell_observers();
    }

    /// Whether the others take this rank for dead.
    pub(crate) fn is_excluded(&self) -> bool {
        self.failures.of(self.rank).is_some()
    }

    /// Why nothing comes from a peer or goes to it any more, if so.
    fn gone_for(&self, peer: usize) -> Option<PeerFailure> {
        (self.failures.of(self.rank)).or_else(|| self.failures.of(peer))
    }

    /// Tells a peer, whose connection has just been opened, of earlier deaths: the
    /// news may have had no way to it until now. One that is out tells of itself only.
    pub(crate) fn tell_of_deaths(&self, peer: &Peer) {
        let own = self.failures.of(self.rank);
        let deaths = own.map_or_else(|| self.failures.deaths(), |own| vec![own]);
        for PeerFailure { rank, cause, .. } in deaths {
            peer.outgoing.tell(News::Death { rank, cause });
        }
    }

    /// Each on a thread of its own: an observer may take its time or call back.
    fn tell_observers(&self) {
        for observer in self.failures.untold() {
            let failures = Arc::clone(&self.failures);
            self.runtime.spawn_blocking(move || failures.tell(observer));
        }
    }

    /// Says goodbye on every connection, after what is queued there, and waits
    /// until the peers have heard it or the time is up.
    pub(crate) async fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        for (_, peer) in self.all_peers() {
            self.goodbye_if_leaving(&peer);
        }
        let all_closed = async {
            while self.connections() > 0 {
                self.connection_closed.notified().await;
            }
        };
        let limit = self.deadlines.goodbye;
        if tokio::time::timeout(limit, all_closed).await.is_err() {
            tracing::warn!(
                rank = self.rank,
                peers = ?self.connected(),
                waited = ?limit,
                "left while peers had not taken the last messages over"
            );
        }
    }

    /// Says goodbye on the peer's connection, if there is one and this rank leaves.
    /// Asked when either begins, so that none is forgotten.
    pub(crate) fn goodbye_if_leaving(&self, peer: &Peer) {
        if !self.leaving.load(Ordering::Acquire) {
            return;
        }
        if let Link::Open(outbox) | Link::Opening(outbox) = &peer.outgoing.lock().link {
            // A connection that is ending needs no goodbye; a second one is not
            // sent.
            let _ = outbox.urgent.send(News::Goodbye);
        }
    }

    fn check_rank(&self, what: &'static str, rank: usize) -> Result<(), BootstrapError> {
        if rank < self.world {
            return Ok(());
        }
        Err(BootstrapError::RankOutOfRange {
            what,
            rank,
            world: self.world,
        })
    }

    fn failure_error(&self, failure: &PeerFailure, operation: String) -> BootstrapError {
        if failure.kind == FailureKind::Left && self.failures.report_departure(failure.rank) {
            self.tell_observers();
        }
        if failure.rank == self.rank {
            return BootstrapError::Excluded {
                rank: self.rank,
                operation,
                cause: failure.cause.clone(),
            };
        }
        BootstrapError::from_failure(failure, self.rank, operation)
    }
}

/// A bootstrap whose receive also opens the connection to the peer, so that its
/// death is seen while it is waited for.
pub(crate) struct Joined(pub(crate) Arc<Node>);

impl Joined {
    fn receive(
        &self,
        peer: usize,
        tag: Tag,
        deadline: Deadline,
        gone: impl Fn() -> Option<PeerFailure>,
    ) -> Result<Vec<u8>, BootstrapError> {
        let node = &self.0;
        node.check_rank("the peer, rank", peer)?;
        let lane = node.peer(peer);
        if peer != node.rank {
            peers::ensure_link(node, peer, &lane);
        }
        match lane.mailbox.take(tag, deadline, gone) {
            Ok(message) => {
                if peer != node.rank {
                    lane.outgoing.took(message.len());
                }
                Ok(message)
            }
            Err(NoMessage::Gone(failure)) => {
                let operation = format!("receiving from rank {peer} with tag {tag}");
                Err(node.failure_error(&failure, operation))
            }
            Err(NoMessage::Expired) => Err(BootstrapError::Timeout {
                rank: node.rank,
                operation: format!("receiving from rank {peer} with tag {tag}"),
                waiting_for: vec![peer],
                waited: deadline.budget(),
                hint: lane.outgoing.lock().trouble.clone().unwrap_or_default(),
            }),
        }
    }
}

impl Bootstrap for Joined {
    fn rank(&self) -> usize {
        self.0.rank
    }

    fn world_size(&self) -> usize {
        self.0.world
    }

    fn send(
        &self,
        peer: usize,
        tag: Tag,
        data: &[u8],
        deadline: Deadline,
    ) -> Result<(), BootstrapError> {
        let node = &self.0;
        node.check_rank("the peer, rank", peer)?;
        if data.len() as u64 > MAX_MESSAGE {
            return Err(BootstrapError::MessageTooLarge {
                bytes: data.len() as u64,
                max: MAX_MESSAGE,
            });
        }
        let lane = node.peer(peer);
        if peer == node.rank {
            lane.mailbox.deliver(tag, data.to_vec(), u64::MAX);
            return Ok(());
        }
        let gone = || node.gone_for(peer);
        let connect = || peers::start_connecting(node, peer);
        let operation = || format!("sending {} bytes to rank {peer} with tag {tag}", data.len());
        match lane.outgoing.send(tag, data, deadline, gone, connect) {
            Sent::Written => Ok(()),
            Sent::Gone(failure) => Err(node.failure_error(&failure, operation())),
            Sent::Expired(Waiting::Writer, _) => Err(BootstrapError::Underway {
                rank: node.rank,
                peer,
                operation: operation(),
                waited: deadline.budget(),
            }),
            Sent::Expired(waiting, trouble) => Err(BootstrapError::Timeout {
                rank: node.rank,
                operation: operation(),
                waiting_for: vec![peer],
                waited: deadline.budget(),
                hint: match (waiting, trouble) {
                    (Waiting::Room, _) => {
                        "it has 1 GiB of messages that it has not received; call recv there".into()
                    }
                    (_, trouble) => trouble.unwrap_or("there is no connection yet".into()),
                },
            }),
        }
    }

    fn recv(&self, peer: usize, tag: Tag, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        self.receive(peer, tag, deadline, || self.0.gone_for(peer))
    }

    fn timeout(&self) -> Duration {
        self.0.deadlines.step
    }

    /// Counted from the table of addresses; no messages are sent.
    fn ranks_per_node(&self) -> Result<usize, BootstrapError> {
        let places = self.0.places.get().map_or(&[][..], Vec::as_slice);
        let mine = places.get(self.0.rank).map(|place| place.host);
        Ok(places.iter().filter(|p| Some(p.host) == mine).count())
    }

    fn local_ip(&self) -> Option<IpAddr> {
        self.0.local_ip.get().copied()
    }

    fn job_key(&self) -> Option<JobKey> {
        self.0.job.get().map(|job| job.key.clone())
    }

    fn recv_in_collective(
        &self,
        peer: usize,
        tag: Tag,
        members: Option<&[usize]>,
        deadline: Deadline,
    ) -> Result<Vec<u8>, BootstrapError> {
        let node = &self.0;
        self.receive(peer, tag, deadline, || {
            // A death comes first: departures may follow from it.
            (node.failures.of(node.rank))
                .or_else(|| node.failures.first_death(members))
                .or_else(|| node.failures.of(peer))
        })
    }

    fn turns(&self) -> Option<&Turns> {
        Some(&self.0.turns)
    }
}
