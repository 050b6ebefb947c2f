// SPDX-License-Identifier: MIT
//! Who is to blame when a connection breaks without a goodbye.
//!
//! Mostly the process at its other end has died; then nobody listens at its address
//! any more, which is seen at once. But a connection can also break between two
//! ranks that live, and each must not say of the other that it died. Then the one
//! that lost more connections is the one with which something is wrong: it takes
//! itself out. Where both lost one, the lower rank speaks first and the higher is
//! out: it asks the lower one whether it still lets it in.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use super::node::{Node, Spread};
use super::peers;
use crate::Deadline;
use crate::failure::{FailureKind, PeerFailure};
use crate::link::{CallError, Refusal, connect_async};

/// How long the look whether somebody listens may take.
const LOOK: Duration = Duration::from_millis(300);
/// A process that ends may close its listener so much later than its connections.
const ENDS: Duration = Duration::from_millis(100);
/// How long others have for the same look, before all is known here that there is.
const OTHERS: Duration = Duration::from_millis(250);
/// How much longer the higher rank waits for the lower to speak.
const HIGHER: Duration = Duration::from_millis(600);
/// How often it asks meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// Connections that broke within this broke for one reason.
const TOGETHER: Duration = Duration::from_secs(1);

/// Finds out why the connection to a peer broke, and says so.
pub(super) async fn suspect(node: &Node, rank: usize, cause: String) {
    let died = || {
        let cause = format!("its connection to rank {} broke: {cause}", node.rank);
        PeerFailure::new(rank, FailureKind::Died, cause)
    };
    let mut listens = look_for(node, rank).await;
    if listens != Listens::No {
        tokio::time::sleep(ENDS).await;
        listens = look_for(node, rank).await;
    }
    if listens == Listens::Yes {
        node.note_broken(rank);
        tokio::time::sleep(OTHERS).await;
        count_losses(node, rank).await;
        if node.rank > rank {
            hear_out(node, rank).await;
            count_losses(node, rank).await;
        }
        node.judge(rank);
    }
    node.gone(died(), Spread::Everybody);
}

/// Takes this rank out if it lost others beside the one that it suspects.
async fn count_losses(node: &Node, suspected: usize) {
    let mut live = Vec::new();
    for rank in node.lost() {
        // A process that dies may close its listener late: it counts only while it listens.
        if look_for(node, rank).await == Listens::Yes {
            live.push(rank);
        }
    }
    let is_known = node.failures.of(suspected).is_some();
    if live.len() > 1 && !is_known && !node.leaving.load(Ordering::Acquire) {
        node.excluded(format!(
            "its connections to ranks {live:?} broke at once, and these live"
        ));
    }
}

/// Waits until a lower rank, which lives, has said which of the two is out, or is late with that.
async fn hear_out(node: &Node, rank: usize) {
    let patience = Deadline::after(HIGHER);
    let place = node.places.get().and_then(|places| places.get(rank));
    let Some(call) = place.and_then(|place| peers::call(node, rank, place.address)) else {
        return;
    };
    let open = || {
        node.failures.of(rank).is_none()
            && !node.is_excluded()
            && !node.leaving.load(Ordering::Acquire)
    };
    while open() && !patience.expired() {
        match connect_async(&call, false, patience).await {
            // It has not yet found that their connection broke, or has not decided.
            Ok(_) | Err(CallError::Crossing) => tokio::time::sleep(ASK_EVERY).await,
            Err(CallError::Other(error)) if peers::refused(&error, Refusal::Dead) => {
                peers::is_out(node, rank);
            }
            // It is out itself, ends, or says nothing.
            Err(_) => return,
        }
    }
}

/// A peer that lives although its connection to this rank broke.
pub(super) struct Broken {
    rank: usize,
    at: Instant,
    /// That it is dead is this rank's own verdict.
    judged: bool,
}

impl Broken {
    fn now(rank: usize) -> Self {
        Self {
            rank,
            at: Instant::now(),
            judged: false,
        }
    }
}

/// What a call of a rank's address found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listens {
    Yes,
    No,
    Unknown,
}

/// Whether somebody listens at a rank's address.
async fn look_for(node: &Node, rank: usize) -> Listens {
    match node.places.get().and_then(|places| places.get(rank)) {
        Some(place) => look(place.address).await,
        None => Listens::Unknown,
    }
}

/// Whether somebody listens at an address.
pub(super) async fn look(address: SocketAddr) -> Listens {
    match tokio::time::timeout(LOOK, TcpStream::connect(address)).await {
        Ok(Ok(_)) => Listens::Yes,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Listens::No,
        _ => Listens::Unknown,
    }
}

impl Node {
    fn lock_broken(&self) -> MutexGuard<'_, Vec<Broken>> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_broken(&self, rank: usize) {
        let mut broken = self.lock_broken();
        broken.retain(|broken| broken.at.elapsed() < TOGETHER);
        broken.push(Broken::now(rank));
    }

    /// The ranks whose connections broke lately and that say something against this rank: not those
    /// that died meanwhile, by what others say. That this rank itself took one for dead is no
    /// excuse: as it loses another, that may have been wrong.
    fn lost(&self) -> BTreeSet<usize> {
        (self.lock_broken().iter())
            .filter(|broken| broken.at.elapsed() < TOGETHER)
            .filter(|broken| broken.judged || self.failures.of(broken.rank).is_none())
            .map(|broken| broken.rank)
            .collect()
    }

    /// Notes that this rank is about to say that another is dead, unless that is known.
    fn judge(&self, rank: usize) {
        let mut broken = self.lock_broken();
        if self.failures.of(rank).is_none() {
            let lost = broken.iter_mut().filter(|broken| broken.rank == rank);
            lost.for_each(|broken| broken.judged = true);
        }
    }
}

#[cfg(test)]
mod tests;
