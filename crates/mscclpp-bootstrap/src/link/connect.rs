// SPDX-License-Identifier: MIT
//! The connecting end, for blocking callers and for tasks.

use std::io;
use std::net::{SocketAddr, TcpStream as StdTcp};
use std::os::unix::net::UnixStream as StdUnix;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::handshake::{CHALLENGE, Claims, Connector, Failure, Refusal, VERDICT, VERSION};
use super::wire::{Blocking, Place, UnixAddress};
use super::{LOOK_EVERY, LinkId, LinkKey};
use crate::{BootstrapError, Deadline, socket};

/// Proof failures are taken for final after this time: until then the acceptor
/// may not expect us yet, or a predecessor may still hold its port.
pub(crate) const PROOF_PATIENCE: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// An attempt that the deadline ends sooner than this tells nothing.
const TELLING: Duration = Duration::from_millis(100);
/// How long a machine may take to answer a call before it is called again.
const ONE_CALL: Duration = Duration::from_secs(2);

/// Whether a connection is still wanted.
type Wanted<'a> = &'a dyn Fn() -> bool;

/// Connects to an acceptor that expects (or will soon expect) `id`, and proves
/// and checks the key. Tries again until the deadline while nobody listens there
/// or the acceptor does not expect the id yet. The stream is in blocking mode
/// with `TCP_NODELAY`.
///
/// # Errors
/// [`BootstrapError::LinkTimeout`] with the reason of the last attempt;
/// [`BootstrapError::ProofRefused`] when the keys differ for two seconds;
/// [`BootstrapError::Version`]; [`BootstrapError::Declined`].
pub fn connect(
    address: SocketAddr,
    id: LinkId,
    key: &LinkKey,
    deadline: Deadline,
) -> Result<StdTcp, BootstrapError> {
    connect_while(address, id, key, deadline, &|| true)
}

/// As [`connect`], for as long as `wanted` says so, which is asked several times a
/// second. Without an answer of a machine it may take 2 s until it is asked.
///
/// # Errors
/// As [`connect`]; [`BootstrapError::LinkTimeout`] when it is not wanted any more.
pub fn connect_while(
    address: SocketAddr,
    id: LinkId,
    key: &LinkKey,
    deadline: Deadline,
    wanted: &dyn Fn() -> bool,
) -> Result<StdTcp, BootstrapError> {
    let open = |left| StdTcp::connect_timeout(&address, left);
    connect_by(open, Place::Tcp(address), id, key, deadline, wanted)
}

/// As [`connect`], to a process of this host that expects the connection with
/// [`Acceptor::expect_unix`](super::Acceptor::expect_unix). Elsewhere nobody
/// listens at that address: the caller makes sure, by
/// [`host::id`](crate::host::id), that it is on the same host.
///
/// # Errors
/// As [`connect`].
pub fn connect_unix(
    address: UnixAddress,
    id: LinkId,
    key: &LinkKey,
    deadline: Deadline,
) -> Result<StdUnix, BootstrapError> {
    connect_unix_while(address, id, key, deadline, &|| true)
}

/// As [`connect_unix`], for as long as `wanted` says so, as in [`connect_while`].
///
/// # Errors
/// As [`connect_while`].
pub fn connect_unix_while(
    address: UnixAddress,
    id: LinkId,
    key: &LinkKey,
    deadline: Deadline,
    wanted: &dyn Fn() -> bool,
) -> Result<StdUnix, BootstrapError> {
    let name = address.name();
    let open = |left| socket::connect_unix(&name, left);
    connect_by(open, Place::Unix(address), id, key, deadline, wanted)
}

fn connect_by<S: Blocking>(
    open: impl Fn(Duration) -> io::Result<S>,
    place: Place,
    id: LinkId,
    key: &LinkKey,
    deadline: Deadline,
    wanted: Wanted<'_>,
) -> Result<S, BootstrapError> {
    let mut retry = Retry::new(place, PROOF_PATIENCE, deadline);
    loop {
        let connector = Connector::new(id, key, Claims::NONE)?;
        let pause = match attempt(&open, connector, deadline, wanted) {
            Ok(stream) => return Ok(stream),
            Err(failed) => retry.pause(failed)?,
        };
        if !wanted() {
            return Err(BootstrapError::LinkTimeout {
                with: format!("to {place}"),
                waited: deadline.budget(),
                hint: "it is not wanted any more".into(),
            });
        }
        std::thread::sleep(pause);
    }
}

