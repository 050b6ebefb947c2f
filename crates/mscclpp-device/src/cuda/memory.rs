// SPDX-License-Identifier: MIT
//! Memory of a GPU, and host memory that GPUs reach.

use std::ffi::c_void;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use cudarc::driver::sys;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::block::{self, Block};
use super::error::warn;
use super::share::{self, Export};
use super::{CudaError, Gpu};

/// Zeroed memory of a GPU, aligned to 256 bytes, freed on drop. Every GPU of the process that can
/// reach it may use it.
///
/// Allocating and freeing wait for no kernel. Small pieces share a block of the driver with others,
/// and a block is freed with the last piece of it.
pub struct DeviceMemory {
    block: Arc<Block>,
    offset: u64,
    len: u64,
}

impl DeviceMemory {
    /// `bytes` bytes of `gpu`'s memory.
    ///
    /// # Errors
    ///
    /// [`CudaError::Size`] for none, and what the driver says.
    pub fn new(gpu: &Gpu, bytes: u64) -> Result<Self, CudaError> {
        let (block, offset) = block::allocate(*gpu, bytes)?;
        Ok(Self {
            block,
            offset,
            len: bytes,
        })
    }

    /// First byte, the same for host code, this GPU and its peers.
    pub fn address(&self) -> u64 {
        self.block.address + self.offset
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "memory is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whose memory it is.
    pub fn gpu(&self) -> Gpu {
        self.block.gpu
    }

    /// What another process needs to reach it. Whoever imports it reaches the whole block that it is
    /// part of.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn export(&self) -> Result<Export, CudaError> {
        match self.block.handle {
            Some(handle) => {
                share::export_handle(self.block.gpu, handle, self.block.size, self.offset)
            }
            None => share::export_legacy(self.block.gpu, self.address()),
        }
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("gpu", &self.block.gpu.ordinal())
            .field("at", &format_args!("{:#x}", self.address()))
            .field("len", &self.len)
            .finish()
    }
}

/// Host memory of the caller's, pinned and reached by all GPUs at the host's address until dropped.
///
/// A registration takes tens of microseconds and waits for no kernel.
pub struct HostRegistration {
    gpu: Gpu,
    start: *mut c_void,
}

// SAFETY: a registration belongs to the process, not to a thread.
unsafe impl Send for HostRegistration {}
// SAFETY: as above; nothing is done through a shared reference.
unsafe impl Sync for HostRegistration {}

impl HostRegistration {
    /// Registers `len` bytes at `start`, both multiples of the page size.
    ///
    /// # Errors
    ///
    /// What the driver says, for example that a page is registered already;
    /// [`CudaError::NotUnified`].
    ///
    /// # Safety
    ///
    /// The range is mapped memory of this process until the registration is dropped, and may be
    /// written by GPUs meanwhile.
    pub unsafe fn new(gpu: &Gpu, start: *mut u8, len: u64) -> Result<Self, CudaError> {
        let start = start.cast::<c_void>();
        let _entered = gpu.enter()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the caller's promise.
        gpu.check("cuMemHostRegister", unsafe {
            sys::cuMemHostRegister_v2(start, len as usize, flags)
        })?;
        let registration = Self { gpu: *gpu, start };
        let mut device = 0;
        // SAFETY: a valid place to write to, and registered memory.
        gpu.check("cuMemHostGetDevicePointer", unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut device, start, 0)
        })?;
        if device != start.expose_provenance() as u64 {
            return Err(CudaError::NotUnified { gpu: gpu.ordinal() });
        }
        Ok(registration)
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        let _entered = self.gpu.enter();
        // SAFETY: registered by `new`.
        warn(self.gpu.check("cuMemHostUnregister", unsafe {
            sys::cuMemHostUnregister(self.start)
        }));
    }
}

/// Zeroed pages of host memory that all GPUs reach at the host's address, freed on drop.
pub struct PinnedMemory {
    // Before the pages.
    _registration: HostRegistration,
    pages: Pages,
}

impl PinnedMemory {
    /// `bytes` bytes at the start of a page.
    ///
    /// # Errors
    ///
    /// [`CudaError::Size`], [`CudaError::System`], and as [`HostRegistration::new`].
    pub fn new(gpu: &Gpu, bytes: u64) -> Result<Self, CudaError> {
        let pages = Pages::new(bytes)?;
        // SAFETY: the pages live longer than the registration, and are reached by address only.
        let registration =
            unsafe { HostRegistration::new(gpu, pages.start.as_ptr(), pages.mapped as u64) }?;
        Ok(Self {
            _registration: registration,
            pages,
        })
    }

    /// First byte. Valid while this lives; GPUs may write at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pages.start.as_ptr()
    }

    /// First byte, for device code.
    pub fn address(&self) -> u64 {
        self.as_ptr().expose_provenance() as u64
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "memory is never empty")]
    pub fn len(&self) -> u64 {
        self.pages.len
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedMemory")
            .field("at", &self.as_ptr())
            .field("len", &self.pages.len)
            .finish()
    }
}

/// An anonymous mapping.
struct Pages {
    start: NonNull<u8>,
    mapped: usize,
    len: u64,
}

// SAFETY: plain memory, owned by this value; no thread owns it.
unsafe impl Send for Pages {}
// SAFETY: as above; reached by address only.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(len: u64) -> Result<Self, CudaError> {
        let size = CudaError::Size {
            what: "host memory",
            bytes: len,
        };
        if len == 0 || len > isize::MAX as u64 / 2 {
            return Err(size);
        }
        let mapped = (len as usize).next_multiple_of(rustix::param::page_size());
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|errno| CudaError::System {
            operation: "map host memory",
            errno,
        })?;
        let start = NonNull::new(start.cast()).ok_or(size)?;
        Ok(Self { start, mapped, len })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and this value is the only owner.
        if let Err(errno) = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) } {
            tracing::warn!(at = ?self.start, %errno, "cannot unmap pinned memory");
        }
    }
}
