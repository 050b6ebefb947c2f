// SPDX-License-Identifier: MIT
//! Host memory that GPUs reach at the host's address.
//!
//! Pinning costs up to a millisecond. Unpinning waits until *every kernel that runs has ended*
//! (measured on two H200s: 20 s behind a kernel that spins as long), and so would hang a host
//! thread whose peer's kernel waits for it. Pages that were pinned once are therefore never
//! unpinned here: they are used again.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, OnceLock, PoisonError};

use cudarc::driver::sys;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::{CudaError, Gpu};

/// Pages that were pinned and are free, by their bytes.
static FREE: Mutex<BTreeMap<usize, Vec<Mapping>>> = Mutex::new(BTreeMap::new());

/// Zeroed pages of host memory that can be pinned at any time, and are then reached by all GPUs at
/// the host's address.
pub struct HostPages {
    mapping: Option<Mapping>,
    len: u64,
    pinned: OnceLock<()>,
    /// Held while pinning, so that it happens once.
    pinning: Mutex<()>,
}

impl HostPages {
    /// `bytes` bytes at the start of a page, not pinned. Needs no driver.
    ///
    /// # Errors
    ///
    /// [`CudaError::Size`], [`CudaError::System`].
    pub fn new(bytes: u64) -> Result<Self, CudaError> {
        Ok(Self::of(Mapping::new(bytes)?, bytes))
    }

    fn of(mapping: Mapping, len: u64) -> Self {
        Self {
            mapping: Some(mapping),
            len,
            pinned: OnceLock::new(),
            pinning: Mutex::new(()),
        }
    }

    /// Pins them, the first time. `gpu` is any GPU: the pages are reached by all.
    ///
    /// # Errors
    ///
    /// What the driver says; [`CudaError::NotUnified`].
    pub fn pin(&self, gpu: &Gpu) -> Result<(), CudaError> {
        let _one = self.pinning.lock().unwrap_or_else(PoisonError::into_inner);
        if self.pinned.get().is_none() {
            if let Some(mapping) = &self.mapping {
                mapping.pin(gpu)?;
            }
            self.pinned.get_or_init(|| ());
        }
        Ok(())
    }

    /// First byte. Valid while this lives; where they are pinned, GPUs may write at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping
            .as_ref()
            .map_or(ptr::null_mut(), |mapping| mapping.start.as_ptr())
    }

    /// First byte, for device code.
    pub fn address(&self) -> u64 {
        self.as_ptr().expose_provenance() as u64
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "memory is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }
}

impl Drop for HostPages {
    fn drop(&mut self) {
        let Some(mapping) = self.mapping.take() else {
            return;
        };
        if self.pinned.get().is_some() {
            let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
            free.entry(mapping.size).or_default().push(mapping);
        } else {
            mapping.unmap();
        }
    }
}

impl fmt::Debug for HostPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostPages")
            .field("at", &self.as_ptr())
            .field("len", &self.len)
            .field("pinned", &self.pinned.get().is_some())
            .finish()
    }
}

/// Zeroed [`HostPages`] that are pinned.
#[derive(Debug)]
pub struct PinnedMemory(HostPages);

impl PinnedMemory {
    /// `bytes` bytes at the start of a page: pages that were pinned before, where some are free.
    ///
    /// # Errors
    ///
    /// As [`HostPages::new`] and [`HostPages::pin`].
    pub fn new(gpu: &Gpu, bytes: u64) -> Result<Self, CudaError> {
        if let Some(size) = Mapping::size_of(bytes) {
            let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(mapping) = free.get_mut(&size).and_then(Vec::pop) {
                // SAFETY: mapped pages that nobody owned a moment ago.
                unsafe { mapping.start.as_ptr().write_bytes(0, mapping.size) };
                let pages = HostPages::of(mapping, bytes);
                pages.pinned.get_or_init(|| ());
                return Ok(Self(pages));
            }
        }
        let pages = HostPages::new(bytes)?;
        pages.pin(gpu)?;
        Ok(Self(pages))
    }

    /// First byte. Valid while this lives; GPUs may write at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// First byte, for device code.
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "memory is never empty")]
    pub fn len(&self) -> u64 {
        self.0.len()
    }
}

/// An anonymous mapping. Who drops it has put it away or unmapped it.
struct Mapping {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: plain memory, owned by this value; no thread owns it.
unsafe impl Send for Mapping {}
// SAFETY: as above; reached by address only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Whole pages, and a power of two up to a megabyte, so that they are found again.
    fn size_of(bytes: u64) -> Option<usize> {
        if bytes == 0 || bytes > isize::MAX as u64 / 2 {
            return None;
        }
        let size = (bytes as usize).next_multiple_of(rustix::param::page_size());
        Some(if size <= 1 << 20 {
            size.next_power_of_two()
        } else {
            size
        })
    }

    fn new(bytes: u64) -> Result<Self, CudaError> {
        let what = "host memory";
        let size = Self::size_of(bytes).ok_or(CudaError::Size { what, bytes })?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|errno| CudaError::System {
            operation: "map host memory",
            errno,
        })?;
        let start = NonNull::new(start.cast()).ok_or(CudaError::Size { what, bytes })?;
        Ok(Self { start, size })
    }

    fn pin(&self, gpu: &Gpu) -> Result<(), CudaError> {
        let _entered = gpu.enter()?;
        let start = self.start.as_ptr().cast::<c_void>();
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: mapped pages that stay mapped from now on.
        gpu.check("cuMemHostRegister", unsafe {
            sys::cuMemHostRegister_v2(start, self.size, flags)
        })?;
        let mut device = 0;
        // SAFETY: a valid place to write to, and registered memory.
        let found = gpu.check("cuMemHostGetDevicePointer", unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut device, start, 0)
        });
        let found = found.and_then(|()| {
            if device == start.expose_provenance() as u64 {
                Ok(())
            } else {
                Err(CudaError::NotUnified { gpu: gpu.ordinal() })
            }
        });
        if found.is_err() {
            // SAFETY: registered above, and no kernel knows of it.
            super::error::warn(gpu.check("cuMemHostUnregister", unsafe {
                sys::cuMemHostUnregister(start)
            }));
        }
        found
    }

    fn unmap(self) {
        // SAFETY: mapped by `new`, never pinned, and this value was the only owner.
        if let Err(errno) = unsafe { munmap(self.start.as_ptr().cast(), self.size) } {
            tracing::warn!(at = ?self.start, %errno, "cannot unmap host pages");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_need_no_driver_until_they_are_pinned() {
        let pages = HostPages::new(5000).unwrap();
        assert_eq!(pages.len(), 5000);
        assert!(pages.as_ptr().addr().is_multiple_of(4096));
        // SAFETY: mapped memory of this test alone.
        assert_eq!(unsafe { pages.as_ptr().add(4999).read() }, 0);
        for bytes in [0, u64::MAX] {
            assert!(HostPages::new(bytes).is_err());
        }
    }

    #[test]
    fn sizes_are_few() {
        assert_eq!(Mapping::size_of(1), Some(4096));
        assert_eq!(Mapping::size_of(9000), Some(16384));
        assert_eq!(Mapping::size_of((1 << 20) + 1), Some((1 << 20) + 4096));
        assert_eq!(Mapping::size_of(0), None);
    }
}
