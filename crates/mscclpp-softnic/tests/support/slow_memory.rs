// SPDX-License-Identifier: MIT
//! A memory that completes accesses later, in random order or in theirs, and can
//! be told to fail or to change under the NIC's eyes: what a GPU's memory may do.
#![allow(dead_code)]

use std::sync::{Arc, Mutex};

use mscclpp_softnic::*;

/// Host memory behind a queue of accesses.
pub(crate) struct SlowMemory {
    in_order: bool,
    state: Mutex<State>,
}

struct State {
    rng: fastrand::Rng,
    waiting: Vec<(AccessId, Access)>,
    most_waiting: usize,
    stalled: bool,
    /// Accesses to addresses in these ranges fail.
    broken: Vec<(u64, u64)>,
    /// Called after each read.
    after_read: Option<Box<dyn FnMut(u64) + Send>>,
}

impl SlowMemory {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        Self::with(seed, false)
    }

    /// One whose accesses act in the order in which they are submitted, if
    /// `in_order` says so.
    pub(crate) fn with(seed: u64, in_order: bool) -> Arc<Self> {
        Arc::new(Self {
            in_order,
            state: Mutex::new(State {
                rng: fastrand::Rng::with_seed(seed),
                waiting: Vec::new(),
                most_waiting: 0,
                stalled: false,
                broken: Vec::new(),
                after_read: None,
            }),
        })
    }

    /// `buffer` seen through this memory.
    pub(crate) fn range(self: &Arc<Self>, buffer: &HostBuffer) -> MemoryRange {
        let owner = Arc::new(buffer.clone());
        // SAFETY: the owner keeps the buffer, whose bytes this memory reaches
        // as host memory.
        unsafe { MemoryRange::new(self.clone(), buffer.address(), buffer.len() as u64, owner) }
    }

    pub(crate) fn break_range(&self, buffer: &HostBuffer) {
        let start = buffer.address();
        self.state
            .lock()
            .unwrap()
            .broken
            .push((start, start + buffer.len() as u64));
    }

    pub(crate) fn after_read(&self, call: impl FnMut(u64) + Send + 'static) {
        self.state.lock().unwrap().after_read = Some(Box::new(call));
    }

    /// While stalled, nothing completes.
    pub(crate) fn stall(&self, stalled: bool) {
        self.state.lock().unwrap().stalled = stalled;
    }

    pub(crate) fn most_waiting(&self) -> usize {
        self.state.lock().unwrap().most_waiting
    }
}

impl NicMemory for SlowMemory {
    fn in_order(&self) -> bool {
        self.in_order
    }

    unsafe fn submit(&self, id: AccessId, access: Access) -> Submitted {
        let mut state = self.state.lock().unwrap();
        state.waiting.push((id, access));
        state.most_waiting = state.most_waiting.max(state.waiting.len());
        Submitted::Pending
    }

    fn complete(&self) -> Option<(AccessId, AccessResult)> {
        let mut state = self.state.lock().unwrap();
        let count = state.waiting.len();
        if count == 0 || state.stalled {
            return None;
        }
        let at = match self.in_order {
            true => 0,
            false => state.rng.usize(..count),
        };
        let (id, access) = state.waiting.remove(at);
        let (address, read) = match &access {
            Access::Read { address, .. } => (*address, true),
            Access::Write { address, .. } | Access::Publish { address, .. } => (*address, false),
            Access::Copy { to, .. } => (*to, false),
            _ => panic!("an access that this memory does not know"),
        };
        if state
            .broken
            .iter()
            .any(|(start, end)| (*start..*end).contains(&address))
        {
            return Some((id, Err(MemoryFault("broken by the test".into()))));
        }
        // SAFETY: the NIC promised as much when it submitted the access.
        let done = match unsafe { HostMemory::shared().submit(id, access) } {
            Submitted::Done(result) => result,
            Submitted::Pending => panic!("host memory completes at once"),
        };
        if read && let Some(call) = &mut state.after_read {
            call(address);
        }
        Some((id, done))
    }
}
