// SPDX-License-Identifier: MIT
//! Memory models: what kernels' stores, fences and atomics do when their object
//! was compiled with `MSCCLPP_MODELLED_MEMORY`.
//!
//! A CPU such as x86 keeps stores in order by itself, so that a missing fence
//! never shows. [`Trace`] shows it in the record, [`Weak`] in the outcome.
//!
//! Only accesses through the device headers are modelled (the functions of
//! `memory_device.hpp` and `atomic_device.hpp` and what is built of them).
//! Plain loads and stores of a kernel go to memory at once.

mod trace;
mod weak;
mod word;

pub use trace::{Access, Event, Trace};
pub use weak::{Weak, Write};
pub(crate) use word::Word;

use super::error::ThreadId;
use weak::WeakThread;

/// Order of an access, as in C++.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// None.
    Relaxed,
    /// Later accesses stay later.
    Acquire,
    /// Earlier accesses stay earlier.
    Release,
    /// Both.
    AcqRel,
    /// Both, and one order of all such accesses.
    SeqCst,
}

impl Order {
    pub(crate) fn of(number: i32) -> Self {
        match number {
            0 => Self::Relaxed,
            1 | 2 => Self::Acquire,
            3 => Self::Release,
            4 => Self::AcqRel,
            _ => Self::SeqCst,
        }
    }

    /// Whether it makes what others released known to the thread.
    pub fn acquires(self) -> bool {
        matches!(self, Self::Acquire | Self::AcqRel | Self::SeqCst)
    }

    /// Whether it makes what the thread wrote before visible.
    pub fn releases(self) -> bool {
        matches!(self, Self::Release | Self::AcqRel | Self::SeqCst)
    }
}

/// Who an ordered access is ordered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The threads of the block.
    Block,
    /// The threads of the GPU.
    Device,
    /// Everybody: host, NIC, other GPUs.
    System,
}

impl Scope {
    pub(crate) fn of(number: i32) -> Self {
        match number {
            0 => Self::Block,
            1 => Self::Device,
            _ => Self::System,
        }
    }
}

/// The memory model of a launch. Clones are the same model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Model {
    /// Memory itself, with a record.
    Trace(Trace),
    /// Memory behind delayed, reordered stores.
    Weak(Weak),
}

impl From<Trace> for Model {
    fn from(trace: Trace) -> Self {
        Self::Trace(trace)
    }
}

impl From<&Trace> for Model {
    fn from(trace: &Trace) -> Self {
        Self::Trace(trace.clone())
    }
}

impl From<Weak> for Model {
    fn from(weak: Weak) -> Self {
        Self::Weak(weak)
    }
}

impl From<&Weak> for Model {
    fn from(weak: &Weak) -> Self {
        Self::Weak(weak.clone())
    }
}

impl Model {
    /// A launch begins; returns its number within the model.
    pub(crate) fn begin(&self) -> u64 {
        match self {
            Self::Trace(_) => 0,
            Self::Weak(weak) => weak.begin(),
        }
    }

    /// All threads of launch `number` have returned.
    pub(crate) fn end(&self, number: u64) {
        if let Self::Weak(weak) = self {
            weak.end(number);
        }
    }

    /// What an observer's panic said.
    pub(crate) fn failure(&self) -> Option<String> {
        match self {
            Self::Trace(trace) => trace.failure(),
            Self::Weak(weak) => weak.failure(),
        }
    }
}

/// One thread's way to memory.
pub(crate) enum ThreadMemory {
    /// A modelled object launched without a model: memory itself.
    Direct,
    Trace(Trace, ThreadId),
    Weak(WeakThread),
}

impl ThreadMemory {
    pub(crate) fn new(model: Option<&Model>, launch: u64, id: ThreadId) -> Self {
        match model {
            None => Self::Direct,
            Some(Model::Trace(trace)) => Self::Trace(trace.clone(), id),
            Some(Model::Weak(weak)) => Self::Weak(WeakThread::new(weak.clone(), launch, id)),
        }
    }

    pub(crate) fn load(&self, word: Word, order: Order, scope: Scope) -> u64 {
        match self {
            Self::Direct => word.load(),
            Self::Trace(trace, id) => trace.load(*id, word, order, scope),
            Self::Weak(weak) => weak.load(word, order, scope),
        }
    }

    pub(crate) fn store(&self, word: Word, value: u64, order: Order, scope: Scope) {
        match self {
            Self::Direct => word.store(value),
            Self::Trace(trace, id) => trace.store(*id, word, value, order, scope),
            Self::Weak(weak) => weak.store(word, value, order, scope),
        }
    }

    pub(crate) fn fetch_add(&self, word: Word, operand: u64, order: Order, scope: Scope) -> u64 {
        match self {
            Self::Direct => word.fetch_add(operand),
            Self::Trace(trace, id) => trace.fetch_add(*id, word, operand, order, scope),
            Self::Weak(weak) => {
                weak.atomic(word, order, scope, |word| (word.fetch_add(operand), true))
            }
        }
    }

    pub(crate) fn compare_exchange(
        &self,
        word: Word,
        expected: u64,
        desired: u64,
        order: Order,
        scope: Scope,
    ) -> u64 {
        match self {
            Self::Direct => word.compare_exchange(expected, desired),
            Self::Trace(trace, id) => {
                trace.compare_exchange(*id, word, (expected, desired), order, scope)
            }
            Self::Weak(weak) => weak.atomic(word, order, scope, |word| {
                let found = word.compare_exchange(expected, desired);
                (found, found == word.cut(expected))
            }),
        }
    }

    pub(crate) fn fence(&self, order: Order, scope: Scope) {
        match self {
            Self::Direct => {}
            Self::Trace(trace, id) => trace.record(*id, Access::Fence { order, scope }),
            Self::Weak(weak) => weak.fence(order, scope),
        }
    }

    pub(crate) fn store_mmio(&self, word: Word, value: u64) {
        match self {
            Self::Direct => word.store(value),
            Self::Trace(trace, id) => trace.store_mmio(*id, word, value),
            Self::Weak(weak) => weak.store_mmio(word, value),
        }
    }

    pub(crate) fn arrive(&self) {
        match self {
            Self::Direct => {}
            Self::Trace(trace, id) => trace.record(*id, Access::Barrier),
            Self::Weak(weak) => weak.arrive(),
        }
    }

    /// The barrier let the thread go.
    pub(crate) fn leave(&self) {
        if let Self::Weak(weak) = self {
            weak.leave();
        }
    }

    pub(crate) fn relax(&self) {
        if let Self::Weak(weak) = self {
            weak.relax();
        }
    }

    pub(crate) fn exit(&self) {
        if let Self::Weak(weak) = self {
            weak.exit();
        }
    }
}

/// Calls an observer; a panic of it is kept for [`Running::join`](super::Running::join)
/// and does not cross into C++.
fn observe(failure: &std::sync::Mutex<Option<String>>, call: impl FnOnce()) {
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
        let message = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "no message".to_owned());
        failure
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .get_or_insert(message);
    }
}
