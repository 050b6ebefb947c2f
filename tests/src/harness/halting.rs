// SPDX-License-Identifier: MIT
//! A bootstrap that stops its rank in the midst of a setup.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use mscclpp_bootstrap::{
    Bootstrap, BootstrapError, Deadline, Deadlines, FailureObserver, JobKey, PeerFailure, Tag,
    Turns,
};

/// Calls `halt` once, on the thread of the setup, before the rank tells another of a phase.
pub struct Halting {
    inner: Arc<dyn Bootstrap>,
    phase: &'static str,
    halt: Mutex<Option<Halt>>,
}

type Halt = Box<dyn FnOnce() + Send>;

impl Halting {
    /// The bootstrap underneath, the phase, and what stops the rank.
    pub fn new(
        inner: Arc<dyn Bootstrap>,
        phase: &'static str,
        halt: impl FnOnce() + Send + 'static,
    ) -> Self {
        Self {
            inner,
            phase,
            halt: Mutex::new(Some(Box::new(halt))),
        }
    }

    /// A gate's message has the name of its phase inside.
    fn tells_of_phase(&self, tag: Tag, data: &[u8]) -> bool {
        let phase = self.phase.as_bytes();
        let of_gate = tag.to_string().starts_with("setup");
        of_gate && data.windows(phase.len()).any(|part| part == phase)
    }
}

impl Bootstrap for Halting {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn send(
        &self,
        peer: usize,
        tag: Tag,
        data: &[u8],
        deadline: Deadline,
    ) -> Result<(), BootstrapError> {
        if self.tells_of_phase(tag, data) {
            let halt = (self.halt.lock().unwrap_or_else(PoisonError::into_inner)).take();
            if let Some(halt) = halt {
                halt();
            }
        }
        self.inner.send(peer, tag, data, deadline)
    }

    fn recv(&self, peer: usize, tag: Tag, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        self.inner.recv(peer, tag, deadline)
    }

    fn deadlines(&self) -> Deadlines {
        self.inner.deadlines()
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn local_ip(&self) -> Option<IpAddr> {
        self.inner.local_ip()
    }

    fn job_key(&self) -> Option<JobKey> {
        self.inner.job_key()
    }

    fn observe_failures(&self, observer: Weak<dyn FailureObserver>) {
        self.inner.observe_failures(observer);
    }

    fn known_failure(&self) -> Option<PeerFailure> {
        self.inner.known_failure()
    }

    fn failure_of(&self, rank: usize) -> Option<PeerFailure> {
        self.inner.failure_of(rank)
    }

    fn recv_in_collective(
        &self,
        peer: usize,
        tag: Tag,
        members: Option<&[usize]>,
        deadline: Deadline,
    ) -> Result<Vec<u8>, BootstrapError> {
        (self.inner).recv_in_collective(peer, tag, members, deadline)
    }

    fn turns(&self) -> Option<&Turns> {
        self.inner.turns()
    }
}
