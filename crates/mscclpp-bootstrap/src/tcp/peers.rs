// SPDX-License-Identifier: MIT
//! How two ranks come to share one connection.
//!
//! Either may begin, when it first wants to send to or receive from the other. If
//! both do at once, the connection of the lower rank counts: the lower one
//! declines the other's call, the higher one accepts and forgets its own. The
//! connector opens the connection with a first frame and the acceptor confirms it
//! with one: for the acceptor it counts from the former, for the connector from
//! the latter. What breaks earlier is no death, and is tried again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::connection::{self, Opened};
use super::liveness;
use super::node::{Node, Peer, Spread};
use super::outgoing::{Link, Outbox};
use crate::failure::{FailureKind, PeerFailure};
use crate::link::{Admission, Call, CallError, Claims, Refusal, Service, connect_async};
use crate::{BootstrapError, Deadline, socket};

/// How long a declined caller waits for the other's call before it tries again.
const CROSSING_TIME: Duration = Duration::from_secs(1);
/// A port where nobody listens is asked again after this before its rank counts
/// as gone. News of a death, which comes along other connections, is faster.
const SECOND_LOOK: Duration = Duration::from_millis(300);
/// How long to wait before another try after a peer did not take a connection.
const PAUSE: Duration = Duration::from_millis(10);

/// Begins to connect to a peer unless there is a connection or soon will be.
pub(crate) fn ensure_link(node: &Arc<Node>, rank: usize, peer: &Peer) {
    let idle = |link: &Link| matches!(link, Link::Idle);
    if node.places.get().is_some() && peer.outgoing.change(idle, Link::Connecting) {
        start_connecting(node, rank);
    }
}

/// Connects in the background; the link's state is `Connecting`.
pub(crate) fn start_connecting(node: &Arc<Node>, rank: usize) {
    let node = Arc::clone(node);
    node.runtime.clone().spawn(async move {
        let peer = node.peer(rank);
        if let Err(trouble) = connect(&node, rank, &peer).await {
            peer.outgoing.lock().trouble = Some(trouble);
            peer.outgoing.change(is_connecting, Link::Idle);
        }
    });
}

fn is_connecting(link: &Link) -> bool {
    matches!(link, Link::Connecting)
}

/// How to call a peer, once the job has its key.
pub(crate) fn call(node: &Node, rank: usize, address: SocketAddr) -> Option<Call> {
    let job = node.job.get()?;
    Some(Call {
        address,
        id: job.link_id,
        key: job.link_key.clone(),
        claims: Claims {
            from: node.rank as u32,
            to: rank as u32,
            world: node.world as u32,
        },
        // It has the key, or will as soon as it is given time.
        proof_patience: node.deadlines.step,
    })
}

async fn connect(node: &Arc<Node>, rank: usize, peer: &Arc<Peer>) -> Result<(), String> {
    let places = node.places.get().ok_or("its address is not known yet")?;
    let address = places.get(rank).ok_or("its address is not known")?.address;
    let call = call(node, rank, address).ok_or("the job has no key yet")?;
    let deadline = Deadline::after(node.deadlines.step);
    let mut looked = false;
    loop {
        match connect_async(&call, false, deadline).await {
            Ok(stream) => match open(node, rank, peer, stream).await {
                Opened::NotTaken(error) if deadline.expired() => return Err(error.to_string()),
                Opened::NotTaken(_) => tokio::time::sleep(PAUSE).await,
                Opened::Taken | Opened::Ended => return Ok(()),
            },
            Err(CallError::Crossing) => {
                if !peer.outgoing.change(is_connecting, Link::Awaiting) {
                    return Ok(());
                }
                tokio::time::sleep(CROSSING_TIME).await;
                let awaiting = |link: &Link| matches!(link, Link::Awaiting);
                // If its call never came, ours it is.
                if !peer.outgoing.change(awaiting, Link::Connecting) {
                    return Ok(());
                }
            }
            Err(CallError::NobodyThere(_)) if !looked => {
                looked = true;
                tokio::time::sleep(SECOND_LOOK).await;
            }
            Err(CallError::NobodyThere(_)) => {
                let cause = format!("nobody listens at its address {address} any more");
                // Had it died, its neighbours would have said so by now, unless they died before it
                // and this rank is to be one.
                let (kind, spread) = match liveness::inherited(node, rank) {
                    true => (FailureKind::Died, Spread::Everybody),
                    false => (FailureKind::Left, Spread::Nobody),
                };
                node.gone(PeerFailure::new(rank, kind, cause), spread);
                return Ok(());
            }
            Err(CallError::Other(error)) => {
                return Err(describe(node, rank, error));
            }
        }
    }
}

/// What an error of a call means for the peer.
pub(crate) fn describe(node: &Node, rank: usize, error: BootstrapError) -> String {
    if refused(&error, Refusal::Gone) {
        let failure = PeerFailure::new(rank, FailureKind::Left, "it declined a connection");
        node.gone(failure, Spread::Nobody);
    } else if refused(&error, Refusal::Dead) {
        is_out(node, rank);
    }
    error.to_string()
}

