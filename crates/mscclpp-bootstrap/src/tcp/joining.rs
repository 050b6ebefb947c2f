// SPDX-License-Identifier: MIT
//! From an address and a secret to a joined rank.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use tokio::net::TcpListener;

use super::SharedPeers;
use super::peers::Peers;
use super::rendezvous::{self, JoinService};
use crate::address::{Root, RootAddress};
use crate::background::Background;
use crate::link::{Registry, serve};
use crate::{BootstrapError, Deadline, JobKey, Secret, interface, socket};

/// How long one address out of a file is tried before the file is read again: it
/// may be of a job that ended.
const FILE_PATIENCE: Duration = Duration::from_secs(1);
const FILE_PAUSE: Duration = Duration::from_millis(20);

/// A port of this rank that nobody serves yet; who connects waits.
pub(super) struct Listening {
    listener: StdListener,
    address: SocketAddr,
}

impl Listening {
    pub(super) fn start(at: SocketAddr) -> Result<Self, BootstrapError> {
        let (listener, address) = socket::listen(at)?;
        Ok(Self { listener, address })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A rank that has joined. Dropping it leaves.
pub(super) struct Joined {
    pub(super) peers: SharedPeers,
    pub(super) job_key: JobKey,
    deadline: Deadline,
    _background: Background,
}

impl Joined {
    /// What is left of the time for joining.
    pub(super) fn left(&self) -> Deadline {
        self.deadline
    }
}

/// Whom the runtime says goodbye for at its end.
type Leaving = Arc<Mutex<Option<SharedPeers>>>;

/// The parts that both kinds of ranks start from.
struct Start {
    background: Background,
    registry: Arc<Registry>,
    leaving: Leaving,
    listening: Listening,
}

impl Start {
    fn new(listening: Listening) -> Result<Self, BootstrapError> {
        let leaving = Leaving::default();
        let end = Arc::clone(&leaving);
        let background = Background::start("mscclpp-bootstrap", move || async move {
            let peers = end.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(peers) = peers {
                peers.leave().await;
            }
        })?;
        Ok(Self {
            background,
            registry: Arc::new(Registry::default()),
            leaving,
            listening,
        })
    }

    /// Runs a future on the runtime's thread and waits for it; whatever it does is
    /// bounded by deadlines of its own.
    fn run<T: Send + 'static>(
        background: &Background,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, BootstrapError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        background.handle().spawn(async move {
            let _gone = sender.send(future.await);
        });
        receiver.recv().map_err(|_| {
            let ended = std::io::Error::other("the background thread ended");
            BootstrapError::io("joining", ended)
        })
    }

    fn serve(listener: StdListener, background: &Background, registry: &Arc<Registry>) -> Result<(), BootstrapError> {
        let _inside = background.handle().enter();
        let listener = TcpListener::from_std(listener)
            .map_err(|e| BootstrapError::io("listening for peers", e))?;
        background.handle().spawn(serve(listener, Arc::clone(registry)));
        Ok(())
    }

    fn admit(leaving: &Leaving, registry: &Registry, peers: &SharedPeers) {
        *leaving.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(peers));
        let (id, key, service) = peers.service();
        registry.register(id, key, service);
    }
}

/// Joins at an address. `listening` is the port that rank 0 has taken already.
pub(super) fn at(
    rank: usize,
    world: usize,
    listening: Option<Box<Listening>>,
    root: &RootAddress,
    secret: &Secret,
    deadline: Deadline,
) -> Result<Joined, BootstrapError> {
    if rank == 0 {
        let listening = match listening {
            Some(listening) => *listening,
            None => Listening::start(root.socket)?,
        };
        return host(world, listening, secret, deadline, || {});
    }
    let towards = Some(root.socket.ip());
    let ip = match &root.interface {
        Some(name) => interface::named(name, towards)?,
        None => interface::choose(towards)?,
    };
    let start = Start::new(Listening::start(SocketAddr::new(ip, 0))?)?;
    guest((rank, world), start, deadline, {
        let (root, secret) = (root.socket, secret.clone());
        move |listen| async move {
            rendezvous::join(rank, world, root, &secret, listen, deadline, deadline).await
        }
    })
}

/// Joins where a launcher's ranks meet.
pub(super) fn through(
    (rank, world): (usize, usize),
    listening: Option<Box<Listening>>,
    root: &Root,
    one_machine: bool,
    secret: &dyn Fn(SocketAddr) -> Result<Secret, BootstrapError>,
    deadline: Deadline,
) -> Result<Joined, BootstrapError> {
    match root {
        Root::At(root) => {
            let secret = secret(root.socket)?;
            at(rank, world, listening, root, &secret, deadline)
        }
        Root::Named { host, port } => {
            let socket = look_up(host, *port, deadline)?;
            let root = RootAddress {
                interface: None,
                socket,
            };
            at(rank, world, listening, &root, &secret(socket)?, deadline)
        }
        Root::File(path) => {
            let ip = if one_machine {
                IpAddr::V4(Ipv4Addr::LOCALHOST)
            } else {
                interface::choose(None)?
            };
            let own = Listening::start(SocketAddr::new(ip, 0))?;
            let secret = secret(own.address)?;
            if rank == 0 {
                publish(path, own.address)?;
                let path = path.clone();
                return host(world, own, &secret, deadline, move || withdraw(&path));
            }
            let path = path.clone();
            guest((rank, world), Start::new(own)?, deadline, move |listen| async move {
                by_file((rank, world), &path, &secret, listen, deadline).await
            })
        }
    }
}

