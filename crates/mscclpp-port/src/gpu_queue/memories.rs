// SPDX-License-Identifier: MIT
//! The table of memories that kernels name by id, in device memory.

use mscclpp_device::abi::{MAX_MEMORIES, QueueMemory};

use super::end::Ends;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::Result;
use crate::memory::RegisteredMemory;

const ENTRY: u64 = size_of::<QueueMemory>() as u64;

/// What each memory id of a service means on one connection. An entry is all zero where the
/// connection cannot name the memory: an empty placeholder, another peer's, or one that is not
/// registered for the connection's HCA.
pub(crate) struct MemoryTable {
    entries: Buffer,
    ends: Ends,
}

impl MemoryTable {
    pub(crate) fn new(ends: Ends, device: Device) -> Result<Self> {
        let entries = Buffer::new(device, u64::from(MAX_MEMORIES) * ENTRY)?;
        Ok(Self { entries, ends })
    }

    /// Enters a memory under its id. Kernels may be reading other entries.
    pub(crate) fn set(&self, id: u32, memory: &RegisteredMemory) -> Result<()> {
        let QueueMemory {
            address,
            size,
            key,
            access,
        } = memory.on_queue(&self.ends);
        let at = u64::from(id) * ENTRY;
        self.entries.store_u64(at, address)?;
        self.entries.store_u64(at + 8, size)?;
        // The word with the access bits last: until then the entry names nothing.
        let last = u64::from(key) | u64::from(access) << 32;
        self.entries.store_u64(at + 16, last)
    }

    /// Where kernels find it. Valid while this lives.
    pub(crate) fn address(&self) -> u64 {
        self.entries.address()
    }
}
