// SPDX-License-Identifier: MIT
//! Memory that can be registered.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::device::Device;
use crate::error::{Error, check_range};
use crate::shared;

/// Zeroed, page-aligned memory of a device, shared by its clones and freed with the last of them.
///
/// Kernels, peers and other threads may access the memory at any time. All accessors therefore
/// copy: an aligned piece of up to 8 bytes is never torn, and nothing else is promised about bytes
/// that someone writes meanwhile. Order between such a writer and a reader comes from a semaphore
/// or from [`load_u64`](Self::load_u64) and [`store_u64`](Self::store_u64).
///
/// Pages take up memory when they are first touched, so a large, sparsely used buffer is cheap.
///
/// A registration keeps its buffer alive; a raw pointer taken with [`as_ptr`](Self::as_ptr)
/// does not.
#[derive(Clone)]
pub struct Buffer {
    mapping: Arc<Mapping>,
    device: Device,
}

impl Buffer {
    /// Allocates `bytes` zeroed bytes of `device`'s memory.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if `bytes` is 0 or more than the address space;
    /// [`Error::DeviceUnavailable`] for a device that this build cannot use;
    /// [`Error::Io`] if the system has no such room.
    pub fn new(device: Device, bytes: u64) -> Result<Self, Error> {
        device.check_available()?;
        let mapping = Arc::new(Mapping::new(bytes)?);
        Ok(Self { mapping, device })
    }

    /// The size in bytes, as asked for.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> u64 {
        self.mapping.len as u64
    }

    /// The device whose memory this is.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// The first byte, at the start of a page. Valid for [`len`](Self::len) bytes while a clone or
    /// a registration of this buffer lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.base.as_ptr()
    }

    /// Copies out `to.len()` bytes from `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        let from = self.at("buffer read", offset, to.len() as u64)?;
        // SAFETY: `at` checked the range; the mapping lives as long as self.
        unsafe { shared::load(to, from) };
        Ok(())
    }

    /// Copies `from` in at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let to = self.at("buffer write", offset, from.len() as u64)?;
        // SAFETY: `at` checked the range; the mapping lives as long as self.
        unsafe { shared::store(to, from) };
        Ok(())
    }

    /// Loads the word at `offset` with acquire ordering: what was written before the matching
    /// release (a signal, [`store_u64`](Self::store_u64)) is visible afterwards.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::Misaligned`] unless `offset` is a multiple of 8.
    pub fn load_u64(&self, offset: u64) -> Result<u64, Error> {
        let at = self.word_at("buffer load", offset)?;
        // SAFETY: `word_at` checked range and alignment; the mapping lives as long as self.
        Ok(unsafe { shared::word(at) }.load(Ordering::Acquire))
    }

    /// Stores `value` at `offset` with release ordering.
    ///
    /// # Errors
    /// As [`load_u64`](Self::load_u64).
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<(), Error> {
        let at = self.word_at("buffer store", offset)?;
        // SAFETY: as in `load_u64`.
        unsafe { shared::word(at) }.store(value, Ordering::Release);
        Ok(())
    }

    /// Adds `value` to the word at `offset`, modulo 2^64, with acquire and release ordering, and
    /// returns what it held. Atomic with respect to peers' signals and accumulates.
    ///
    /// # Errors
    /// As [`load_u64`](Self::load_u64).
    pub fn fetch_add_u64(&self, offset: u64, value: u64) -> Result<u64, Error> {
        let at = self.word_at("buffer add", offset)?;
        // SAFETY: as in `load_u64`.
        Ok(unsafe { shared::word(at) }.fetch_add(value, Ordering::AcqRel))
    }

    fn at(&self, what: &'static str, offset: u64, len: u64) -> Result<*mut u8, Error> {
        check_range(what, offset, len, self.len())?;
        // The range lies inside the mapping, so the offset fits an address.
        Ok(self.as_ptr().wrapping_add(offset as usize))
    }

    fn word_at(&self, what: &'static str, offset: u64) -> Result<*mut u8, Error> {
        let at = self.at(what, offset, 8)?;
        if at.addr().is_multiple_of(8) {
            Ok(at)
        } else {
            Err(Error::Misaligned { what, offset })
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len())
            .field("device", &self.device)
            .field("at", &self.as_ptr())
            .finish()
    }
}

/// An anonymous mapping, unmapped on drop.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory, owned by this value alone and reached only through the
// atomic accesses of `shared` and the operating system; no thread owns it.
unsafe impl Send for Mapping {}
// SAFETY: as above: shared access is what those accesses are for.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(bytes: u64) -> Result<Self, Error> {
        let invalid = |detail| Error::InvalidUsage {
            operation: "allocate a buffer",
            detail,
        };
        let len = usize::try_from(bytes)
            .ok()
            .filter(|len| *len > 0 && *len <= isize::MAX as usize)
            .ok_or_else(|| invalid(format!("{bytes} bytes is no size for a buffer")))?;
        // NORESERVE: a registration may be far larger than what is ever touched.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        }
        .map_err(|errno| Error::io(format!("map {bytes} bytes of memory"), errno.into()))?;
        let base = NonNull::new(base.cast()).ok_or_else(|| invalid("mapped at null".into()))?;
        Ok(Self { base, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are what mmap returned and was given; this value is the only owner.
        if let Err(errno) = unsafe { munmap(self.base.as_ptr().cast(), self.len) } {
            tracing::warn!(at = ?self.base, len = self.len, %errno, "cannot unmap a buffer");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_buffer_is_zeroed_and_page_aligned() {
        let buffer = Buffer::new(Device::cpu(), 5000).unwrap();
        assert!(buffer.as_ptr().addr().is_multiple_of(4096));
        let mut bytes = [1; 5000];
        buffer.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|b| *b == 0));
    }

    #[test]
    fn ranges_and_alignment_are_checked() {
        let buffer = Buffer::new(Device::cpu(), 16).unwrap();
        let out = |r| matches!(r, Err(Error::OutOfBounds { .. }));
        assert!(out(buffer.write(9, &[0; 8])));
        assert!(out(buffer.read(u64::MAX, &mut [0; 2])));
        assert!(out(buffer.load_u64(9).map(drop)));
        assert!(matches!(buffer.load_u64(4), Err(Error::Misaligned { .. })));
        assert!(matches!(
            Buffer::new(Device::cpu(), 0),
            Err(Error::InvalidUsage { .. })
        ));
        assert!(Buffer::new(Device::cpu(), u64::MAX).is_err());
    }

    #[test]
    fn untouched_pages_of_a_huge_buffer_cost_nothing() {
        let buffer = Buffer::new(Device::cpu(), 1 << 40).unwrap();
        buffer.store_u64((1 << 40) - 8, 7).unwrap();
        assert_eq!(buffer.fetch_add_u64((1 << 40) - 8, u64::MAX).unwrap(), 7);
        assert_eq!(buffer.load_u64((1 << 40) - 8).unwrap(), 6);
    }
}
