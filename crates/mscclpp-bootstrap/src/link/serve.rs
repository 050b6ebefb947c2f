// SPDX-License-Identifier: MIT
//! A listener's door: connections prove themselves, one task each, or go.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::guests::Guests;
use super::handshake::{Acceptance, HELLO, PROOF, VERSION};
use super::registry::{Admission, Registry};
use super::wire::{Listener, Origin, Wire};

/// How many connections may be in the midst of proving themselves. A proof takes
/// two round trips, so this is far more than an honest job needs at once.
const GUESTS: usize = 256;
/// After an accept that failed: descriptors may be short for a while.
const RECOVERS: Duration = Duration::from_millis(10);

/// Accepts for as long as the task lives. A connection has `patience` to prove itself: ranks need
/// milliseconds, on a starved machine perhaps seconds.
pub(crate) async fn serve<L: Listener>(
    listener: L,
    registry: Arc<Registry<L::Stream>>,
    patience: Duration,
) {
    let mut guests = Guests::new(GUESTS);
    let mut tasks: JoinSet<u64> = JoinSet::new();
    loop {
        tokio::select! {
            arrived = listener.next() => match arrived {
                Ok((stream, from)) => {
                    let number = guests.next_number();
                    let promising = Arc::new(AtomicBool::new(false));
                    let task = receive(
                        stream,
                        from,
                        Arc::clone(&registry),
                        Arc::clone(&promising),
                        patience,
                    );
                    let handle = tasks.spawn(async move {
                        task.await;
                        number
                    });
                    if let Some(leaving) = guests.enter(from.ip(), promising, handle) {
                        leaving.handle.abort();
                        registry.count_stranger(from, "too many unproven connections");
                    }
                }
                Err(error) => recover(&error, &mut guests).await,
            },
            Some(done) = tasks.join_next() => {
                if let Ok(number) = done {
                    guests.leave(number);
                }
            }
        }
    }
}

/// After a failed accept: makes room if descriptors are short, and never spins.
async fn recover(error: &io::Error, guests: &mut Guests<tokio::task::AbortHandle>) {
    if error.kind() == io::ErrorKind::ConnectionAborted {
        return;
    }
    tracing::warn!(%error, "accepting a connection failed");
    if let Some(leaving) = guests.evict() {
        leaving.handle.abort();
    }
    tokio::time::sleep(RECOVERS).await;
}

/// One connection, from its first byte to its delivery.
async fn receive<S: Wire>(
    mut stream: S,
    from: Origin,
    registry: Arc<Registry<S>>,
    promising: Arc<AtomicBool>,
    patience: Duration,
) {
    let proof = prove(&mut stream, from, &registry, &promising);
    match tokio::time::timeout(patience, proof).await {
        Ok(Ok(Some(admission))) => admission.deliver(stream),
        Ok(Ok(None)) => {}
        Ok(Err(_)) => registry.count_stranger(from, "broke off before its proof"),
        Err(_) => registry.count_stranger(from, "took too long to prove itself"),
    }
}

async fn prove<S: Wire>(
    stream: &mut S,
    from: Origin,
    registry: &Registry<S>,
    promising: &AtomicBool,
) -> io::Result<Option<Box<dyn Admission<S>>>> {
    stream.send_at_once()?;
    let mut raw = [0; HELLO];
    stream.read_exact(&mut raw).await?;
    let hello = match Acceptance::read(&raw) {
        Some(Ok(hello)) => hello,
        Some(Err(theirs)) => {
            tracing::warn!(%from, theirs, ours = VERSION, "a connection speaks another version");
            stream.write_all(&Acceptance::version_only()).await?;
            return Ok(None);
        }
        None => {
            registry.count_stranger(from, "does not speak this protocol");
            return Ok(None);
        }
    };
    let entry = registry.find(&hello.id);
    promising.store(entry.is_some(), Ordering::Relaxed);
    let acceptance = Acceptance::new(hello).map_err(io::Error::other)?;
    stream.write_all(acceptance.challenge()).await?;
    let mut proof = [0; PROOF];
    stream.read_exact(&mut proof).await?;
    // An id that is not known is treated like a wrong proof, at the same point, but in the log: a
    // peer may come before it is expected, and comes again.
    let known = entry.is_some();
    let Some(entry) = entry.filter(|entry| acceptance.proven(&entry.key, &proof)) else {
        if known {
            registry.count_failed_proof(from);
        } else {
            registry.count_unexpected(from);
        }
        stream.write_all(&Acceptance::bad_proof()).await?;
        return Ok(None);
    };
    match entry.service.admit(hello.claims) {
        Ok(admission) => {
            let verdict = acceptance.verdict(&entry.key, Ok(()));
            stream.write_all(&verdict).await?;
            Ok(Some(admission))
        }
        Err(refusal) => {
            let verdict = acceptance.verdict(&entry.key, Err(refusal));
            stream.write_all(&verdict).await?;
            Ok(None)
        }
    }
}
