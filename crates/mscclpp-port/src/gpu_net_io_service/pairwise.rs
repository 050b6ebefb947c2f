// SPDX-License-Identifier: MIT
//! What two ranks of a service do without the others.

use std::collections::HashSet;
use std::sync::Mutex;

use mscclpp_bootstrap::Deadline;
use mscclpp_bootstrap::plan::MAX_QUEUES;

use super::demand::{self, Wanted};
use super::{GpuNetIoService, no_queue};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::sync::lock_plain as lock;

const CONNECT: &str = "connect on demand";
const REFUSE: &str = "refuse queues";
const REBUILD: &str = "rebuild queues";

/// The calls with peers.
#[derive(Default)]
pub(super) struct Pairwise {
    /// Those with queues that were made on demand.
    peers: Mutex<HashSet<usize>>,
    /// Peers and tags of calls that are under way.
    pub(super) calls: Mutex<HashSet<(usize, u32)>>,
}

/// The only call with a peer and tag, for as long as this lives.
struct OnlyCall<'a> {
    pairwise: &'a Pairwise,
    call: (usize, u32),
}

impl Pairwise {
    pub(super) fn has_queues(&self) -> bool {
        !lock(&self.peers).is_empty()
    }

    pub(super) fn has_queues_to(&self, peer: usize) -> bool {
        lock(&self.peers).contains(&peer)
    }

    /// Two calls would take each other's messages.
    fn only_call(&self, operation: &'static str, peer: usize, tag: u32) -> Result<OnlyCall<'_>> {
        let (pairwise, call) = (self, (peer, tag));
        match lock(&self.calls).insert(call) {
            true => Ok(OnlyCall { pairwise, call }),
            false => Err(Error::InvalidUsage {
                operation,
                detail: format!(
                    "another call with rank {peer} and tag {tag} is under way: take another tag, or \
                     wait for it"
                ),
            }),
        }
    }
}

impl Drop for OnlyCall<'_> {
    fn drop(&mut self) {
        lock(&self.pairwise.calls).remove(&self.call);
    }
}

impl GpuNetIoService {
    /// Makes `queues` queues, 1 to 64, with one peer, who calls this at about the same time, with the
    /// same number and tag. May be called at any time, before or after a setup, or without one; no
    /// other rank takes part, and other queues of the service stay as they are. What a call that was
    /// given up left behind is told apart. Calls with different tags are independent.
    ///
    /// The two calls do not return at the same moment. Keep the queues until the peer has its own, which
    /// the first thing that it sends or signals shows: letting go of one sooner ends the peer's call.
    ///
    /// The queues are not counted among those that [`connect`](Self::connect) selects from. Memory and
    /// semaphores are exchanged over them as usual.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] for this rank itself, one that does not exist, another number, and
    /// while another call with the same peer and tag is under way.
    /// [`Error::PeerGaveUp`] when the peer asks for another number or [rebuilds](Self::rebuild), has failed
    /// to make its queues, or [refuses](Self::refuse_on_demand); [`Error::Timeout`] when it does not answer;
    /// [`Error::PeerDown`]. Errors of making queues and of bringing them up, on both ends. Nothing is
    /// left of queues that could not be made.
    pub fn connect_on_demand(
        &self,
        peer: usize,
        queues: u32,
        tag: u32,
        deadline: Deadline,
    ) -> Result<Vec<Connection>> {
        self.check_peer(CONNECT, peer)?;
        if !(1..=MAX_QUEUES).contains(&queues) {
            return Err(Error::InvalidUsage {
                operation: CONNECT,
                detail: format!("{queues} queues were asked for: give 1 to {MAX_QUEUES}"),
            });
        }
        let _only = self.pairwise.only_call(CONNECT, peer, tag)?;
        let wanted = Wanted {
            queues,
            rebuilt: false,
        };
        let made = demand::connect(self, (peer, wanted), tag, deadline)?;
        lock(&self.pairwise.peers).insert(peer);
        Ok(made)
    }

    /// Waits until `peer` asks for queues on demand with this tag, and refuses all calls of it that
    /// have come by then: they return [`Error::PeerGaveUp`] with the reason.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] as [`connect_on_demand`](Self::connect_on_demand); [`Error::Timeout`]
    /// when it does not ask; [`Error::PeerDown`].
    pub fn refuse_on_demand(
        &self,
        peer: usize,
        tag: u32,
        reason: &str,
        deadline: Deadline,
    ) -> Result<()> {
        self.check_peer(REFUSE, peer)?;
        let _only = self.pairwise.only_call(REFUSE, peer, tag)?;
        demand::refuse(self, peer, tag, reason, deadline)
    }

    /// Makes the queues of one edge of the setup again, after one of them has failed, together with
    /// the peer, who does the same; other edges go on meanwhile. [`connect`](Self::connect) selects
    /// from the new ones then. The old ones end: whoever still uses them gets an error at once. What was
    /// being exchanged over them is begun again, with other tags.
    ///
    /// # Errors
    /// [`Error::NotSetUp`]; [`Error::NoQueue`] for a peer without queues in the plan; those of
    /// [`connect_on_demand`](Self::connect_on_demand), after which the old queues are still selected.
    pub fn rebuild(&self, peer: usize, tag: u32, deadline: Deadline) -> Result<()> {
        let ready = self.ready(REBUILD)?;
        self.check_peer(REBUILD, peer)?;
        let count = ready.plan.count(peer);
        if count == 0 {
            return Err(no_queue(peer));
        }
        let _only = self.pairwise.only_call(REBUILD, peer, tag)?;
        let wanted = Wanted {
            queues: count,
            rebuilt: true,
        };
        let made = demand::connect(self, (peer, wanted), tag, deadline)?;
        let mut replaced = Vec::new();
        let mut connections = lock(&ready.connections);
        for (index, new) in (0..count).zip(made) {
            if let Some(slot) = ready.plan.slot(peer, index)
                && let Some(place) = connections.get_mut(slot)
            {
                replaced.push(std::mem::replace(place, new));
            }
        }
        // Ending them takes a moment, in which others may select.
        drop(connections);
        for old in replaced {
            old.fail(Error::PeerFailed {
                rank: Some(peer),
                reason: "the queue was replaced by a new one".into(),
            });
        }
        Ok(())
    }
}
