// SPDX-License-Identifier: MIT
//! How ranks meet.
//!
//! Every rank connects to rank 0, which holds the world for the time of joining:
//! it takes everybody's address and, when all are in, tells each rank its parent
//! in a binomial tree. Each connects to its parent and says so; when all have,
//! rank 0 lets everybody go and closes the port where they met. The table of
//! addresses then comes down the tree. So nobody holds more than O(log world)
//! connections afterwards.

mod book;
#[cfg(all(test, not(loom)))]
mod hostile;
mod locate;
mod root;
mod visitor;
mod wire;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpListener;

use super::node::{Job, Node, Place};
use super::options::TcpOptions;
use super::peers::Door;
use crate::address::Root;
use crate::link::{LinkId, LinkKey, Registry, serve};
use crate::secret::{Secret, random};
use crate::unique_id::UniqueId;
use crate::{BootstrapError, Deadline, collectives, host, interface, message, socket};

/// The address table's size is checked against this many bytes a rank.
const PLACE_BYTES: usize = 64;

/// Where and with what secret to join.
pub(crate) enum Meeting {
    /// By an id; rank 0 brings the listener that the id speaks of.
    Id(UniqueId, Option<std::net::TcpListener>),
    /// At an address, with the secret of the options or of the environment.
    At(Root),
}

/// Everything that joining needs to know.
pub(crate) struct Join {
    pub(crate) meeting: Meeting,
    pub(crate) options: TcpOptions,
    /// Whether the launcher says that all ranks are on this machine.
    pub(crate) one_machine: bool,
    pub(crate) deadline: Deadline,
}

impl Join {
    fn secret_at(&self, address: SocketAddr) -> Result<Secret, BootstrapError> {
        match &self.meeting {
            Meeting::Id(id, _) => id.secret(),
            Meeting::At(_) => self.options.secret_at(address),
        }
    }
}

/// The key with which ranks prove themselves where they meet, and its link id.
fn meeting_key(secret: &Secret) -> (LinkId, LinkKey) {
    let key = LinkKey::derive(Some(&secret.join_key()), "rendezvous", &[]);
    (LinkId::of_service(&key), key)
}

/// Joins; on the background thread.
pub(crate) async fn join(node: Arc<Node>, mut join: Join) -> Result<Vec<Place>, BootstrapError> {
    if matches!(join.meeting, Meeting::At(_)) {
        join.options.read_secret()?;
    }
    if node.rank == 0 {
        root::host(&node, join).await
    } else {
        visitor::visit(&node, join).await?;
        Ok(Vec::new())
    }
}

/// Hands the table of addresses from rank 0, where `places` has it, to all; on
/// the thread of the caller.
pub(crate) fn share_places(
    node: &Arc<Node>,
    places: &[Place],
    deadline: Deadline,
) -> Result<(), BootstrapError> {
    let bytes = if node.rank == 0 {
        message::encode(places)?
    } else {
        Vec::new()
    };
    let joined = super::node::Joined(Arc::clone(node));
    let bytes = collectives::broadcast(&joined, &bytes, 0, deadline)?;
    tracing::debug!(bytes = bytes.len(), ranks = node.world, "address table");
    let places: Vec<Place> = message::decode(&bytes, node.world.saturating_mul(PLACE_BYTES) + 64)?;
    if places.len() != node.world {
        return Err(BootstrapError::BadMessage {
            reason: format!(
                "the table of addresses has {} entries for {} ranks",
                places.len(),
                node.world
            ),
        });
    }
    // Set once: an object joins once.
    let _ = node.places.set(places);
    Ok(())
}

/// This rank's own listener for its peers, before anybody knows of it.
struct Listening {
    place: Place,
    registry: Arc<Registry>,
}

impl Listening {
    fn start(node: &Node, ip: IpAddr) -> Result<Self, BootstrapError> {
        let (listener, address) = socket::listen(SocketAddr::new(ip, 0))?;
        let listener = TcpListener::from_std(listener)
            .map_err(|e| BootstrapError::io(format!("listening at {address}"), e))?;
        let registry = Arc::new(Registry::default());
        node.runtime
            .spawn(serve(listener, Arc::clone(&registry), node.deadlines.proof));
        // Set once: an object joins once.
        let _ = node.local_ip.set(ip);
        Ok(Self {
            place: Place {
                address,
                host: host::id(),
            },
            registry,
        })
    }

    /// Lets peers in, now that the job has its key.
    fn admit(&self, node: &Arc<Node>, secret: &Secret, nonce: &[u8; 32]) {
        let job = node.job.get_or_init(|| Job::new(secret, nonce, node.world));
        self.registry.register(
            job.link_id,
            job.link_key.clone(),
            Arc::new(Door(Arc::clone(node))),
        );
    }
}

/// The address of this machine to use when ranks meet at `root`, whose address is `at` if it is known.
fn local_ip(
    options: &TcpOptions,
    root: &Root,
    at: Option<IpAddr>,
) -> Result<IpAddr, BootstrapError> {
    let in_address = match root {
        Root::At(root) => root.interface.as_deref(),
        _ => None,
    };
    match options.interface.as_deref().or(in_address) {
        Some(name) => interface::named(name, at),
        None => interface::choose(at),
    }
}

fn nonce() -> Result<[u8; 32], BootstrapError> {
    random()
}
