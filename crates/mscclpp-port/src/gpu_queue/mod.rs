// SPDX-License-Identifier: MIT
//! Connections whose posts are made by kernels: GPU-initiated channels.
//!
//! The host makes a queue pair whose rings lie where kernels reach them, brings it up together with
//! the other end, and hands its [device handle](mscclpp_device::abi::QueueDeviceHandle) out. From
//! then on it only watches.
//!
//! - [`provider`]: the seam to HCAs; [`soft`] implements it over NICs in software, which reach GPUs'
//!   memory by copies ([`gpu_memory`]), and each other's of one host by mappings of it (`lent`).
//!   With the feature `gpunetio` NVIDIA's library makes queues (`doca`).
//! - [`policy`]: which endpoints there can be and which fit together.
//! - [`handshake`], over [`control`](crate::control): both ends come up together or fail together.
//! - [`end`], [`watcher`](crate::watcher): what becomes of a connection after that.
//! - [`memories`]: what kernels name by memory id.

mod config;
#[cfg(feature = "gpunetio")]
mod doca;
mod end;
mod fault;
mod gpu_memory;
mod handshake;
mod hca;
mod layout;
#[cfg(feature = "cuda")]
mod lent;
mod memories;
mod policy;
mod provider;
mod soft;
mod soft_queue;
#[cfg(any(feature = "cuda", all(test, not(loom))))]
mod staged;
mod transport;
mod turns;

pub use config::{IbConfig, IbMode, QueuePlacement};
#[cfg(feature = "gpunetio")]
pub(crate) use doca::DocaHca;
#[cfg(all(test, not(loom), feature = "gpunetio-soft"))]
pub(crate) use doca::{Watch, tests};
pub(crate) use end::{Ends, QueueEnd};
pub(crate) use handshake::{CONTROL, Handshake, test};
pub use hca::Hca;
pub(crate) use hca::Hcas;
pub(crate) use memories::MemoryTable;
#[cfg(any(feature = "ib", all(test, not(loom))))]
pub(crate) use policy::PortRecord;
pub(crate) use policy::{QueueRecord, check_local, check_made, hca_for, join};
#[cfg(feature = "ib")]
pub(crate) use provider::Mtu;
#[cfg(all(test, not(loom)))]
pub(crate) use provider::QueueFault;
pub(crate) use provider::{
    GpuQueueProvider, HcaQueue, HcaRegistration, Path, QueuePlan, WriteOrdering,
};
#[cfg(any(feature = "ib", all(test, not(loom))))]
pub(crate) use provider::{HcaAddress, HcaCapabilities, QueueAddress, WireStream};
#[cfg(all(test, not(loom)))]
pub(crate) use soft::SoftHca;
pub(crate) use transport::GpuTransport;

use crate::sync::lock_plain as lock;
