// SPDX-License-Identifier: MIT
//! Hands descriptors of a context's memory to processes of the same host.
//!
//! Whoever asks has proven to have the job's key, and names a registration by its key. One question
//! a connection, one connection at a time.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mscclpp_bootstrap::link::{self, Acceptor, LinkId, LinkKey, UnixAddress};
use mscclpp_bootstrap::{BootstrapError, Deadline, Deadlines, JobKey};

use super::descriptor;
use crate::ending::join_within;
use crate::error::{Error, Result};

/// What the links are made for.
const PURPOSE: &str = "mscclpp-port memory export";
/// Longest time without an asker after which the server expects one anew.
const EXPECT: Duration = Duration::from_secs(3600);
/// How long to try before looking whether there is time left.
const ATTEMPT: Duration = Duration::from_secs(1);
/// Longest reason.
const MAX_REASON: usize = 512;

/// A descriptor, or why there is none.
const GRANTED: u8 = 0;
const REFUSED: u8 = 1;

/// The server of a context. Ends when dropped, or is left behind after
/// [`teardown`](Deadlines::teardown): what it is asked for may hang in the driver.
pub(super) struct ExportServer {
    acceptor: Arc<Acceptor>,
    address: UnixAddress,
    id: LinkId,
    key: LinkKey,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    ends_within: Duration,
}

pub(super) fn link_key(job_key: Option<&JobKey>, id: LinkId) -> LinkKey {
    LinkKey::derive(job_key, PURPOSE, &id.to_bytes())
}

impl ExportServer {
    /// Serves what `export` gives out for a key. An asker may hold up the others for
    /// [`ipc_answer`](Deadlines::ipc_answer).
    pub(super) fn start(
        acceptor: Arc<Acceptor>,
        job_key: Option<&JobKey>,
        deadlines: &Deadlines,
        export: impl Fn(u64) -> Result<OwnedFd, String> + Send + 'static,
    ) -> Result<Self> {
        let failed = |source| Error::Bootstrap {
            operation: "open a socket for processes of this host".into(),
            source: Arc::new(source),
        };
        let address = acceptor.unix_address().map_err(failed)?;
        let id = LinkId::random().map_err(failed)?;
        let key = link_key(job_key, id);
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, stopped, their_key) = (Arc::clone(&acceptor), Arc::clone(&stop), key.clone());
        let patience = deadlines.ipc_answer;
        let serve = move || {
            while !stopped.load(SeqCst) {
                let Ok(expected) = theirs.expect_unix(id, their_key.clone()) else {
                    return;
                };
                match expected.accept(Deadline::after(EXPECT)) {
                    Ok(stream) => answer(&stream, patience, &export),
                    // Nobody came, or the server ends.
                    Err(error) => tracing::trace!(%error, "expecting askers anew"),
                }
            }
        };
        let thread = thread::Builder::new()
            .name("mscclpp-export".into())
            .spawn(serve)
            .map_err(|error| Error::io("start the thread that exports memory", error))?;
        Ok(Self {
            acceptor,
            address,
            id,
            key,
            stop,
            thread: Some(thread),
            ends_within: deadlines.teardown,
        })
    }

    /// Where to ask, and by which id.
    pub(super) fn place(&self) -> ([u8; 16], [u8; 16]) {
        (self.address.to_bytes(), self.id.to_bytes())
    }
}

impl Drop for ExportServer {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let Some(thread) = self.thread.take() else {
            return;
        };
        // Memory that it looks at for an asker may be the last to own it.
        if thread.thread().id() == thread::current().id() {
            return;
        }
        let deadline = Deadline::after(self.ends_within);
        // An expectation of the same id ends the one that is waited for, which may be about to be
        // made.
        while !thread.is_finished() && !deadline.expired() {
            drop(self.acceptor.expect_unix(self.id, self.key.clone()));
            thread::sleep(Duration::from_millis(1));
        }
        join_within(thread, deadline, None);
    }
}

