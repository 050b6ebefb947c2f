// SPDX-License-Identifier: MIT
//! How the stream of a connection comes to be: one end dials, the other accepts, both prove that
//! they have the job's key and each other's records.

use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use mscclpp_bootstrap::link::{self, Acceptor, LinkId, LinkKey, UnixAddress};
use mscclpp_bootstrap::{BootstrapError, Deadline, JobKey};

use crate::endpoint::{Endpoint, EndpointRecord};
use crate::error::{Error, Result};

/// Whether the stream is not wanted any more.
type GivenUp<'a> = &'a dyn Fn() -> bool;
/// Whether it is.
type Wanted<'a> = &'a dyn Fn() -> bool;

/// Waits for the stream.
pub(crate) type Wait<S> = Box<dyn FnOnce(GivenUp<'_>) -> Result<S> + Send>;

/// A stream to come.
pub(crate) struct Arrival<S = TcpStream> {
    /// Waits for it; runs on a thread of the connection.
    pub(crate) wait: Wait<S>,
    /// Ends the wait; may be called from any thread, at any time.
    pub(crate) cancel: Box<dyn Fn() + Send + Sync>,
}

impl Arrival {
    /// The stream between two endpoints. The one with the smaller nonce accepts, at the port of its
    /// context, under its nonce as the id and a key that depends on the job's key, the purpose and
    /// both nonces.
    pub(crate) fn of(
        local: &Endpoint,
        remote: &EndpointRecord,
        job_key: Option<&JobKey>,
        purpose: &str,
        deadline: Deadline,
    ) -> Result<Self> {
        if local.nonce == remote.nonce {
            return Err(Error::Record {
                what: "endpoint",
                detail: "it has this endpoint's number and is not this endpoint's".into(),
            });
        }
        let accepts = local.nonce < remote.nonce;
        let (first, second) = if accepts {
            (local.nonce, remote.nonce)
        } else {
            (remote.nonce, local.nonce)
        };
        let id = LinkId::from_bytes(first);
        let context = [first, second].concat();
        let key = LinkKey::derive(job_key, purpose, &context);
        let peer = (remote.rank(), remote.address);
        Ok(if accepts {
            Self::accepting(Arc::clone(&local.acceptor), id, key, peer, deadline)
        } else {
            Self::dialling(id, key, peer, deadline)
        })
    }

    /// The stream that the peer makes to this end's port.
    pub(crate) fn accepting(
        acceptor: Arc<Acceptor>,
        id: LinkId,
        key: LinkKey,
        (rank, address): (Option<usize>, SocketAddr),
        deadline: Deadline,
    ) -> Self {
        let expected = acceptor.expect(id, key.clone());
        Self {
            wait: Box::new(move |given_up| {
                let operation =
                    || format!("waiting for the connection of the endpoint at {address}");
                (expected.accept_while(deadline, &|| !given_up()))
                    .map_err(|error| failed(operation(), rank, error))
            }),
            // An expectation of the same id takes the place of the first and ends it.
            cancel: Box::new(move || drop(acceptor.expect(id, key.clone()))),
        }
    }

    /// The stream that this end makes to the peer's port.
    pub(crate) fn dialling(
        id: LinkId,
        key: LinkKey,
        (rank, address): (Option<usize>, SocketAddr),
        deadline: Deadline,
    ) -> Self {
        let attempt =
            move |wanted: Wanted<'_>| link::connect_while(address, id, &key, deadline, wanted);
        Self {
            wait: Box::new(move |given_up| dial(attempt, address, deadline, rank, given_up)),
            cancel: Box::new(|| {}),
        }
    }
}

impl Arrival<UnixStream> {
    /// As [`accepting`](Arrival::accepting), from a process of this host.
    pub(crate) fn accepting_unix(
        acceptor: Arc<Acceptor>,
        id: LinkId,
        key: LinkKey,
        rank: Option<usize>,
        deadline: Deadline,
    ) -> Result<Self> {
        let operation = || "waiting for a connection of a process of this host".to_owned();
        let expected = (acceptor.expect_unix(id, key.clone()))
            .map_err(|error| failed(operation(), rank, error))?;
        Ok(Self {
            wait: Box::new(move |given_up| {
                (expected.accept_while(deadline, &|| !given_up()))
                    .map_err(|error| failed(operation(), rank, error))
            }),
            cancel: Box::new(move || drop(acceptor.expect_unix(id, key.clone()))),
        })
    }

    /// As [`dialling`](Arrival::dialling), to a process of this host.
    pub(crate) fn dialling_unix(
        id: LinkId,
        key: LinkKey,
        (rank, address): (Option<usize>, UnixAddress),
        deadline: Deadline,
    ) -> Self {
        let attempt =
            move |wanted: Wanted<'_>| link::connect_unix_while(address, id, &key, deadline, wanted);
        Self {
            wait: Box::new(move |given_up| dial(attempt, address, deadline, rank, given_up)),
            cancel: Box::new(|| {}),
        }
    }
}

/// Dials until the peer expects us: its call comes when it comes.
fn dial<S>(
    attempt: impl Fn(Wanted<'_>) -> Result<S, BootstrapError>,
    address: impl fmt::Display,
    deadline: Deadline,
    rank: Option<usize>,
    given_up: GivenUp<'_>,
) -> Result<S> {
    loop {
        match attempt(&|| !given_up()) {
            Ok(stream) => return Ok(stream),
            Err(BootstrapError::ProofRefused { .. }) if !deadline.expired() && !given_up() => {}
            // To strangers, an end that is not expected and a key that does not fit look alike.
            Err(BootstrapError::ProofRefused { .. }) => {
                return Err(Error::Timeout {
                    operation: format!(
                        "connecting to {address}, where the peer has not connected its endpoint \
                         to this one or has another job's key"
                    ),
                    rank,
                    waited: deadline.budget(),
                });
            }
            Err(error) => return Err(failed(format!("connecting to {address}"), rank, error)),
        }
    }
}

fn failed(operation: String, rank: Option<usize>, error: BootstrapError) -> Error {
    match rank {
        Some(rank) => Error::bootstrap(format!("{operation} (rank {rank})"), rank, error),
        None => Error::Bootstrap {
            operation,
            source: Arc::new(error),
        },
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Passes bytes on, both ways, to `address`; what it says after its first bytes comes late.
    fn slow_way_to(address: SocketAddr, late: Duration) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        thread::spawn(move || {
            while let Ok((mut caller, _)) = listener.accept() {
                let mut there = TcpStream::connect(address).unwrap();
                let (mut from, mut to) = (caller.try_clone().unwrap(), there.try_clone().unwrap());
                thread::spawn(move || std::io::copy(&mut from, &mut to));
                thread::spawn(move || {
                    let mut bytes = [0; 256];
                    for pause in [Duration::ZERO, late] {
                        let Ok(count @ 1..) = there.read(&mut bytes) else {
                            return;
                        };
                        thread::sleep(pause);
                        if caller.write_all(&bytes[..count]).is_err() {
                            return;
                        }
                    }
                    let _ = std::io::copy(&mut there, &mut caller);
                });
            }
        });
        at
    }

    #[test]
    fn a_peer_that_has_taken_the_connection_is_not_left_because_it_says_so_late() {
        let acceptor = Acceptor::bind(Ipv4Addr::LOCALHOST.into()).unwrap();
        let id = LinkId::from_bytes([7; 16]);
        let key = LinkKey::derive(None, "a test", b"");
        let expected = acceptor.expect(id, key.clone());
        let address = slow_way_to(acceptor.local_addr(), Duration::from_millis(750));
        let deadline = Deadline::after(Duration::from_secs(5));
        let Arrival { wait, .. } = Arrival::dialling(id, key, (Some(1), address), deadline);
        let mut here = wait(&|| false).unwrap();
        let mut there = expected.accept(deadline).unwrap();
        there.write_all(b"word").unwrap();
        let mut word = [0; 4];
        here.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"word");
    }

    #[test]
    fn dialling_ends_soon_when_it_is_given_up() {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let nobody = {
            let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            gone.local_addr().unwrap()
        };
        for address in [silent.local_addr().unwrap(), nobody] {
            let (id, key) = (
                LinkId::from_bytes([7; 16]),
                LinkKey::derive(None, "a test", b""),
            );
            let begun = std::time::Instant::now();
            let deadline = Deadline::after(Duration::from_secs(30));
            let Arrival { wait, .. } = Arrival::dialling(id, key, (Some(1), address), deadline);
            let error = wait(&|| begun.elapsed() > Duration::from_millis(100)).unwrap_err();
            assert!(begun.elapsed() < Duration::from_secs(5), "{error}");
        }
    }
}
