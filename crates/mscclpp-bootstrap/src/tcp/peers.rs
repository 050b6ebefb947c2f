// SPDX-License-Identifier: MIT
//! How two ranks come to share one connection.
//!
//! Either may begin, when it first wants to send to or receive from the other. If
//! both do at once, the connection of the lower rank counts: the lower one
//! declines the other's call, the higher one accepts and forgets its own. A
//! connection counts from the connector's first frame; one that breaks earlier
//! is no death.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::connection;
use super::node::{Node, Peer, Spread};
use super::outgoing::{Link, Outbox};
use crate::failure::{FailureKind, PeerFailure};
use crate::link::{Admission, Call, CallError, Claims, Refusal, Service, connect_async};
use crate::{BootstrapError, Deadline, socket};

/// How long a declined caller waits for the other's call before it tries again.
const CROSSING_TIME: Duration = Duration::from_secs(1);
/// A port where nobody listens is asked again after this before its rank counts
/// as gone.
const SECOND_LOOK: Duration = Duration::from_millis(100);

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
        proof_patience: node.timeout,
    })
}

async fn connect(node: &Arc<Node>, rank: usize, peer: &Arc<Peer>) -> Result<(), String> {
    let places = node.places.get().ok_or("its address is not known yet")?;
    let address = places.get(rank).ok_or("its address is not known")?.address;
    let call = call(node, rank, address).ok_or("the job has no key yet")?;
    let deadline = Deadline::after(node.timeout);
    let mut looked = false;
    loop {
        match connect_async(&call, false, deadline).await {
            Ok(stream) => return open(node, rank, peer, stream).map_err(|e| e.to_string()),
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
                let cause = format!(
                    "nobody listens at its address {address} any more: it has died or left"
                );
                let failure = PeerFailure::new(rank, FailureKind::Died, cause);
                node.gone(failure, Spread::Nobody);
                return Ok(());
            }
            Err(CallError::Other(error)) => {
                return Err(describe(node, rank, error));
            }
        }
    }
}

/// What an error of a call means for the peer.
fn describe(node: &Node, rank: usize, error: BootstrapError) -> String {
    if let BootstrapError::Declined { reason, .. } = &error
        && reason == Refusal::Gone.reason()
    {
        let failure = PeerFailure::new(rank, FailureKind::Left, "it declined a connection");
        node.gone(failure, Spread::Nobody);
    }
    error.to_string()
}

/// Makes the stream that this rank connected the peer's connection.
pub(crate) fn open(
    node: &Arc<Node>,
    rank: usize,
    peer: &Arc<Peer>,
    stream: TcpStream,
) -> io::Result<()> {
    let state = peer.outgoing.lock();
    if matches!(state.link, Link::Open(_) | Link::Closed) {
        // The other end sees the stream close before its first frame.
        return Ok(());
    }
    socket::prepare(&stream)?;
    let (outbox, inbox) = outbox();
    peer.outgoing.set(state, Link::Open(outbox));
    node.tell_of_deaths(peer);
    let task = connection::as_connector(Arc::clone(node), rank, Arc::clone(peer), stream, inbox);
    node.connection_opened();
    node.runtime.spawn(task);
    Ok(())
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
    fn admit(&self, claims: Claims, _: SocketAddr) -> Result<Box<dyn Admission>, Refusal> {
        let node = &self.0;
        let from = claims.from as usize;
        if claims.world as usize != node.world {
            return Err(Refusal::WrongWorld);
        }
        if claims.to as usize != node.rank || from >= node.world || from == node.rank {
            return Err(Refusal::WrongRank);
        }
        if node.leaving.load(Ordering::Acquire) || node.failures.of(from).is_some() {
            return Err(Refusal::Gone);
        }
        let peer = node.peer(from);
        let state = peer.outgoing.lock();
        match state.link {
            Link::Open(_) => return Err(Refusal::Crossing),
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
        node.runtime.spawn(async move {
            let place = KeptPlace(Some(kept));
            if socket::prepare(&stream).is_ok()
                && let Some(stream) = connection::first_frame(stream).await
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
        kept.node.tell_of_deaths(&kept.peer);
        kept.node.connection_opened();
        let runtime = kept.node.runtime.clone();
        runtime.spawn(connection::as_acceptor(
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