fn answer(
    stream: &UnixStream,
    patience: Duration,
    export: impl Fn(u64) -> Result<OwnedFd, String>,
) {
    let answered = (|| {
        stream.set_write_timeout(Some(patience))?;
        match export(question(stream, Deadline::after(patience))?) {
            Ok(descriptor) => descriptor::send(stream, &[GRANTED], Some(descriptor.as_fd())),
            Err(reason) => {
                let reason = &reason[..reason.floor_char_boundary(MAX_REASON)];
                let answer = [&[REFUSED], reason.as_bytes()].concat();
                descriptor::send(stream, &answer, None)
            }
        }
    })();
    if let Err(error) = answered {
        tracing::warn!(%error, ?patience, "a process that asked for memory was not answered");
    }
}

/// The key that is asked for, however slowly.
fn question(mut stream: &UnixStream, deadline: Deadline) -> io::Result<u64> {
    let mut key = [0; 8];
    let mut rest = &mut key[..];
    while !rest.is_empty() {
        let left = deadline.remaining();
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(rest) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => rest = &mut rest[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(u64::from_le_bytes(key))
}

/// Asks the server at a place for the descriptor of a registration.
pub(super) fn ask(
    (socket, id): ([u8; 16], [u8; 16]),
    job_key: Option<&JobKey>,
    key: u64,
    rank: Option<usize>,
    deadline: Deadline,
) -> Result<OwnedFd> {
    let id = LinkId::from_bytes(id);
    let link_key = link_key(job_key, id);
    let address = UnixAddress::from_bytes(socket);
    let operation = || match rank {
        Some(rank) => format!("asking rank {rank} for its memory"),
        None => "asking a peer for its memory".into(),
    };
    // As any wait that was too short: whoever asks again waits again.
    let late = || Error::Timeout {
        operation: operation(),
        rank,
        waited: deadline.budget(),
    };
    let stream = loop {
        let error = match link::connect_unix(address, id, &link_key, deadline.at_most(ATTEMPT)) {
            Ok(stream) => break stream,
            Err(error) => error,
        };
        // It may be answering somebody else.
        let again = matches!(
            error,
            BootstrapError::LinkTimeout { .. }
                | BootstrapError::ProofRefused { .. }
                | BootstrapError::Declined { .. }
        );
        if !again {
            return Err(Error::Bootstrap {
                operation: operation(),
                source: Arc::new(error),
            });
        }
        if deadline.expired() {
            return Err(late());
        }
        thread::sleep(Duration::from_millis(1));
    };
    let mut answer = [0; 1 + MAX_REASON];
    let mut exchange = || {
        let left = Some(deadline.remaining().max(Duration::from_millis(1)));
        stream.set_write_timeout(left)?;
        stream.set_read_timeout(left)?;
        (&mut &stream).write_all(&key.to_le_bytes())?;
        descriptor::receive(&stream, &mut answer)
    };
    let (len, descriptor) = exchange().map_err(|error| match deadline.expired() {
        true => late(),
        false => Error::io(operation(), error),
    })?;
    match (answer[0], descriptor) {
        (GRANTED, Some(descriptor)) => Ok(descriptor),
        (REFUSED, _) => Err(Error::Record {
            what: "memory",
            detail: format!(
                "its owner does not share it: {}",
                String::from_utf8_lossy(&answer[1..len])
            ),
        }),
        _ => Err(Error::Record {
            what: "memory",
            detail: "its owner answered without a descriptor".into(),
        }),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_does_not_answer_in_time_is_a_timeout_that_names_it() {
        let nobody = ([1; 16], [2; 16]);
        let deadline = Deadline::after(Duration::from_millis(20));
        let error = ask(nobody, None, 7, Some(3), deadline).unwrap_err();
        assert!(
            matches!(error, Error::Timeout { rank: Some(3), .. }),
            "{error}"
        );
    }
}
