// SPDX-License-Identifier: MIT
//! An mlx5 device under the library, which reaches it by its own linking.
//!
//! Nothing of this has ever run: where it was written there was no such device.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;

use gpunetio_sys::Library;
use gpunetio_sys::result::DocaError;
use gpunetio_sys::verbs::IbvPd;
use mscclpp_device::cuda::Gpu;

use super::super::config::IbConfig;
use super::super::provider::{GpuQueueProvider, QueuePlan};
use super::DocaHca;
use super::calls::Ground;
use super::hca::Site;
use super::queue::PortUse;
use crate::buffer::Buffer;
use crate::device::{Device, DeviceKind};
use crate::env::env;
use crate::error::{Error, Result};
use crate::ib::IbHca;

impl DocaHca {
    /// An mlx5 device that libibverbs opened.
    pub(crate) fn real(hca: IbHca) -> Self {
        let hca = Arc::new(hca);
        let rest: Arc<dyn GpuQueueProvider> = Arc::clone(&hca) as _;
        Self::new(rest.name().into(), rest, Box::new(RealSite(hca)))
    }
}

/// An opened mlx5 device.
struct RealSite(Arc<IbHca>);

impl Site for RealSite {
    fn library(&self) -> Result<&'static Library, gpunetio_sys::Error> {
        Library::over_system()
    }

    fn ground(&self, plan: &QueuePlan, _: &Buffer) -> Result<Arc<dyn Ground>> {
        if plan.device.kind() != DeviceKind::Gpu {
            return Err(Error::InvalidUsage {
                operation: "create an endpoint",
                detail: format!(
                    "queues of {} lie in a GPU's memory, and {} was asked for",
                    self.0.name(),
                    plan.device
                ),
            });
        }
        let name = plan.device.pci_address()?.to_string();
        Ok(Arc::new(RealGround {
            hca: Arc::clone(&self.0),
            device: plan.device,
            gpu: crate::gpu::open(plan.device)?,
            name: CString::new(name).unwrap_or_default(),
        }))
    }

    fn port(&self, config: &IbConfig) -> Result<PortUse> {
        let gid_index = config.gid_index.or(env().gid_index);
        let port = self.0.port_for_kernels(config.port, gid_index)?;
        Ok(PortUse {
            number: port.number.into(),
            gid: port.gid,
            gid_index: u8::try_from(port.gid_index).unwrap_or(u8::MAX),
            mtu: Some(port.mtu),
            max_message: port.max_message,
            record: port.record,
        })
    }
}

/// The device, as one queue's calls of the library find it.
struct RealGround {
    hca: Arc<IbHca>,
    device: Device,
    gpu: Gpu,
    name: CString,
}

impl Ground for RealGround {
    fn domain(&self) -> NonNull<IbvPd> {
        self.hca.raw_domain().cast()
    }

    fn gpu(&self) -> CString {
        self.name.clone()
    }

    fn read(&self, address: u64, to: &mut [u8]) -> Result<()> {
        // SAFETY: the library says that it has so many bytes there, and nothing is kept of it here.
        let memory = unsafe { Buffer::of_gpu_memory(self.device, address, to.len() as u64) }?;
        memory.read(0, to)
    }

    fn call(&self, call: &mut dyn FnMut() -> DocaError) -> DocaError {
        // CUDA's run-time library takes the context that is current.
        match self.gpu.enter() {
            Ok(_entered) => call(),
            Err(error) => {
                tracing::warn!(%error, "a GPU's context cannot be entered");
                DocaError::DRIVER
            }
        }
    }

    fn reason(&self) -> Option<String> {
        None
    }
}
