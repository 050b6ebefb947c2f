// SPDX-License-Identifier: MIT
//! A bootstrap that stops its rank in the midst of a setup.

use std::sync::{Arc, Mutex, PoisonError};

use mscclpp_bootstrap::{Bootstrap, BootstrapError, Deadline, Tag, forward_bootstrap};

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
    forward_bootstrap!(inner);

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

    fn recv_in_collective(
        &self,
        peer: usize,
        tag: Tag,
        members: Option<&[usize]>,
        deadline: Deadline,
    ) -> Result<Vec<u8>, BootstrapError> {
        (self.inner).recv_in_collective(peer, tag, members, deadline)
    }
}