/// Whom to call, and as whom.
pub(crate) struct Call {
    pub(crate) address: SocketAddr,
    pub(crate) id: LinkId,
    pub(crate) key: LinkKey,
    pub(crate) claims: Claims,
    /// Proof failures are final after this time.
    pub(crate) proof_patience: Duration,
}

/// How a call ended without a connection.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The acceptor wants the connection the other way round.
    Crossing,
    /// Nobody listens there.
    NobodyThere(io::Error),
    /// Anything else.
    Other(BootstrapError),
}

impl CallError {
    pub(crate) fn into_error(self, address: SocketAddr) -> BootstrapError {
        match self {
            Self::Crossing => declined(Place::Tcp(address), Refusal::Crossing),
            Self::NobodyThere(source) => {
                BootstrapError::io(format!("connecting to {address}"), source)
            }
            Self::Other(error) => error,
        }
    }
}

/// As [`connect`], for tasks. With `patient` false, an address where nobody
/// listens is reported at once.
pub(crate) async fn connect_async(
    call: &Call,
    patient: bool,
    deadline: Deadline,
) -> Result<TcpStream, CallError> {
    let mut retry = Retry::new(Place::Tcp(call.address), call.proof_patience, deadline);
    loop {
        let connector =
            Connector::new(call.id, &call.key, call.claims).map_err(CallError::Other)?;
        let one = attempt_async(call.address, connector);
        let limit = tokio::time::Instant::from_std(deadline.at());
        let failed = match tokio::time::timeout_at(limit, one).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(Attempt::Proof(Failure::Declined(Refusal::Crossing)))) => {
                return Err(CallError::Crossing);
            }
            Ok(Err(Attempt::Connect(error)))
                if !patient && error.kind() == io::ErrorKind::ConnectionRefused =>
            {
                return Err(CallError::NobodyThere(error));
            }
            Ok(Err(failed)) => failed,
            Err(_) => Attempt::Silent,
        };
        let pause = retry.pause(failed).map_err(CallError::Other)?;
        tokio::time::sleep(pause).await;
    }
}

/// How one attempt failed.
#[derive(Debug)]
enum Attempt {
    /// No connection was made.
    Connect(io::Error),
    /// The connection broke in the midst of the proof.
    Broken(io::Error),
    /// The time was up while the other end said nothing.
    Silent,
    Proof(Failure),
}

/// Decides whether and when to try again.
struct Retry {
    place: Place,
    deadline: Deadline,
    next: Duration,
    proof_patience: Duration,
    proof_failing: Option<Deadline>,
    /// When the attempt began that is under way, and why the one before it failed.
    begun: Instant,
    before: Option<String>,
}

fn declined(place: Place, refusal: Refusal) -> BootstrapError {
    BootstrapError::Declined {
        with: place.to_string(),
        reason: refusal.reason().into(),
    }
}

impl Retry {
    fn new(place: Place, proof_patience: Duration, deadline: Deadline) -> Self {
        Self {
            place,
            deadline,
            next: FIRST_PAUSE,
            proof_patience,
            proof_failing: None,
            begun: Instant::now(),
            before: None,
        }
    }

