// SPDX-License-Identifier: MIT
//! Memory of a GPU in other processes.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use cudarc::driver::sys::{
    self, CUmemAllocationGranularity_flags_enum, CUmemAllocationHandleType_enum as HandleType,
    CUmemGenericAllocationHandle, CUresult,
};

use super::block::{map, properties, unmap};
use super::error::warn;
use super::{CudaError, Gpu};

/// What another process of the same host needs to reach memory of a GPU.
#[derive(Debug)]
pub enum Export {
    /// An allocation as a file descriptor, to be handed over by a Unix socket.
    Fd {
        /// The allocation.
        fd: OwnedFd,
        /// Bytes of the whole allocation.
        block: u64,
        /// Where the memory starts in it.
        offset: u64,
    },
    /// The older way, for memory of `cudaMalloc`: plain bytes.
    Legacy {
        /// The driver's name of the allocation.
        handle: [u8; 64],
        /// Where the memory starts in it.
        offset: u64,
    },
}

/// What another process needs to reach `len` bytes at `address`, allocated by whomever: a file
/// descriptor where the allocation allows it, else the older handle.
///
/// # Errors
///
/// What the driver says; some memory can be shared in neither way.
///
/// # Safety
///
/// The range is memory of `gpu` that stays allocated during the call.
pub unsafe fn export(gpu: &Gpu, address: u64, len: u64) -> Result<Export, CudaError> {
    let _entered = gpu.enter()?;
    let pointer = std::ptr::with_exposed_provenance_mut::<c_void>(address as usize);
    let mut handle = 0;
    // SAFETY: a valid place to write to; any address may be asked about.
    let retained = unsafe { sys::cuMemRetainAllocationHandle(&mut handle, pointer) };
    if retained != CUresult::CUDA_SUCCESS {
        return export_legacy(*gpu, address);
    }
    let (mut base, mut size) = (0, 0);
    // SAFETY: valid places to write to, memory of the driver.
    let range = gpu.check("cuMemGetAddressRange", unsafe {
        sys::cuMemGetAddressRange_v2(&mut base, &mut size, address)
    });
    let exported = range.and_then(|()| {
        let (block, offset) = (size as u64, address - base);
        if offset + len > block {
            let what = "a range inside one allocation";
            return Err(CudaError::Size { what, bytes: len });
        }
        export_handle(*gpu, handle, block, offset)
    });
    // SAFETY: retained above.
    warn(gpu.check("cuMemRelease", unsafe { sys::cuMemRelease(handle) }));
    exported
}

/// Memory of a GPU as a DMA buffer of Linux, for other devices' drivers.
#[derive(Debug)]
pub struct DmaBuf {
    /// The buffer.
    pub fd: OwnedFd,
    /// Where the memory starts in it, in bytes.
    pub offset: u64,
}

/// `len` bytes at `address`, allocated by whomever, as a DMA buffer; `over_pcie` for a mapping that
/// other devices reach over PCIe where there is another way, too.
///
/// # Errors
///
/// What the driver says: GPU, driver or memory may not allow it.
///
/// # Safety
///
/// The range is memory of `gpu` that stays allocated during the call.
pub unsafe fn export_dma_buf(
    gpu: &Gpu,
    address: u64,
    len: u64,
    over_pcie: bool,
) -> Result<DmaBuf, CudaError> {
    let _entered = gpu.enter()?;
    // Whole pages of the host. An allocation has whole pages, too.
    let page = rustix::param::page_size() as u64;
    let start = address - address % page;
    let size = (address + len).next_multiple_of(page) - start;
    /// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE` of CUDA 12.8; older drivers refuse it.
    const OVER_PCIE: u64 = 1;
    let flags = if over_pcie { OVER_PCIE } else { 0 };
    let mut fd: i32 = -1;
    // SAFETY: for this type the driver writes an int; it checks the range.
    gpu.check("cuMemGetHandleForAddressRange", unsafe {
        sys::cuMemGetHandleForAddressRange(
            (&raw mut fd).cast(),
            start,
            size as usize,
            sys::CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
            flags,
        )
    })?;
    Ok(DmaBuf {
        // SAFETY: a new descriptor that the driver gave away.
        fd: unsafe { OwnedFd::from_raw_fd(fd) },
        offset: address - start,
    })
}

pub(super) fn export_handle(
    gpu: Gpu,
    handle: CUmemGenericAllocationHandle,
    block: u64,
    offset: u64,
) -> Result<Export, CudaError> {
    let _entered = gpu.enter()?;
    let mut fd: i32 = -1;
    // SAFETY: a live handle; for this type the driver writes an int.
    gpu.check("cuMemExportToShareableHandle", unsafe {
        sys::cuMemExportToShareableHandle(
            (&raw mut fd).cast(),
            handle,
            HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            0,
        )
    })?;
    // SAFETY: a new descriptor that the driver gave away.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(Export::Fd { fd, block, offset })
}

