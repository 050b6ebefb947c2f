// SPDX-License-Identifier: MIT
//! What a record says to processes that reach a GPU's memory themselves, over CUDA IPC.

use serde::{Deserialize, Serialize};

use crate::gpu::Keep;

/// Names a process; random.
pub(crate) type ProcessId = [u8; 16];

/// How to reach a registration of a GPU's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IpcRecord {
    /// The owner's host, where it has to be reached from, and its process, which needs no mapping.
    pub(crate) host: u64,
    pub(crate) process: ProcessId,
    /// UUID of the GPU.
    pub(crate) gpu: String,
    /// Whether it is a word that nothing but peers' signals writes, zero at first.
    pub(crate) for_signals: bool,
    /// Where the registration starts in the allocation that is shared.
    pub(crate) offset: u64,
    pub(crate) handle: IpcHandle,
}

/// What stands for an allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum IpcHandle {
    /// A file descriptor, handed over by a Unix socket of the owner.
    Descriptor {
        socket: [u8; 16],
        /// The link to ask by.
        id: [u8; 16],
        /// Bytes of the allocation.
        block: u64,
    },
    /// The driver's own name of it, 64 bytes.
    Legacy([[u8; 32]; 2]),
}

impl IpcRecord {
    /// Refuses what nobody says of `end` bytes of a registration.
    pub(super) fn check(&self, end: u64) -> Result<(), &'static str> {
        if self.gpu.len() > 64 {
            return Err("its GPU's name is too long");
        }
        let last = self.offset.checked_add(end);
        let fits = match self.handle {
            IpcHandle::Descriptor { block, .. } => last.is_some_and(|last| last <= block),
            IpcHandle::Legacy(_) => last.is_some(),
        };
        if fits {
            Ok(())
        } else {
            Err("its range passes the end of the allocation that is shared")
        }
    }
}

/// A registration as copies of this process reach it.
#[derive(Clone)]
#[cfg_attr(
    not(feature = "cuda"),
    expect(dead_code, reason = "without GPUs nothing is mapped")
)]
pub(crate) struct Mapped {
    /// Its first byte.
    pub(crate) address: u64,
    pub(crate) for_signals: bool,
    /// What the address is valid with.
    pub(crate) keep: Keep,
}
