// SPDX-License-Identifier: MIT
//! What a machine's kernel says of its PCIe tree, GPUs and RDMA devices, read from sysfs and /proc.
//!
//! All reading goes through one [`Root`], so that tests read recorded trees. Nothing here asks a
//! driver or a library.

mod gpu;
mod pci;
mod rdma;
#[cfg(all(test, not(loom)))]
pub(crate) mod recorded;
mod root;

pub(crate) use gpu::GpuFunction;
pub use pci::{Distance, PciAddress, PciAddressError};
pub(crate) use pci::{Function, NVIDIA, Nodes, distance};
pub(crate) use rdma::{RdmaDevice, RdmaPort};
pub(crate) use root::Root;
