// SPDX-License-Identifier: MIT
//! The record of what a kernel does to memory.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::error::ThreadId;
use super::word::Word;
use super::{Order, Scope, observe};

/// Events kept; a kernel that waits for ever must not fill the host's memory.
const CAPACITY: usize = 1 << 16;

/// What a thread did. Addresses are those of this process; `bytes` is 4 or 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields say what their names say")]
pub enum Access {
    /// It read `value`.
    Load {
        address: usize,
        bytes: usize,
        value: u64,
        order: Order,
        scope: Scope,
    },
    /// It wrote `value`.
    Store {
        address: usize,
        bytes: usize,
        value: u64,
        order: Order,
        scope: Scope,
    },
    /// It added `operand` and found `found` before.
    FetchAdd {
        address: usize,
        bytes: usize,
        operand: u64,
        found: u64,
        order: Order,
        scope: Scope,
    },
    /// It replaced `expected` by `desired`, unless `found` was another value.
    CompareExchange {
        address: usize,
        bytes: usize,
        expected: u64,
        desired: u64,
        found: u64,
        order: Order,
        scope: Scope,
    },
    /// A fence.
    Fence { order: Order, scope: Scope },
    /// It arrived at the barrier of its block.
    Barrier,
    /// It wrote `value` to a device register, such as a doorbell.
    StoreMmio { address: usize, value: u64 },
}

/// One access, by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The thread.
    pub thread: ThreadId,
    /// What it did.
    pub access: Access,
}

type Observer = dyn Fn(&Event) + Send + Sync;

/// A memory model that does each access at once, one at a time, and records
/// it, in the order in which they were done.
///
/// The record ends at 65536 events. A load that repeats the same thread's last
/// event is not recorded again.
#[derive(Clone)]
pub struct Trace {
    shared: Arc<Shared>,
}

struct Shared {
    events: Mutex<Vec<Event>>,
    observer: Option<Box<Observer>>,
    failure: Mutex<Option<String>>,
}

impl Default for Trace {
    fn default() -> Self {
        Self::new()
    }
}

impl Trace {
    /// An empty record.
    pub fn new() -> Self {
        Self::with(None)
    }

    /// An empty record that calls `observer` after each access, on the thread
    /// that did it, before that thread goes on. It may change memory, as
    /// another agent could at that moment.
    pub fn observed(observer: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self::with(Some(Box::new(observer)))
    }

    fn with(observer: Option<Box<Observer>>) -> Self {
        Self {
            shared: Arc::new(Shared {
                events: Mutex::new(Vec::new()),
                observer,
                failure: Mutex::new(None),
            }),
        }
    }

    /// What was recorded so far, of all launches on this model.
    pub fn events(&self) -> Vec<Event> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        self.shared
            .events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.shared
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Does an access and records it in one step, so that the record is the order.
    fn step<T>(&self, thread: ThreadId, access: impl FnOnce() -> (T, Access)) -> T {
        let mut events = self.lock();
        let (result, access) = access();
        let event = Event { thread, access };
        let repeats = matches!(access, Access::Load { .. })
            && events.iter().rev().find(|e| e.thread == thread) == Some(&event);
        if !repeats && events.len() < CAPACITY {
            events.push(event);
        }
        drop(events);
        if let Some(observer) = &self.shared.observer {
            observe(&self.shared.failure, || observer(&event));
        }
        result
    }

    pub(crate) fn record(&self, thread: ThreadId, access: Access) {
        self.step(thread, || ((), access));
    }

    pub(crate) fn load(&self, id: ThreadId, word: Word, order: Order, scope: Scope) -> u64 {
        self.step(id, || {
            let value = word.load();
            let access = Access::Load {
                address: word.address(),
                bytes: word.bytes(),
                value,
                order,
                scope,
            };
            (value, access)
        })
    }

    pub(crate) fn store(&self, id: ThreadId, word: Word, value: u64, order: Order, scope: Scope) {
        self.step(id, || {
            word.store(value);
            let access = Access::Store {
                address: word.address(),
                bytes: word.bytes(),
                value,
                order,
                scope,
            };
            ((), access)
        });
    }

    pub(crate) fn store_mmio(&self, id: ThreadId, word: Word, value: u64) {
        self.step(id, || {
            word.store(value);
            let address = word.address();
            ((), Access::StoreMmio { address, value })
        });
    }

    pub(crate) fn fetch_add(
        &self,
        id: ThreadId,
        word: Word,
        operand: u64,
        order: Order,
        scope: Scope,
    ) -> u64 {
        self.step(id, || {
            let found = word.fetch_add(operand);
            let access = Access::FetchAdd {
                address: word.address(),
                bytes: word.bytes(),
                operand,
                found,
                order,
                scope,
            };
            (found, access)
        })
    }

    pub(crate) fn compare_exchange(
        &self,
        id: ThreadId,
        word: Word,
        (expected, desired): (u64, u64),
        order: Order,
        scope: Scope,
    ) -> u64 {
        self.step(id, || {
            let found = word.compare_exchange(expected, desired);
            let access = Access::CompareExchange {
                address: word.address(),
                bytes: word.bytes(),
                expected,
                desired,
                found,
                order,
                scope,
            };
            (found, access)
        })
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("events", &self.lock().len())
            .finish_non_exhaustive()
    }
}
