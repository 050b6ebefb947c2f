// SPDX-License-Identifier: MIT
//! Counts what a rank sends and receives.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Bootstrap, BootstrapError, Deadline, Tag, forward_bootstrap};

/// How many messages, and bytes of their bodies, went between two ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages sent.
    pub sent_messages: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Messages received.
    pub received_messages: u64,
    /// Their bytes.
    pub received_bytes: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.sent_messages += other.sent_messages;
        self.sent_bytes += other.sent_bytes;
        self.received_messages += other.received_messages;
        self.received_bytes += other.received_bytes;
    }
}

/// A bootstrap that passes everything on to another one and counts, by peer and
/// tag, the messages that were sent or received. Collectives are counted too, where
/// they are those that the trait provides: they run on this object.
///
/// For tests and measurements of what a setup costs; counting takes a lock a
/// message.
pub struct Recording {
    inner: Arc<dyn Bootstrap>,
    streams: Mutex<BTreeMap<(usize, Tag), Traffic>>,
}

impl Recording {
    /// Counts what goes through `inner` by way of this object.
    pub fn new(inner: Arc<dyn Bootstrap>) -> Self {
        Self {
            inner,
            streams: Mutex::default(),
        }
    }

    /// What went to and from each peer with each tag, in order; a stream that no
    /// message took is not in it.
    #[must_use]
    pub fn by_stream(&self) -> Vec<(usize, Tag, Traffic)> {
        let streams = self.lock();
        (streams
            .iter()
            .map(|((peer, tag), traffic)| (*peer, *tag, *traffic)))
        .collect()
    }

    /// What went to and from each peer with all tags, in order of rank.
    #[must_use]
    pub fn by_peer(&self) -> BTreeMap<usize, Traffic> {
        let mut peers = BTreeMap::new();
        for (peer, _, traffic) in self.by_stream() {
            *peers.entry(peer).or_insert_with(Traffic::default) += traffic;
        }
        peers
    }

    /// What went to and from all peers together.
    #[must_use]
    pub fn total(&self) -> Traffic {
        let mut total = Traffic::default();
        for (_, _, traffic) in self.by_stream() {
            total += traffic;
        }
        total
    }

    /// Counts from zero again.
    pub fn reset(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(usize, Tag), Traffic>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, peer: usize, tag: Tag, traffic: Traffic) {
        *self.lock().entry((peer, tag)).or_default() += traffic;
    }

    fn received(
        &self,
        peer: usize,
        tag: Tag,
        received: Result<Vec<u8>, BootstrapError>,
    ) -> Result<Vec<u8>, BootstrapError> {
        let data = received?;
        let traffic = Traffic {
            received_messages: 1,
            received_bytes: data.len() as u64,
            ..Traffic::default()
        };
        self.count(peer, tag, traffic);
        Ok(data)
    }
}

impl Bootstrap for Recording {
    forward_bootstrap!(inner);

    fn send(
        &self,
        peer: usize,
        tag: Tag,
        data: &[u8],
        deadline: Deadline,
    ) -> Result<(), BootstrapError> {
        self.inner.send(peer, tag, data, deadline)?;
        let traffic = Traffic {
            sent_messages: 1,
            sent_bytes: data.len() as u64,
            ..Traffic::default()
        };
        self.count(peer, tag, traffic);
        Ok(())
    }

    fn recv(&self, peer: usize, tag: Tag, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        self.received(peer, tag, self.inner.recv(peer, tag, deadline))
    }

    fn recv_in_collective(
        &self,
        peer: usize,
        tag: Tag,
        members: Option<&[usize]>,
        deadline: Deadline,
    ) -> Result<Vec<u8>, BootstrapError> {
        let received = self.inner.recv_in_collective(peer, tag, members, deadline);
        self.received(peer, tag, received)
    }
}