    /// How long to wait before the next attempt, or why there is none.
    fn pause(&mut self, failed: Attempt) -> Result<Duration, BootstrapError> {
        let hint = match failed {
            Attempt::Proof(Failure::Declined(refusal)) => {
                return Err(declined(self.place, refusal));
            }
            Attempt::Proof(Failure::OtherVersion(theirs)) => {
                return Err(BootstrapError::Version {
                    with: self.place.to_string(),
                    theirs,
                    ours: VERSION,
                });
            }
            Attempt::Proof(Failure::ProofRefused | Failure::ProofMissing) => {
                let patience = *self
                    .proof_failing
                    .get_or_insert_with(|| Deadline::after(self.proof_patience));
                if patience.expired() {
                    return Err(BootstrapError::ProofRefused {
                        with: self.place.to_string(),
                    });
                }
                "the proof of the shared secret failed".to_owned()
            }
            Attempt::Proof(Failure::NotAnAcceptor) => {
                "something else listens there; check the address".to_owned()
            }
            Attempt::Connect(error) => {
                // Whoever refused the proof is not there any more.
                self.proof_failing = None;
                self.place.hint(&error)
            }
            Attempt::Broken(error) => format!("it hung up before the proof: {error}"),
            Attempt::Silent => match self.before.take() {
                Some(before) if self.begun.elapsed() < TELLING => before,
                _ => "it accepted the connection and said nothing".to_owned(),
            },
        };
        let left = self.deadline.remaining();
        if left.is_zero() && self.proof_failing.is_some() {
            return Err(BootstrapError::ProofRefused {
                with: self.place.to_string(),
            });
        }
        if left.is_zero() {
            return Err(BootstrapError::LinkTimeout {
                with: format!("to {}", self.place),
                waited: self.deadline.budget(),
                hint,
            });
        }
        self.before = Some(hint);
        let pause = self.next.min(left);
        self.begun = Instant::now() + pause;
        self.next = (self.next * 2).min(LONGEST_PAUSE);
        Ok(pause)
    }
}

async fn attempt_async(
    address: SocketAddr,
    mut connector: Connector,
) -> Result<TcpStream, Attempt> {
    let mut stream = TcpStream::connect(address)
        .await
        .map_err(Attempt::Connect)?;
    stream.set_nodelay(true).map_err(Attempt::Broken)?;
    stream
        .write_all(connector.hello())
        .await
        .map_err(Attempt::Broken)?;
    let mut challenge = [0; CHALLENGE];
    stream
        .read_exact(&mut challenge)
        .await
        .map_err(Attempt::Broken)?;
    let proof = connector.answer(&challenge).map_err(Attempt::Proof)?;
    stream.write_all(&proof).await.map_err(Attempt::Broken)?;
    let mut verdict = [0; VERDICT];
    stream
        .read_exact(&mut verdict)
        .await
        .map_err(Attempt::Broken)?;
    connector.conclude(&verdict).map_err(Attempt::Proof)?;
    Ok(stream)
}

fn attempt<S: Blocking>(
    open: impl Fn(Duration) -> io::Result<S>,
    mut connector: Connector,
    deadline: Deadline,
    wanted: Wanted<'_>,
) -> Result<S, Attempt> {
    // A zero timeout is an error of its own; the last attempt gets a moment.
    let left = || deadline.remaining().max(Duration::from_millis(1));
    let mut stream = open(left().min(ONE_CALL)).map_err(Attempt::Connect)?;
    let broken = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Attempt::Silent,
        _ => Attempt::Broken(error),
    };
    stream.send_at_once().map_err(broken)?;
    stream.set_timeouts(Some(left())).map_err(broken)?;
    stream.write_all(connector.hello()).map_err(broken)?;
    let mut challenge = [0; CHALLENGE];
    read_by(&mut stream, &mut challenge, deadline, wanted).map_err(broken)?;
    let proof = connector.answer(&challenge).map_err(Attempt::Proof)?;
    stream.write_all(&proof).map_err(broken)?;
    // From here on the other end may have taken the connection, once and for all.
    let mut verdict = [0; VERDICT];
    read_by(&mut stream, &mut verdict, deadline, wanted).map_err(broken)?;
    connector.conclude(&verdict).map_err(Attempt::Proof)?;
    stream.set_timeouts(None).map_err(broken)?;
    Ok(stream)
}

/// Fills `buffer` by the deadline, however slowly the other end drips, as long as
/// it is wanted.
fn read_by<S: Blocking>(
    stream: &mut S,
    buffer: &mut [u8],
    deadline: Deadline,
    wanted: Wanted<'_>,
) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        let left = deadline.remaining();
        if left.is_zero() || !wanted() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_timeouts(Some(left.min(LOOK_EVERY)))?;
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => filled += n,
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted
                | io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut => {}
                _ => return Err(error),
            },
        }
    }
    Ok(())
}
