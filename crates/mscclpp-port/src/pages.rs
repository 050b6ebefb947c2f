// SPDX-License-Identifier: MIT
//! Whole pages of host memory: for buffers, and for words that the host shares with kernels.

use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::error::{Error, Result};

/// An anonymous, zeroed mapping, unmapped on drop.
pub(crate) struct Pages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory, owned by this value alone and reached only through the
// atomic accesses of `shared` and the operating system; no thread owns it.
unsafe impl Send for Pages {}
// SAFETY: as above: shared access is what those accesses are for.
unsafe impl Sync for Pages {}

impl Pages {
    pub(crate) fn new(bytes: u64) -> Result<Self> {
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

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// As asked for.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: base and len are what mmap returned and was given; this value is the only owner.
        if let Err(errno) = unsafe { munmap(self.base.as_ptr().cast(), self.len) } {
            tracing::warn!(at = ?self.base, len = self.len, %errno, "cannot unmap a buffer");
        }
    }
}
