// SPDX-License-Identifier: MIT
//! The memories of GPUs, as a NIC in software reaches them.

use std::collections::BTreeMap;
#[cfg(feature = "cuda")]
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use mscclpp_softnic::NicMemory;
#[cfg(feature = "cuda")]
use mscclpp_softnic::{
    Access, AccessId, AccessResult, Export, Imported, MemoryFault, MemoryRange, Submitted,
};

use super::lock;
use crate::device::Device;
use crate::error::Result;

/// One a GPU, made when it is first needed, for one NIC: an access is known by a number of its NIC.
#[derive(Default)]
pub(super) struct GpuMemories(Mutex<BTreeMap<i32, Arc<dyn NicMemory>>>);

impl GpuMemories {
    /// The memory of a GPU.
    pub(super) fn of(&self, device: Device) -> Result<Arc<dyn NicMemory>> {
        let mut opened = lock(&self.0);
        if let Some(memory) = opened.get(&device.id()) {
            return Ok(Arc::clone(memory));
        }
        let memory = open(device)?;
        opened.insert(device.id(), Arc::clone(&memory));
        Ok(memory)
    }
}

#[cfg(not(feature = "cuda"))]
fn open(device: Device) -> Result<Arc<dyn NicMemory>> {
    device.check_available()?;
    unreachable!("no GPU is available without the feature")
}

#[cfg(feature = "cuda")]
fn open(device: Device) -> Result<Arc<dyn NicMemory>> {
    use super::staged::StagedMemory;
    use crate::buffer::Buffer;
    use crate::env::env;
    use crate::gpu::{self, Lane};

    /// Bytes of pinned memory that copies go through.
    const STAGING: u64 = 8 << 20;

    let staging = Buffer::pinned(device, STAGING)?;
    let copies = OnLane {
        // An HCA belongs to no job.
        lane: Lane::new(device, env().deadlines.gpu_copy)?,
        staging: Arc::new(staging.clone()),
    };
    Ok(Arc::new(GpuMemory {
        copies: StagedMemory::new(copies, staging),
        gpu: gpu::open(device)?,
    }))
}

/// A GPU's memory, which processes of this host map.
#[cfg(feature = "cuda")]
struct GpuMemory {
    copies: super::staged::StagedMemory<OnLane>,
    gpu: mscclpp_device::cuda::Gpu,
}

#[cfg(feature = "cuda")]
impl NicMemory for GpuMemory {
    fn in_order(&self) -> bool {
        self.copies.in_order()
    }

    unsafe fn submit(&self, id: AccessId, access: Access) -> Submitted {
        // SAFETY: the caller's promise.
        unsafe { self.copies.submit(id, access) }
    }

    fn complete(&self) -> Option<(AccessId, AccessResult)> {
        self.copies.complete()
    }

    fn export(&self, range: &MemoryRange) -> Result<Option<Export>, MemoryFault> {
        super::lent::export(range)
    }

    fn import(
        &self,
        description: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
        length: u64,
    ) -> Result<Option<Imported>, MemoryFault> {
        super::lent::import(&self.gpu, description, descriptor, length).map(Some)
    }
}

#[cfg(feature = "cuda")]
struct OnLane {
    lane: crate::gpu::Lane,
    /// What every copy uses: should the copies never end, it is never freed.
    staging: crate::gpu::Keep,
}

#[cfg(feature = "cuda")]
impl super::staged::Copies for OnLane {
    unsafe fn copy(&mut self, to: u64, from: u64, len: u64) -> Result<()> {
        self.lane.keep(Arc::clone(&self.staging));
        // SAFETY: the caller's promise.
        unsafe { self.lane.copy(to, from, len) }
    }

    unsafe fn write_u64(&mut self, at: u64, value: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.lane.write_u64(at, value) }
    }

    fn mark(&mut self) -> Result<u64> {
        self.lane.mark()
    }

    fn reached(&self) -> u64 {
        self.lane.reached()
    }

    fn check(&self) -> Result<()> {
        self.lane.check()
    }
}
