// SPDX-License-Identifier: MIT
//! The registrations of a context, by key: what peers may reach, checked at every access.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, TryLockError, Weak};

use crate::buffer::Buffer;
use crate::error::Error;
use crate::gpu::GpuMemory;
use crate::memory::Registration;
use crate::random::random_u64;
use crate::refusal::Refusal;
use crate::shared;
use crate::sync::lock_plain as lock;
#[cfg(feature = "ib")]
use crate::transport::TransportKind;

/// What peers may do with a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Peers may write.
    pub remote_write: bool,
    /// Peers may signal and accumulate.
    pub remote_atomic: bool,
    /// Peers may read: `get`, which only kernels that post themselves have.
    pub remote_read: bool,
}

impl Access {
    /// Peers may do everything. The default.
    pub const FULL: Self = Self {
        remote_write: true,
        remote_atomic: true,
        remote_read: true,
    };
    /// Peers may do nothing: a source of writes only.
    pub const LOCAL: Self = Self {
        remote_write: false,
        remote_atomic: false,
        remote_read: false,
    };
}

impl Default for Access {
    fn default() -> Self {
        Self::FULL
    }
}

/// Registered bytes. Holding one does not keep it registered.
pub(crate) struct Region {
    base: NonNull<u8>,
    len: u64,
    access: Access,
    /// Keeps the bytes alive; raw registrations have none.
    buffer: Option<Buffer>,
    /// Of a word that only signals raise: how many have come. The host cannot add to a GPU's memory,
    /// so there the next value is written.
    signals: Option<Mutex<u64>>,
    /// True while registered. Held for reading during an access from outside, which is a copy of
    /// bounded size and never a wait, and for writing by the end of the registration: after that,
    /// no access is going on and none will start.
    open: RwLock<bool>,
}

// SAFETY: `base` points to memory that any thread may access; it is only reached through the atomic
// accesses of `shared` and the operating system, under a guard or with the buffer kept alive.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// # Safety
    /// `base` must be valid for reads and writes of `len` bytes until [`close`](Self::close)
    /// returns, or, with a buffer, be inside that buffer.
    pub(crate) unsafe fn new(
        base: NonNull<u8>,
        len: u64,
        access: Access,
        buffer: Option<Buffer>,
    ) -> Self {
        Self {
            base,
            len,
            access,
            buffer,
            signals: None,
            open: RwLock::new(true),
        }
    }

    /// The same as a word that nothing but peers' signals writes.
    pub(crate) fn for_signals(self) -> Self {
        Self {
            signals: Some(Mutex::new(0)),
            ..self
        }
    }

    /// The GPU's memory that the bytes are of, if they are a GPU's.
    pub(crate) fn gpu(&self) -> Option<&Arc<GpuMemory>> {
        self.buffer.as_ref()?.gpu()
    }

    /// Whether copies of GPUs can read the bytes.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_reached_by_gpus(&self) -> bool {
        self.buffer.as_ref().is_some_and(Buffer::is_reached_by_gpus)
    }

    /// The GPU's memory, and where in it an address of these bytes is.
    pub(crate) fn in_gpu(&self, at: *mut u8) -> Option<(&Arc<GpuMemory>, u64)> {
        let memory = self.gpu()?;
        Some((memory, at.addr() as u64 - memory.address()))
    }

    /// The count of signals that have come, to be held while the next value is written; only for a
    /// word that nothing else writes.
    pub(crate) fn signals(&self) -> Option<MutexGuard<'_, u64>> {
        self.signals.as_ref().map(lock)
    }

    fn add(&self, at: *mut u8, operand: u64) -> Result<(), Refusal> {
        let Some((memory, offset)) = self.in_gpu(at) else {
            // SAFETY: the caller has checked range and alignment and keeps the word valid.
            unsafe { shared::word(at) }.fetch_add(operand, AcqRel);
            return Ok(());
        };
        let added = match self.signals() {
            Some(mut count) => {
                *count = count.wrapping_add(operand);
                memory.store_u64(offset, *count)
            }
            None => memory.add_u64(offset, operand),
        };
        added.map_err(|error| {
            tracing::warn!(%error, "a peer's addition to a GPU's memory failed");
            Refusal::Device
        })
    }

    /// Executes a peer's signal to the first word: a release of all that this thread saw before.
    #[cfg(feature = "ib")]
    pub(super) fn signal(&self) -> Result<(), Refusal> {
        let guard = self.enter().ok_or(Refusal::UnknownKey)?;
        self.add(guard.word(0)?, 1)
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Opens the bytes for one access from outside; `None` if no longer registered.
    pub(crate) fn enter(&self) -> Option<RegionGuard<'_>> {
        // Never blocks: the only writer is `close`, so a lock that is not to be had is closing. A
        // thread that held one region and waited here for another could meet its mirror image.
        let open = match self.open.try_read() {
            Ok(open) => open,
            Err(TryLockError::Poisoned(open)) => open.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        open.then_some(RegionGuard {
            region: self,
            open: Some(open),
        })
    }

    /// Opens the bytes as the source of a write posted here. A buffer's bytes outlive their
    /// registration as long as this region is held, so a write that was posted goes through; raw
    /// memory is the caller's again once deregistered, so it does not.
    pub(crate) fn enter_as_source(&self) -> Option<RegionGuard<'_>> {
        match self.buffer {
            Some(_) => Some(RegionGuard {
                region: self,
                open: None,
            }),
            None => self.enter(),
        }
    }

    /// Ends all access, waiting for a copy that is going on.
    fn close(&self) {
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// The right to touch a region's bytes, to be held for one bounded copy.
pub(crate) struct RegionGuard<'a> {
    region: &'a Region,
    open: Option<RwLockReadGuard<'a, bool>>,
}

