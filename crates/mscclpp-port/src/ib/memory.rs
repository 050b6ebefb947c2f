// SPDX-License-Identifier: MIT
//! Memory that an HCA reaches. A GPU's is reached by one of several ways, which are tried in turn; an
//! error tells why each failed.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::gpu_queue::HcaRegistration;
use crate::verbs::{AccessFlags, MemoryRegion, ProtectionDomain, VerbsError};

/// What is registered: a range of a buffer, which was checked.
struct Range<'a> {
    domain: &'a Arc<ProtectionDomain>,
    buffer: &'a Buffer,
    offset: u64,
    len: u64,
    access: AccessFlags,
    owner: Arc<dyn Any + Send + Sync>,
}

/// Registers a range of a buffer, which was checked.
pub(super) fn register(
    domain: &Arc<ProtectionDomain>,
    buffer: &Buffer,
    (offset, len): (u64, u64),
    access: AccessFlags,
    owner: Arc<dyn Any + Send + Sync>,
) -> Result<MemoryRegion, VerbsError> {
    let range = Range {
        domain,
        buffer,
        offset,
        len,
        access,
        owner,
    };
    if buffer.gpu().is_none() {
        return range.as_memory();
    }
    #[cfg(feature = "cuda")]
    let dma_buf: [Way<'_>; 2] = [
        ("data-direct dma-buf", Box::new(|| range.as_dma_buf(true))),
        ("dma-buf", Box::new(|| range.as_dma_buf(false))),
    ];
    #[cfg(not(feature = "cuda"))]
    let dma_buf: [Way<'_>; 0] = [];
    let peermem: Way<'_> = (
        "nvidia_peermem",
        Box::new(|| range.as_memory().map_err(|error| error.to_string())),
    );
    let ways = dma_buf.into_iter().chain([peermem]);
    let (way, region) = first(ways).map_err(|tried| range.refused(tried))?;
    let device = domain.device().name();
    tracing::debug!(hca = device, len, way, "memory of a GPU is registered");
    Ok(region)
}

/// A way to register, with its name. An error is its reason.
type Way<'a, T = MemoryRegion> = (&'static str, Box<dyn FnOnce() -> Result<T, String> + 'a>);

/// The first way that leads somewhere, or why none does.
fn first<'a, T>(ways: impl Iterator<Item = Way<'a, T>>) -> Result<(&'static str, T), String> {
    let mut reasons = Vec::new();
    for (name, way) in ways {
        match way() {
            Ok(made) => return Ok((name, made)),
            Err(reason) => reasons.push(format!("{name}: {reason}")),
        }
    }
    Err(reasons.join("; "))
}

impl Range<'_> {
    fn refused(&self, reason: impl Into<String>) -> VerbsError {
        VerbsError::Region {
            device: self.domain.device().name().into(),
            len: self.len,
            reason: reason.into(),
        }
    }

    fn size(&self) -> Result<usize, VerbsError> {
        usize::try_from(self.len).map_err(|_| self.refused("it passes the address space"))
    }

    /// As memory of the process; a GPU's if a module makes it look so.
    fn as_memory(&self) -> Result<MemoryRegion, VerbsError> {
        // Inside the buffer, so the offset fits an address.
        let base = NonNull::new(self.buffer.as_ptr().wrapping_add(self.offset as usize));
        let base = base.ok_or_else(|| self.refused("it has no address"))?;
        let (access, owner) = (self.access, Arc::clone(&self.owner));
        // SAFETY: the range lies in the buffer, which lives as long as its owner here, and which this
        // program touches by atomic accesses, foreign code and the operating system only.
        unsafe { MemoryRegion::register(self.domain, base, self.size()?, access, owner) }
    }

    /// As a DMA buffer that the GPU's driver exports.
    #[cfg(feature = "cuda")]
    fn as_dma_buf(&self, data_direct: bool) -> Result<MemoryRegion, String> {
        use std::os::fd::AsFd;

        use crate::verbs::{DmaBuf, DmaBufRoute};

        let device = self.domain.device();
        if data_direct && !device.has_data_direct() {
            return Err("the HCA has no data-direct function".into());
        }
        let memory = self.buffer.gpu().ok_or("it is no memory of a GPU")?;
        let exported = memory.export_dma_buf(self.offset, self.len, data_direct);
        let exported = exported.map_err(|error| error.to_string())?;
        let buffer = DmaBuf {
            fd: exported.fd.as_fd(),
            offset: exported.offset,
            len: self.size().map_err(|error| error.to_string())?,
            address: self.buffer.address() + self.offset,
        };
        let route = if data_direct {
            DmaBufRoute::DataDirect
        } else {
            DmaBufRoute::Device
        };
        let (access, owner) = (self.access, Arc::clone(&self.owner));
        // SAFETY: as in `as_memory`.
        let region =
            unsafe { MemoryRegion::register_dmabuf(self.domain, buffer, route, access, owner) };
        region.map_err(|error| error.to_string())
    }
}

impl HcaRegistration for MemoryRegion {
    fn key(&self) -> u32 {
        self.rkey()
    }

    fn local_key(&self) -> u32 {
        self.lkey()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ib_ways_to_register_are_tried_in_turn_and_each_reason_is_told() {
        let way = |name, result: Result<u32, &str>| -> Way<'static, u32> {
            let result = result.map_err(String::from);
            (name, Box::new(move || result))
        };
        let ways = [way("a", Err("no a")), way("b", Ok(7)), way("c", Ok(8))];
        assert_eq!(first(ways.into_iter()), Ok(("b", 7)));
        let none = [way("a", Err("no a")), way("b", Err("no b"))];
        assert_eq!(first(none.into_iter()), Err("a: no a; b: no b".into()));
    }
}