pub(super) fn export_legacy(gpu: Gpu, address: u64) -> Result<Export, CudaError> {
    let _entered = gpu.enter()?;
    let (mut base, mut size) = (0, 0);
    // SAFETY: valid places to write to, memory of the driver.
    gpu.check("cuMemGetAddressRange", unsafe {
        sys::cuMemGetAddressRange_v2(&mut base, &mut size, address)
    })?;
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: a valid place to write to, the start of an allocation.
    gpu.check("cuIpcGetMemHandle", unsafe {
        sys::cuIpcGetMemHandle(&mut handle, base)
    })?;
    Ok(Export::Legacy {
        handle: handle.reserved.map(|byte| byte as u8),
        offset: address - base,
    })
}

/// Memory of a GPU that another process exported. Its address is of this process alone. The
/// exporter may free the memory; the physical memory stays until this is dropped.
#[derive(Debug)]
pub struct ImportedMemory {
    gpu: Gpu,
    base: u64,
    offset: u64,
    len: u64,
    /// `None`: opened the older way.
    mapped: Option<(CUmemGenericAllocationHandle, u64)>,
}

impl ImportedMemory {
    /// `len` bytes from the start of what was exported, for `gpu` (which may be another than the
    /// exporter's) and its peers. An export of this same process is opened too if it is a file
    /// descriptor.
    ///
    /// # Errors
    ///
    /// [`CudaError::Size`] if the export has fewer bytes, and what the driver says: it refuses what
    /// is no export, and GPUs that cannot reach each other.
    pub fn open(gpu: &Gpu, export: Export, len: u64) -> Result<Self, CudaError> {
        let _entered = gpu.enter()?;
        match export {
            Export::Fd { fd, block, offset } => Self::open_fd(*gpu, &fd, block, offset, len),
            Export::Legacy { handle, offset } => {
                let handle = sys::CUipcMemHandle {
                    reserved: handle.map(|byte| byte as std::ffi::c_char),
                };
                let mut base = 0;
                // SAFETY: a valid place to write to; the driver checks the handle.
                gpu.check("cuIpcOpenMemHandle", unsafe {
                    sys::cuIpcOpenMemHandle_v2(
                        &mut base,
                        handle,
                        sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32,
                    )
                })?;
                let opened = Self {
                    gpu: *gpu,
                    base,
                    offset,
                    len,
                    mapped: None,
                };
                opened.measured(len)
            }
        }
    }

    /// With the length that the driver knows, from where it starts.
    fn measured(mut self, len: u64) -> Result<Self, CudaError> {
        let (mut base, mut size) = (0, 0);
        // SAFETY: valid places to write to, mapped memory.
        self.gpu.check("cuMemGetAddressRange", unsafe {
            sys::cuMemGetAddressRange_v2(&mut base, &mut size, self.base)
        })?;
        let block = (size as u64).saturating_sub(self.base - base);
        if self.offset.checked_add(len).is_none_or(|end| end > block) {
            let what = "a range inside the exported allocation";
            return Err(CudaError::Size { what, bytes: len });
        }
        self.len = block - self.offset;
        Ok(self)
    }

    fn open_fd(
        gpu: Gpu,
        fd: &OwnedFd,
        block: u64,
        offset: u64,
        len: u64,
    ) -> Result<Self, CudaError> {
        if offset.checked_add(len).is_none_or(|end| end > block) {
            let what = "a range inside the exported allocation";
            return Err(CudaError::Size { what, bytes: len });
        }
        let mut handle = 0;
        let raw = std::ptr::without_provenance_mut::<c_void>(fd.as_raw_fd() as usize);
        // SAFETY: for this type the descriptor itself stands in the pointer; the driver checks it.
        gpu.check("cuMemImportFromShareableHandle", unsafe {
            sys::cuMemImportFromShareableHandle(
                &mut handle,
                raw,
                HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            )
        })?;
        let properties = properties(gpu);
        let mut granularity = 0;
        // SAFETY: valid places to read from and write to.
        let known = gpu.check("cuMemGetAllocationGranularity", unsafe {
            sys::cuMemGetAllocationGranularity(
                &mut granularity,
                &properties,
                CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
            )
        });
        let mapped = known.and_then(|()| map(gpu, handle, block, granularity));
        if mapped.is_err() {
            // SAFETY: imported above, not mapped.
            warn(gpu.check("cuMemRelease", unsafe { sys::cuMemRelease(handle) }));
        }
        Ok(Self {
            gpu,
            base: mapped?,
            offset,
            len,
            mapped: Some((handle, block)),
        })
    }

    /// First byte.
    pub fn address(&self) -> u64 {
        self.base + self.offset
    }

    /// Bytes: as asked for, or of what was opened the older way, to the end of the allocation.
    #[expect(clippy::len_without_is_empty, reason = "memory is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// For which GPU it was opened.
    pub fn gpu(&self) -> Gpu {
        self.gpu
    }
}

impl Drop for ImportedMemory {
    fn drop(&mut self) {
        let _entered = self.gpu.enter();
        match self.mapped {
            Some((handle, block)) => {
                unmap(self.gpu, self.base, block);
                // SAFETY: imported by `open`.
                warn(
                    self.gpu
                        .check("cuMemRelease", unsafe { sys::cuMemRelease(handle) }),
                );
            }
            // SAFETY: opened by `open`.
            None => warn(self.gpu.check("cuIpcCloseMemHandle", unsafe {
                sys::cuIpcCloseMemHandle(self.base)
            })),
        }
    }
}