/// Rank 0 takes the others in. `met` is called when they have all come or the time
/// is up.
fn host(
    world: usize,
    listening: Listening,
    secret: &Secret,
    deadline: Deadline,
    met: impl FnOnce(),
) -> Result<Joined, BootstrapError> {
    let Start {
        background,
        registry,
        leaving,
        listening,
    } = Start::new(listening)?;
    let own = listening.address;
    let (service, arrivals) = JoinService::new(world);
    let (id, key) = rendezvous::service_key(secret);
    let serial = registry.register(id, key, Arc::clone(&service) as _);
    Start::serve(listening.listener, &background, &registry)?;
    let gathered = Start::run(&background, rendezvous::gather(arrivals, service, own, deadline))?;
    registry.remove(id, serial);
    met();
    let table = gathered?;
    let job_key = secret.job_key(&table.job);
    let handle = background.handle().clone();
    let peers = Peers::new(0, table.addresses.clone(), &job_key, handle);
    Start::admit(&leaving, &registry, &peers);
    Start::run(&background, table.announce(deadline))?;
    Ok(Joined {
        peers,
        job_key,
        deadline,
        _background: background,
    })
}

/// Another rank joins with what `join` does, given the address where it listens.
fn guest<F>(
    (rank, _world): (usize, usize),
    start: Start,
    deadline: Deadline,
    join: impl FnOnce(SocketAddr) -> F,
) -> Result<Joined, BootstrapError>
where
    F: Future<Output = Result<(JobKey, Vec<SocketAddr>), BootstrapError>> + Send + 'static,
{
    let Start {
        background,
        registry,
        leaving,
        listening,
    } = start;
    let joined = Start::run(&background, join(listening.address))?;
    let (job_key, addresses) = joined?;
    let peers = Peers::new(rank, addresses, &job_key, background.handle().clone());
    Start::admit(&leaving, &registry, &peers);
    Start::serve(listening.listener, &background, &registry)?;
    Ok(Joined {
        peers,
        job_key,
        deadline,
        _background: background,
    })
}

fn look_up(host: &str, port: u16, deadline: Deadline) -> Result<SocketAddr, BootstrapError> {
    use std::net::ToSocketAddrs;
    let what = format!("looking up {host}");
    let (sender, receiver) = mpsc::sync_channel(1);
    let name = (host.to_owned(), port);
    // The system's look-up has no time limit, so that it gets a thread of its own.
    std::thread::spawn(move || {
        let _late = sender.send((name.0.as_str(), name.1).to_socket_addrs());
    });
    match receiver.recv_timeout(deadline.remaining()) {
        Ok(Ok(mut found)) => found.next().ok_or_else(|| {
            BootstrapError::io(what, std::io::Error::other("the name has no address"))
        }),
        Ok(Err(error)) => Err(BootstrapError::io(what, error)),
        Err(_) => Err(BootstrapError::io(what, std::io::ErrorKind::TimedOut.into())),
    }
}

/// Writes the address where rank 0 listens; other ranks see all of it or nothing.
fn publish(path: &Path, address: SocketAddr) -> Result<(), BootstrapError> {
    let fresh = path.with_extension(format!("new-{}", std::process::id()));
    std::fs::write(&fresh, format!("{address}\n"))
        .and_then(|()| std::fs::rename(&fresh, path))
        .map_err(|e| BootstrapError::io(format!("writing {}", path.display()), e))
}

fn withdraw(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "the file with rank 0's address stays");
    }
}

/// Reads the file until it tells a working address.
async fn by_file(
    (rank, world): (usize, usize),
    path: &Path,
    secret: &Secret,
    listen: SocketAddr,
    deadline: Deadline,
) -> Result<(JobKey, Vec<SocketAddr>), BootstrapError> {
    loop {
        let text = std::fs::read_to_string(path);
        let outcome = match &text {
            Ok(text) => {
                let root: RootAddress = text.parse()?;
                let patience = deadline.at_most(FILE_PATIENCE);
                rendezvous::join(rank, world, root.socket, secret, listen, patience, deadline).await
            }
            Err(error) => Err(BootstrapError::Timeout {
                rank,
                operation: format!("joining, where rank 0 is to write {}", path.display()),
                waiting_for: vec![0],
                waited: deadline.budget(),
                hint: error.to_string(),
            }),
        };
        match outcome {
            Err(error) if error.is_timeout() && !deadline.expired() => {
                tokio::time::sleep(FILE_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}
