// SPDX-License-Identifier: MIT
//! Memory that can be registered.

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result, check_range};
use crate::gpu::{GpuMemory, PinnedHost};
use crate::pages::Pages;
use crate::shared;

/// Zeroed, page-aligned memory of a device, shared by its clones and freed with the last of them.
/// (A GPU's is aligned to 256 bytes at least.)
///
/// Kernels, peers and other threads may access the memory at any time. All accessors therefore
/// copy: an aligned piece of up to 8 bytes is never torn, and nothing else is promised about bytes
/// that someone writes meanwhile. Order between such a writer and a reader comes from a semaphore
/// or from [`load_u64`](Self::load_u64) and [`store_u64`](Self::store_u64).
///
/// To a GPU's memory the accessors copy on a stream of their own, which no kernel can hold up, and
/// wait for it: some 10 microseconds a call, and [`Error::Timeout`] after 10 seconds.
///
/// Pages of host memory are taken up when they are first touched, so a large, sparsely used buffer
/// is cheap. Pinned memory and a GPU's is taken up at once.
///
/// A registration keeps its buffer alive; a raw pointer taken with [`as_ptr`](Self::as_ptr)
/// does not.
///
/// ```
/// use mscclpp_port::{Buffer, Device};
///
/// # fn main() -> Result<(), mscclpp_port::Error> {
/// let buffer = Buffer::new(Device::cpu(), 4096)?;
/// buffer.store_u64(8, 42)?;
/// assert_eq!((buffer.load_u64(0)?, buffer.load_u64(8)?), (0, 42));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Buffer {
    memory: Memory,
    device: Device,
}

#[derive(Clone)]
enum Memory {
    Host(Arc<Pages>),
    /// Host memory that GPUs reach.
    Pinned(Arc<PinnedHost>),
    Gpu(Arc<GpuMemory>),
}

impl Buffer {
    /// Allocates `bytes` zeroed bytes of `device`'s memory.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if `bytes` is 0 or more than the address space;
    /// [`Error::DeviceUnavailable`] for a device that this build or machine does not have;
    /// [`Error::Io`] or [`Error::Cuda`] if there is no such room.
    pub fn new(device: Device, bytes: u64) -> Result<Self> {
        let memory = match device.kind() {
            DeviceKind::Cpu => Memory::Host(Arc::new(Pages::new(bytes)?)),
            DeviceKind::Gpu => {
                device.check_available()?;
                check_size(bytes)?;
                Memory::Gpu(Arc::new(GpuMemory::new(device, bytes)?))
            }
        };
        Ok(Self { memory, device })
    }