impl RegionGuard<'_> {
    /// Whether dropping the guard matters: it keeps the region from being closed.
    pub(crate) fn is_locked(&self) -> bool {
        self.open.is_some()
    }

    /// Whether this is a guard of `region`.
    pub(crate) fn is_of(&self, region: &Region) -> bool {
        std::ptr::eq(self.region, region)
    }

    /// The address of `len` bytes at `offset`.
    pub(crate) fn range(&self, offset: u64, len: u64) -> Result<*mut u8, Refusal> {
        match offset.checked_add(len) {
            Some(end) if end <= self.region.len => {
                // Inside the region, so the offset fits an address.
                Ok(self.region.base.as_ptr().wrapping_add(offset as usize))
            }
            _ => Err(Refusal::OutOfBounds),
        }
    }

    /// The address of the 8-byte word at `offset`.
    pub(crate) fn word(&self, offset: u64) -> Result<*mut u8, Refusal> {
        let at = self.range(offset, 8)?;
        if at.addr().is_multiple_of(8) {
            Ok(at)
        } else {
            Err(Refusal::Misaligned)
        }
    }
}

#[derive(Clone)]
struct Entry {
    region: Arc<Region>,
    registration: Weak<Registration>,
}

/// The table. One a context.
#[derive(Default)]
pub(crate) struct RegistrationTable {
    entries: RwLock<HashMap<u64, Entry>>,
}

impl RegistrationTable {
    /// Enters a registration under a fresh random key, which `make` gets.
    pub(crate) fn insert(
        &self,
        region: Arc<Region>,
        make: impl FnOnce(u64) -> Arc<Registration>,
    ) -> Result<Arc<Registration>, Error> {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        loop {
            let key = random_u64()?;
            if key != 0 && !entries.contains_key(&key) {
                let registration = make(key);
                let weak = Arc::downgrade(&registration);
                entries.insert(
                    key,
                    Entry {
                        region,
                        registration: weak,
                    },
                );
                return Ok(registration);
            }
        }
    }

