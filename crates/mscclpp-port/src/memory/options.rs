// SPDX-License-Identifier: MIT
//! What a registration is to be.

use super::Access;
use crate::transport::{TransportFlags, TransportKind};

/// Over which transports peers may reach a registration, and what they may do.
///
/// ```
/// use mscclpp_port::{MemoryOptions, TransportKind};
///
/// let options = MemoryOptions {
///     transports: TransportKind::Ethernet | TransportKind::IB0,
///     ..MemoryOptions::default()
/// };
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryOptions {
    /// The transports: Ethernet by default. CUDA IPC is for buffers on GPUs, and gives peers full
    /// access, which ends when they drop the memory or exit, not with the registration. For each of `IB0` to `IB7` the memory is registered with
    /// the HCA that it stands for, in whose order of arrival writes may land: see
    /// [`Connection`](crate::Connection).
    pub transports: TransportFlags,
    /// What peers may do; everything by default.
    pub access: Access,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            transports: TransportKind::Ethernet.into(),
            access: Access::FULL,
        }
    }
}
