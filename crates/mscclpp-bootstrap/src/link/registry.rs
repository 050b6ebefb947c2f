// SPDX-License-Identifier: MIT
//! What an acceptor expects.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::TcpStream;

use super::handshake::{Claims, Refusal};
use super::wire::Origin;
use super::{LinkId, LinkKey};

/// Takes proven connections of one kind.
pub(crate) trait Service<S = TcpStream>: Send + Sync {
    /// Decides about a connector that has proven itself, before it is told. The
    /// admission is used up by the connection, or dropped if that breaks first.
    fn admit(&self, claims: Claims) -> Result<Box<dyn Admission<S>>, Refusal>;
}

/// A place that is kept for a connection that is about to be complete.
pub(crate) trait Admission<S = TcpStream>: Send {
    fn deliver(self: Box<Self>, stream: S);
}

pub(crate) struct Entry<S> {
    pub(crate) key: LinkKey,
    pub(crate) service: Arc<dyn Service<S>>,
    serial: u64,
}

impl<S> Clone for Entry<S> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            service: Arc::clone(&self.service),
            serial: self.serial,
        }
    }
}

/// The link ids that a listener knows, and what it has seen of strangers.
pub(crate) struct Registry<S = TcpStream> {
    entries: Mutex<HashMap<LinkId, Entry<S>>>,
    serial: AtomicU64,
    failed_proofs: AtomicU64,
    unexpected: AtomicU64,
    strangers: AtomicU64,
}

impl<S> Default for Registry<S> {
    fn default() -> Self {
        Self {
            entries: Mutex::default(),
            serial: AtomicU64::new(0),
            failed_proofs: AtomicU64::new(0),
            unexpected: AtomicU64::new(0),
            strangers: AtomicU64::new(0),
        }
    }
}

impl<S> Registry<S> {
    fn lock(&self) -> MutexGuard<'_, HashMap<LinkId, Entry<S>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Expects connections with `id`; an earlier expectation of it ends.
    pub(crate) fn register(&self, id: LinkId, key: LinkKey, service: Arc<dyn Service<S>>) -> u64 {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let entry = Entry {
            key,
            service,
            serial,
        };
        self.lock().insert(id, entry);
        serial
    }

    /// Ends an expectation, unless a newer one has taken its id.
    pub(crate) fn remove(&self, id: LinkId, serial: u64) {
        let mut entries = self.lock();
        if entries.get(&id).is_some_and(|e| e.serial == serial) {
            entries.remove(&id);
        }
    }

    /// Ends all expectations.
    pub(crate) fn clear(&self) {
        let ended = std::mem::take(&mut *self.lock());
        drop(ended);
    }

    pub(crate) fn find(&self, id: &LinkId) -> Option<Entry<S>> {
        self.lock().get(id).cloned()
    }

    /// Counts a connection that failed its proof. The operator is told of the
    /// first and then ever more seldom: a flood must not fill the log.
    pub(crate) fn count_failed_proof(&self, from: Origin) {
        let n = self.failed_proofs.fetch_add(1, Ordering::Relaxed) + 1;
        if n.is_power_of_two() {
            tracing::warn!(
                %from, failed_proofs = n,
                "a connection failed its proof and was dropped; if it is one of the ranks, it has another secret"
            );
        }
    }

    /// Counts a connection that wants something that is not expected: a peer that
    /// comes too early and will come again, or one with another secret, from which
    /// other ids follow.
    pub(crate) fn count_unexpected(&self, from: Origin) {
        let n = self.unexpected.fetch_add(1, Ordering::Relaxed) + 1;
        if n.is_power_of_two() {
            tracing::debug!(%from, unexpected = n, "a connection wants what is not expected, or not yet");
        }
    }

    /// How many connections could not prove themselves, for whatever reason.
    pub(crate) fn unproven(&self) -> u64 {
        self.failed_proofs.load(Ordering::Relaxed) + self.unexpected.load(Ordering::Relaxed)
    }

    /// Counts a connection that did not even try to prove itself.
    pub(crate) fn count_stranger(&self, from: Origin, what: &str) {
        let n = self.strangers.fetch_add(1, Ordering::Relaxed) + 1;
        if n.is_power_of_two() {
            tracing::debug!(%from, strangers = n, what, "dropped a stranger");
        }
    }
}