    /// Removes the key; when this returns, nobody touches the region's bytes for a peer.
    pub(crate) fn remove(&self, key: u64) {
        let entry = self
            .entries
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&key);
        if let Some(entry) = entry {
            entry.region.close();
        }
    }

    fn region(&self, key: u64) -> Result<Arc<Region>, Refusal> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries
            .get(&key)
            .map(|e| Arc::clone(&e.region))
            .ok_or(Refusal::UnknownKey)
    }

    /// The region of a key that peers may write.
    pub(crate) fn open_for_write(&self, key: u64) -> Result<Arc<Region>, Refusal> {
        let region = self.region(key)?;
        if region.access.remote_write {
            Ok(region)
        } else {
            Err(Refusal::AccessDenied)
        }
    }

    /// The region of a key whose words peers may add to.
    pub(crate) fn open_for_add(&self, key: u64) -> Result<Arc<Region>, Refusal> {
        let region = self.region(key)?;
        if region.access.remote_atomic {
            Ok(region)
        } else {
            Err(Refusal::AccessDenied)
        }
    }

    /// Executes a peer's `+= operand` on a word. A release: whoever sees the sum sees all that this
    /// thread wrote before it.
    ///
    /// On a GPU's memory it is a read and a write, which this process does one at a time, and waits
    /// for; kernels that write the same word meanwhile lose what they write, or it is lost.
    pub(crate) fn add(&self, key: u64, offset: u64, operand: u64) -> Result<(), Refusal> {
        let region = self.open_for_add(key)?;
        let guard = region.enter().ok_or(Refusal::UnknownKey)?;
        let at = guard.word(offset)?;
        region.add(at, operand)
    }

    /// For a trace: the address of a word that a peer's signal is about to be added to, and what it will
    /// be then, if nobody else adds to it.
    pub(crate) fn signal_ahead(&self, key: u64, offset: u64) -> Option<(u64, u64)> {
        let region = self.open_for_add(key).ok()?;
        let guard = region.enter()?;
        let at = guard.word(offset).ok()?;
        let count = match region.gpu() {
            // SAFETY: the guard has checked range and alignment and keeps the word valid.
            None => unsafe { shared::word(at) }.load(Acquire),
            Some(_) => *region.signals()?,
        };
        Some((at.addr() as u64, count.wrapping_add(1)))
    }

    /// The registration that has a key on the HCA of a transport. Looks at all: for the first signal
    /// to it.
    #[cfg(feature = "ib")]
    pub(crate) fn of_hca_key(
        &self,
        transport: TransportKind,
        key: u32,
    ) -> Option<Arc<Registration>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let all = entries.values();
        let all: Vec<_> = all
            .filter_map(|entry| entry.registration.upgrade())
            .collect();
        // Before any of them is let go: who drops the last of one locks the table to take it out.
        drop(entries);
        all.into_iter()
            .find(|registration| registration.key_on(transport) == Some(key))
    }

    pub(crate) fn registration(&self, key: u64) -> Option<Arc<Registration>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.get(&key)?.registration.upgrade()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::device::Device;

    /// Two threads that each hold one region and want the other's, while both regions are being
    /// closed, must not wait for each other.
    #[test]
    fn a_region_that_is_closing_is_refused_at_once() {
        let buffer = Buffer::new(Device::cpu(), 64).unwrap();
        let base = NonNull::new(buffer.as_ptr()).unwrap();
        let access = Access::FULL;
        // SAFETY: the bytes are the buffer's, which the region keeps.
        let region = Arc::new(unsafe { Region::new(base, 64, access, Some(buffer)) });
        let held = region.enter().unwrap();
        let closing = Arc::clone(&region);
        let closer = std::thread::spawn(move || closing.close());
        let (sender, refused) = mpsc::channel();
        let entering = Arc::clone(&region);
        let visitor = std::thread::spawn(move || {
            let start = Instant::now();
            while entering.enter().is_some() && start.elapsed() < Duration::from_secs(20) {
                std::thread::yield_now();
            }
            sender.send(entering.enter().is_none()).unwrap();
        });
        let refused = refused.recv_timeout(Duration::from_secs(30));
        drop(held);
        closer.join().unwrap();
        visitor.join().unwrap();
        assert_eq!(refused, Ok(true));
        assert!(region.enter().is_none());
    }
}