/// Whether a call was declined for this reason.
pub(super) fn refused(error: &BootstrapError, refusal: Refusal) -> bool {
    matches!(error, BootstrapError::Declined { reason, .. } if reason == refusal.reason())
}

/// This rank is out, as another says that it called.
pub(super) fn is_out(node: &Node, rank: usize) {
    node.excluded(format!("rank {rank} does not let it in any more"));
}

/// Makes the stream that this rank connected the peer's connection.
pub(crate) async fn open(
    node: &Arc<Node>,
    rank: usize,
    peer: &Arc<Peer>,
    mut stream: TcpStream,
) -> Opened {
    if let Err(error) = socket::prepare(&stream) {
        return Opened::NotTaken(error);
    }
    let (outbox, mut inbox) = outbox();
    let counts = |link: &Link| matches!(link, Link::Opening(_) | Link::Open(_) | Link::Closed);
    // The other end sees the stream close before its first frame.
    if !peer
        .outgoing
        .change(|link| !counts(link), Link::Opening(outbox))
    {
        return Opened::Ended;
    }
    node.connection_opened();
    node.goodbye_if_leaving(peer);
    let opened = connection::open(&mut stream, &mut inbox).await;
    if matches!(opened, Opened::Taken) && peer.outgoing.confirm() {
        node.tell_of_deaths(peer);
        let (node, peer) = (Arc::clone(node), Arc::clone(peer));
        let runtime = node.runtime.clone();
        runtime.spawn(connection::run(node, rank, peer, stream, inbox));
        return Opened::Taken;
    }
    let opening = |link: &Link| matches!(link, Link::Opening(_));
    peer.outgoing.change(opening, Link::Connecting);
    node.connection_closed();
    match opened {
        Opened::Taken => Opened::Ended,
        other => other,
    }
}

fn outbox() -> (Outbox, connection::Inbox) {
    let (urgent, news) = mpsc::unbounded_channel();
    let (messages, jobs) = mpsc::unbounded_channel();
    (
        Outbox { urgent, messages },
        connection::Inbox { news, jobs },
    )
}

/// Takes the calls of peers.
pub(crate) struct Door(pub(crate) Arc<Node>);

impl Service for Door {
    fn admit(&self, claims: Claims) -> Result<Box<dyn Admission>, Refusal> {
        let node = &self.0;
        let from = claims.from as usize;
        if claims.world as usize != node.world {
            return Err(Refusal::WrongWorld);
        }
        if claims.to as usize != node.rank || from >= node.world || from == node.rank {
            return Err(Refusal::WrongRank);
        }
        if node.leaving.load(Ordering::Acquire) || node.is_excluded() {
            return Err(Refusal::Gone);
        }
        match node.failures.of(from).map(|failure| failure.kind) {
            Some(FailureKind::Died) => return Err(Refusal::Dead),
            Some(FailureKind::Left) => return Err(Refusal::Gone),
            None => {}
        }
        let peer = node.peer(from);
        let state = peer.outgoing.lock();
        match state.link {
            Link::Open(_) | Link::Opening(_) => return Err(Refusal::Crossing),
            Link::Connecting if node.rank < from => return Err(Refusal::Crossing),
            Link::Closed => return Err(Refusal::Gone),
            _ => {}
        }
        let attempt = peer.outgoing.accept(state);
        Ok(Box::new(KeptPlace(Some(Kept {
            node: Arc::clone(node),
            from,
            peer: Arc::clone(&peer),
            attempt,
        }))))
    }
}

/// A place for a peer's connection until its first frame.
struct Kept {
    node: Arc<Node>,
    from: usize,
    peer: Arc<Peer>,
    attempt: u64,
}

struct KeptPlace(Option<Kept>);

impl Admission for KeptPlace {
    fn deliver(mut self: Box<Self>, stream: TcpStream) {
        let Some(kept) = self.0.take() else { return };
        let node = Arc::clone(&kept.node);
        let patience = node.deadlines.proof;
        node.runtime.spawn(async move {
            let place = KeptPlace(Some(kept));
            if socket::prepare(&stream).is_ok()
                && let Some(stream) = connection::first_frame(stream, patience).await
            {
                place.fill(stream);
            }
        });
    }
}

impl KeptPlace {
    /// The first frame has come: from here on the connection counts.
    fn fill(mut self, stream: TcpStream) {
        let Some(kept) = self.0.take() else { return };
        let mine = |link: &Link| matches!(link, Link::Accepting(a) if *a == kept.attempt);
        let (outbox, inbox) = outbox();
        if !kept.peer.outgoing.change(mine, Link::Open(outbox)) {
            return;
        }
        kept.node.connection_opened();
        kept.node.goodbye_if_leaving(&kept.peer);
        kept.node.tell_of_deaths(&kept.peer);
        let runtime = kept.node.runtime.clone();
        runtime.spawn(connection::run_accepted(
            kept.node, kept.from, kept.peer, stream, inbox,
        ));
    }
}

impl Drop for KeptPlace {
    fn drop(&mut self) {
        let Some(kept) = self.0.take() else { return };
        let mine = |link: &Link| matches!(link, Link::Accepting(a) if *a == kept.attempt);
        kept.peer.outgoing.change(mine, Link::Idle);
    }
}
