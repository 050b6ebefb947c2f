// SPDX-License-Identifier: MIT
//! Memory of a GPU.

use std::fmt;
use std::sync::Arc;

use super::block::{self, Block};
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
