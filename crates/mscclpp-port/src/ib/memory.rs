// SPDX-License-Identifier: MIT
//! Memory that an HCA reaches.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::gpu_queue::HcaRegistration;
use crate::verbs::{AccessFlags, MemoryRegion, ProtectionDomain, VerbsError};

/// Registers a range of a buffer, which was checked.
pub(super) fn register(
    domain: &Arc<ProtectionDomain>,
    buffer: &Buffer,
    (offset, len): (u64, u64),
    access: AccessFlags,
    owner: Arc<dyn Any + Send + Sync>,
) -> Result<MemoryRegion, VerbsError> {
    let refused = |reason: &str| VerbsError::Region {
        device: domain.device().name().into(),
        len,
        reason: reason.into(),
    };
    let size = usize::try_from(len).map_err(|_| refused("it passes the address space"))?;
    // Inside the buffer, so the offset fits an address.
    let base = NonNull::new(buffer.as_ptr().wrapping_add(offset as usize));
    let base = base.ok_or_else(|| refused("it has no address"))?;
    // SAFETY: the range lies in the buffer, which lives as long as its owner here, and which this
    // program touches by atomic accesses, foreign code and the operating system only.
    unsafe { MemoryRegion::register(domain, base, size, access, owner) }
}

impl HcaRegistration for MemoryRegion {
    fn key(&self) -> u32 {
        self.rkey()
    }

    fn local_key(&self) -> u32 {
        self.lkey()
    }
}
