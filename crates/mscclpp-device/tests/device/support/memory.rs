// SPDX-License-Identifier: MIT
//! Words that kernels and tests share, and handles made of them.

use std::any::Any;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use mscclpp_device::abi::{
    AbiHeader, BasePortChannelDeviceHandle, Host2DeviceSemaphoreDeviceHandle,
    PortChannelDeviceHandle, Status, StatusWord,
};

use super::TestFifo;

/// Shared words. Kept for ever.
#[derive(Clone, Copy)]
pub(crate) struct Cells(&'static [AtomicU64]);

/// Keeps something for ever, where a leak detector knows it from a leak: a kernel that a failed
/// check left behind may still use it.
pub(crate) fn keep(what: impl Send + 'static) {
    static KEPT: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());
    KEPT.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(Box::new(what));
}

impl Cells {
    /// Zeroed, aligned to 16 bytes.
    pub(crate) fn new(count: usize) -> Self {
        let words: Vec<AtomicU64> = (0..count + 1).map(|_| AtomicU64::new(0)).collect();
        let words: &'static [AtomicU64] = words.leak();
        keep(words);
        let skipped = words.as_ptr().addr() % 16 / 8;
        Self(&words[skipped..skipped + count])
    }

    /// Address of the first.
    pub(crate) fn address(self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn get(self, index: usize) -> u64 {
        self.0[index].load(SeqCst)
    }

    pub(crate) fn set(self, index: usize, value: u64) {
        self.0[index].store(value, SeqCst);
    }

    pub(crate) fn add(self, index: usize, value: u64) -> u64 {
        self.0[index].fetch_add(value, SeqCst)
    }

    pub(crate) fn all(self) -> Vec<u64> {
        self.0.iter().map(|word| word.load(SeqCst)).collect()
    }

    /// Sets the first word, a status word, as the host does.
    pub(crate) fn fail(self, status: Status) {
        let bits = StatusWord::new(status, 0).to_bits();
        let _ = self.0[0].compare_exchange(0, bits, SeqCst, SeqCst);
    }
}

/// A semaphore and its connection's status word.
#[derive(Clone, Copy)]
pub(crate) struct TestSemaphore {
    pub(crate) inbound: Cells,
    pub(crate) expected: Cells,
    pub(crate) status: Cells,
}

impl TestSemaphore {
    pub(crate) fn new() -> Self {
        Self {
            inbound: Cells::new(1),
            expected: Cells::new(1),
            status: Cells::new(1),
        }
    }

    pub(crate) fn handle(&self) -> Host2DeviceSemaphoreDeviceHandle {
        Host2DeviceSemaphoreDeviceHandle {
            abi: AbiHeader::of::<Host2DeviceSemaphoreDeviceHandle>(),
            inbound_token: self.inbound.address(),
            expected_inbound_token: self.expected.address(),
            status: self.status.address(),
        }
    }
}

/// A channel of a semaphore, a FIFO and a flush position.
#[derive(Clone, Copy)]
pub(crate) struct TestChannel {
    pub(crate) semaphore: TestSemaphore,
    pub(crate) fifo: TestFifo,
    pub(crate) flushed: Cells,
}

impl TestChannel {
    pub(crate) const ID: u32 = 5;
    pub(crate) const DST: u32 = 6;
    pub(crate) const SRC: u32 = 7;

    pub(crate) fn new(slots: usize) -> Self {
        Self {
            semaphore: TestSemaphore::new(),
            fifo: TestFifo::new(slots),
            flushed: Cells::new(1),
        }
    }

    pub(crate) fn handle(&self) -> PortChannelDeviceHandle {
        let base = BasePortChannelDeviceHandle::new(
            Self::ID,
            self.semaphore.handle(),
            self.fifo.handle(),
            self.flushed.address(),
        );
        PortChannelDeviceHandle::new(base, Self::DST, Self::SRC)
    }
}

impl Deref for TestChannel {
    type Target = TestSemaphore;

    fn deref(&self) -> &TestSemaphore {
        &self.semaphore
    }
}
