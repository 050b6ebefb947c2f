// SPDX-License-Identifier: MIT
//! Allocations of a GPU's memory, as the driver hands them out.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{
    self, CUdevice_attribute_enum as Attribute, CUdeviceptr, CUmemAccess_flags_enum,
    CUmemAccessDesc, CUmemAllocationGranularity_flags_enum,
    CUmemAllocationHandleType_enum as HandleType, CUmemAllocationProp, CUmemAllocationType_enum,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType_enum,
};

use super::error::warn;
use super::{CudaError, Gpu};

/// How long clearing new memory may take.
const CLEARED_WITHIN: Duration = Duration::from_secs(30);

/// Pieces up to here are cut from a block that others share.
const SMALL: u64 = 256 << 10;
/// Where pieces start, so that no two share a line.
const ALIGNMENT: u64 = 256;

/// One allocation, mapped for every GPU that can reach it.
pub(super) struct Block {
    pub(super) gpu: Gpu,
    pub(super) address: CUdeviceptr,
    pub(super) size: u64,
    /// `None`: a plain allocation, for drivers that share no other kind.
    pub(super) handle: Option<CUmemGenericAllocationHandle>,
}

/// The block that small pieces are cut from. What is cut is not used again before the whole block
/// is free.
#[derive(Default)]
pub(super) struct Slab(Option<(Arc<Block>, u64)>);

/// Zeroed memory: its block, and where in it.
pub(super) fn allocate(gpu: Gpu, bytes: u64) -> Result<(Arc<Block>, u64), CudaError> {
    if bytes == 0 || bytes > 1 << 46 {
        let what = "memory of a GPU";
        return Err(CudaError::Size { what, bytes });
    }
    if bytes > SMALL {
        return Ok((Arc::new(Block::new(gpu, bytes)?), 0));
    }
    let mut slab = gpu
        .slab()
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let room = slab
        .0
        .as_ref()
        .filter(|(block, used)| used + bytes <= block.size);
    let (block, used) = match room {
        Some((block, used)) => (block.clone(), *used),
        None => (Arc::new(Block::new(gpu, SMALL)?), 0),
    };
    slab.0 = Some((block.clone(), (used + bytes).next_multiple_of(ALIGNMENT)));
    Ok((block, used))
}

pub(super) fn properties(gpu: Gpu) -> CUmemAllocationProp {
    // SAFETY: plain data, for which zeroes are valid.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = location(gpu.device());
    properties
}

fn location(device: sys::CUdevice) -> CUmemLocation {
    // SAFETY: plain data, for which zeroes are valid.
    let mut location: CUmemLocation = unsafe { std::mem::zeroed() };
    location.type_ = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device;
    location
}

impl Block {
    /// A zeroed allocation of at least `bytes`.
    fn new(gpu: Gpu, bytes: u64) -> Result<Self, CudaError> {
        let shares = gpu.attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        )?;
        let block = if shares != 0 {
            Self::mapped(gpu, bytes)?
        } else {
            Self::plain(gpu, bytes)?
        };
        let service = gpu.service()?;
        // SAFETY: the block is this one's, and nobody else knows of it yet.
        unsafe { service.fill(block.address, 0, block.size) }?;
        service.wait(CLEARED_WITHIN)?;
        Ok(block)
    }

    fn mapped(gpu: Gpu, bytes: u64) -> Result<Self, CudaError> {
        let _entered = gpu.enter()?;
        let properties = properties(gpu);
        let mut granularity = 0;
        // SAFETY: valid places to read from and write to.
        gpu.check("cuMemGetAllocationGranularity", unsafe {
            sys::cuMemGetAllocationGranularity(
                &mut granularity,
                &properties,
                CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
            )
        })?;
        let size = bytes.next_multiple_of((granularity as u64).max(1));
        let mut handle = 0;
        // SAFETY: as above.
        gpu.check("cuMemCreate", unsafe {
            sys::cuMemCreate(&mut handle, size as usize, &properties, 0)
        })?;
        let mapped = map(gpu, handle, size, granularity);
        if mapped.is_err() {
            // SAFETY: a handle of ours that is not mapped.
            warn(gpu.check("cuMemRelease", unsafe { sys::cuMemRelease(handle) }));
        }
        Ok(Self {
            gpu,
            address: mapped?,
            size,
            handle: Some(handle),
        })
    }

    fn plain(gpu: Gpu, bytes: u64) -> Result<Self, CudaError> {
        let _entered = gpu.enter()?;
        // Peers of other processes get the allocation as a whole.
        let size = bytes.next_multiple_of(2 << 20);
        let mut address = 0;
        // SAFETY: a valid place to write to.
        gpu.check("cuMemAlloc", unsafe {
            sys::cuMemAlloc_v2(&mut address, size as usize)
        })?;
        Ok(Self {
            gpu,
            address,
            size,
            handle: None,
        })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let _entered = self.gpu.enter();
        match self.handle {
            Some(handle) => {
                unmap(self.gpu, self.address, self.size);
                // SAFETY: a handle of ours, not used again.
                warn(
                    self.gpu
                        .check("cuMemRelease", unsafe { sys::cuMemRelease(handle) }),
                );
            }
            // SAFETY: an allocation of ours, not used again.
            None => warn(
                self.gpu
                    .check("cuMemFree", unsafe { sys::cuMemFree_v2(self.address) }),
            ),
        }
    }
}

/// Maps an allocation for every GPU that can reach it. The GPU's context is current.
pub(super) fn map(
    gpu: Gpu,
    handle: CUmemGenericAllocationHandle,
    size: u64,
    alignment: usize,
) -> Result<CUdeviceptr, CudaError> {
    let bytes = size as usize;
    let mut address = 0;
    // SAFETY: a valid place to write to.
    gpu.check("cuMemAddressReserve", unsafe {
        sys::cuMemAddressReserve(&mut address, bytes, alignment, 0, 0)
    })?;
    // SAFETY: a reserved range of as many bytes, and an allocation of them.
    let mapped = gpu.check("cuMemMap", unsafe {
        sys::cuMemMap(address, bytes, 0, handle, 0)
    });
    if mapped.is_err() {
        // SAFETY: reserved above, with nothing mapped.
        warn(gpu.check("cuMemAddressFree", unsafe {
            sys::cuMemAddressFree(address, bytes)
        }));
        mapped?;
    }
    let access: Vec<_> = gpu
        .reached_by()?
        .into_iter()
        .map(|device| CUmemAccessDesc {
            location: location(device),
            flags: CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        })
        .collect();
    // SAFETY: a mapped range, and as many descriptions as told.
    let accessible = gpu.check("cuMemSetAccess", unsafe {
        sys::cuMemSetAccess(address, bytes, access.as_ptr(), access.len())
    });
    if accessible.is_err() {
        unmap(gpu, address, size);
    }
    accessible.map(|()| address)
}

/// Takes back what [`map`] did. The GPU's context is current.
pub(super) fn unmap(gpu: Gpu, address: CUdeviceptr, size: u64) {
    let bytes = size as usize;
    // SAFETY: mapped by `map`; who held the address has gone.
    warn(gpu.check("cuMemUnmap", unsafe { sys::cuMemUnmap(address, bytes) }));
    // SAFETY: reserved by `map`.
    warn(gpu.check("cuMemAddressFree", unsafe {
        sys::cuMemAddressFree(address, bytes)
    }));
}
