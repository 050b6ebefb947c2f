// SPDX-License-Identifier: MIT
//! How the stream of a connection comes to be: one end dials, the other accepts, both prove that
//! they have the job's key and each other's records.

use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use mscclpp_bootstrap::link::{self, Acceptor, Expected, LinkId, LinkKey, UnixAddress};
use mscclpp_bootstrap::{BootstrapError, Deadline, JobKey};

use crate::endpoint::{Endpoint, EndpointRecord};
use crate::error::{Error, Result};

/// How long to dial before looking whether the connection is still wanted.
const DIAL: Duration = Duration::from_millis(500);
/// The same for waiting to be dialled.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Whether the stream is not wanted any more.
type GivenUp<'a> = &'a dyn Fn() -> bool;

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
                accept(&expected, deadline, given_up)
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
        let attempt = move |deadline| link::connect(address, id, &key, deadline);
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
                accept(&expected, deadline, given_up)
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
        let attempt = move |deadline| link::connect_unix(address, id, &key, deadline);
        Self {
            wait: Box::new(move |given_up| dial(attempt, address, deadline, rank, given_up)),
            cancel: Box::new(|| {}),
        }
    }
}

/// Waits for the peer's call.
fn accept<S>(
    expected: &Expected<S>,
    deadline: Deadline,
    given_up: GivenUp<'_>,
) -> Result<S, BootstrapError> {
    loop {
        match expected.accept(deadline.at_most(LOOK_EVERY)) {
            Err(BootstrapError::LinkTimeout { .. }) if !deadline.expired() && !given_up() => {}
            // With the whole time in the error.
            Err(BootstrapError::LinkTimeout { .. }) if deadline.expired() => {
                return expected.accept(deadline);
            }
            ended => return ended,
        }
    }
}

/// Dials until the peer expects us: its call comes when it comes.
fn dial<S>(
    attempt: impl Fn(Deadline) -> Result<S, BootstrapError>,
    address: impl fmt::Display,
    deadline: Deadline,
    rank: Option<usize>,
    given_up: GivenUp<'_>,
) -> Result<S> {
    loop {
        match attempt(deadline.at_most(DIAL)) {
            Ok(stream) => return Ok(stream),
            Err(BootstrapError::LinkTimeout { .. } | BootstrapError::ProofRefused { .. })
                if !deadline.expired() && !given_up() => {}
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