    /// Allocates `bytes` zeroed bytes of host memory that kernels of `device` reach, at the same
    /// address as the host: for the CPU any host memory, for a GPU pinned memory, which all GPUs of
    /// the process reach. The buffer counts as memory of the CPU.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn pinned(device: Device, bytes: u64) -> Result<Self> {
        let memory = match device.kind() {
            DeviceKind::Cpu => Memory::Host(Arc::new(Pages::new(bytes)?)),
            DeviceKind::Gpu => {
                device.check_available()?;
                check_size(bytes)?;
                Memory::Pinned(Arc::new(PinnedHost::new(device, bytes)?))
            }
        };
        Ok(Self {
            memory,
            device: Device::cpu(),
        })
    }

    /// Memory of a GPU that somebody else has allocated, as a buffer; it may start anywhere in its
    /// allocation. Whoever gets a registration of it, or a copy from or to it, may use it as long
    /// as a clone of the buffer or a registration lives.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if `bytes` is 0, or `device` the CPU; [`Error::DeviceUnavailable`].
    ///
    /// # Safety
    /// `bytes` bytes at `address` must be memory of `device`, which stays allocated until the last
    /// clone of the buffer is dropped and all that was posted to and from its registrations is done.
    pub unsafe fn of_gpu_memory(device: Device, address: u64, bytes: u64) -> Result<Self> {
        check_size(bytes)?;
        if device.kind() != DeviceKind::Gpu || address.checked_add(bytes).is_none() {
            return Err(Error::InvalidUsage {
                operation: "take GPU memory over",
                detail: format!("{bytes} bytes at {address:#x} of {device} is no such memory"),
            });
        }
        // SAFETY: the caller's promise.
        let memory = unsafe { GpuMemory::foreign(device, address, bytes) }?;
        Ok(Self {
            memory: Memory::Gpu(Arc::new(memory)),
            device,
        })
    }

    /// The size in bytes, as asked for.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> u64 {
        match &self.memory {
            Memory::Host(pages) => pages.len() as u64,
            Memory::Pinned(pinned) => pinned.len(),
            Memory::Gpu(memory) => memory.len(),
        }
    }

    /// The device whose memory this is.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// The first byte. Valid for [`len`](Self::len) bytes while a clone or a registration of this
    /// buffer lives. A GPU's memory is there for kernels only: the host may not touch it by this.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        match &self.memory {
            Memory::Host(pages) => pages.base().as_ptr(),
            Memory::Pinned(pinned) => pinned.as_ptr(),
            Memory::Gpu(memory) => ptr::with_exposed_provenance_mut(memory.address() as usize),
        }
    }

    /// The address of the first byte, for arguments of kernels.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.as_ptr().expose_provenance() as u64
    }

    /// The GPU's memory, if it is that of a GPU.
    pub(crate) fn gpu(&self) -> Option<&Arc<GpuMemory>> {
        match &self.memory {
            Memory::Gpu(memory) => Some(memory),
            Memory::Host(_) | Memory::Pinned(_) => None,
        }
    }

    /// Whether GPUs reach it, by [`address`](Self::address).
    #[cfg(feature = "cuda")]
    pub(crate) fn is_reached_by_gpus(&self) -> bool {
        !matches!(self.memory, Memory::Host(_))
    }

    /// Copies out `to.len()` bytes from `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]. For a GPU's memory: [`Error::Cuda`], [`Error::Timeout`].
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        let from = self.at("buffer read", offset, to.len() as u64)?;
        if let Some(memory) = self.gpu() {
            return memory.read(offset, to);
        }
        // SAFETY: `at` checked the range; the memory lives as long as self.
        unsafe { shared::load(to, from) };
        Ok(())
    }

    /// Copies `from` in at `offset`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        let to = self.at("buffer write", offset, from.len() as u64)?;
        if let Some(memory) = self.gpu() {
            return memory.write(offset, from);
        }
        // SAFETY: `at` checked the range; the memory lives as long as self.
        unsafe { shared::store(to, from) };
        Ok(())
    }

    /// Loads the word at `offset` with acquire ordering: what was written before the matching
    /// release (a signal, [`store_u64`](Self::store_u64)) is visible afterwards.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`Error::Misaligned`] unless `offset` is a multiple of 8.
    pub fn load_u64(&self, offset: u64) -> Result<u64> {
        let at = self.word_at("buffer load", offset)?;
        if let Some(memory) = self.gpu() {
            return memory.load_u64(offset);
        }
        // SAFETY: `word_at` checked range and alignment; the memory lives as long as self.
        Ok(unsafe { shared::word(at) }.load(Ordering::Acquire))
    }

    /// Stores `value` at `offset` with release ordering.
    ///
    /// # Errors
    /// As [`load_u64`](Self::load_u64).
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<()> {
        let at = self.word_at("buffer store", offset)?;
        if let Some(memory) = self.gpu() {
            return memory.store_u64(offset, value);
        }
        // SAFETY: as in `load_u64`.
        unsafe { shared::word(at) }.store(value, Ordering::Release);
        Ok(())
    }

    /// Adds `value` to the word at `offset`, modulo 2^64, with acquire and release ordering, and
    /// returns what it held. Atomic with respect to peers' signals and accumulates.
    ///
    /// # Errors
    /// As [`load_u64`](Self::load_u64); [`Error::InvalidUsage`] for a GPU's memory, where the host
    /// has no atomics.
    pub fn fetch_add_u64(&self, offset: u64, value: u64) -> Result<u64> {
        let at = self.word_at("buffer add", offset)?;
        if self.gpu().is_some() {
            return Err(Error::InvalidUsage {
                operation: "add to a word atomically",
                detail: format!("it is memory of {}", self.device),
            });
        }
        // SAFETY: as in `load_u64`.
        Ok(unsafe { shared::word(at) }.fetch_add(value, Ordering::AcqRel))
    }

    fn at(&self, what: &'static str, offset: u64, len: u64) -> Result<*mut u8> {
        check_range(what, offset, len, self.len())?;
        // The range lies inside the memory, so the offset fits an address.
        Ok(self.as_ptr().wrapping_add(offset as usize))
    }

    fn word_at(&self, what: &'static str, offset: u64) -> Result<*mut u8> {
        let at = self.at(what, offset, 8)?;
        if at.addr().is_multiple_of(8) {
            Ok(at)
        } else {
            Err(Error::Misaligned { what, offset })
        }
    }
}

/// A size that a GPU may be asked for.
fn check_size(bytes: u64) -> Result<()> {
    if bytes == 0 || bytes > isize::MAX as u64 {
        return Err(Error::InvalidUsage {
            operation: "allocate a buffer",
            detail: format!("{bytes} bytes is no size for a buffer"),
        });
    }
    Ok(())
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
