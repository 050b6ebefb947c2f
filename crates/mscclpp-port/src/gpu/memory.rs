// SPDX-License-Identifier: MIT
//! Memory of GPUs, and host memory that GPUs reach.

use std::sync::{Arc, OnceLock};

#[cfg(feature = "ib")]
use mscclpp_device::cuda::GpuFacts;
use mscclpp_device::cuda::{self, CudaError, DeviceMemory, Export, Gpu, HostPages, PinnedMemory};

use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};

/// Turns the driver's errors into this crate's.
pub(crate) fn failed(device: Device, operation: &'static str) -> impl Fn(CudaError) -> Error {
    move |source| Error::Cuda {
        device,
        operation,
        source: Arc::new(source),
    }
}

/// Whether this machine has the GPU.
pub(crate) fn check(device: Device) -> Result<()> {
    let unavailable = |reason| Error::DeviceUnavailable { device, reason };
    let count = cuda::driver()
        .and_then(|()| cuda::gpu_count())
        .map_err(|error| unavailable(error.to_string()))?;
    match u32::try_from(device.id()) {
        Ok(ordinal) if ordinal < count => Ok(()),
        _ => Err(unavailable(format!(
            "the CUDA driver shows {count} GPUs, counted from 0, to this process"
        ))),
    }
}

/// The number of a device that is a GPU of this machine.
fn ordinal(device: Device) -> Result<u32> {
    if device.kind() != DeviceKind::Gpu {
        return Err(Error::DeviceUnavailable {
            device,
            reason: "it is no GPU".into(),
        });
    }
    check(device)?;
    // Checked: not negative.
    Ok(device.id().unsigned_abs())
}

/// The GPU of a device.
pub(crate) fn open(device: Device) -> Result<Gpu> {
    Gpu::open(ordinal(device)?).map_err(failed(device, "open the GPU"))
}

/// Where it is on PCIe.
#[cfg(feature = "ib")]
pub(crate) fn pci_address(device: Device) -> Result<crate::PciAddress> {
    let facts = GpuFacts::of(ordinal(device)?).map_err(failed(device, "tell where it is"))?;
    (facts.pci.parse()).map_err(|error: crate::PciAddressError| Error::DeviceUnavailable {
        device,
        reason: error.to_string(),
    })
}

/// Memory of a GPU.
pub(crate) struct GpuMemory {
    /// `None` for memory that somebody else has allocated.
    own: Option<DeviceMemory>,
    gpu: Gpu,
    device: Device,
    address: u64,
    len: u64,
}

impl GpuMemory {
    pub(crate) fn new(device: Device, bytes: u64) -> Result<Self> {
        let gpu = open(device)?;
        let own = DeviceMemory::new(&gpu, bytes).map_err(failed(device, "allocate memory"))?;
        Ok(Self {
            address: own.address(),
            own: Some(own),
            gpu,
            device,
            len: bytes,
        })
    }

    /// # Safety
    /// `address` must be memory of the device, valid for `bytes` bytes while this lives.
    pub(crate) unsafe fn foreign(device: Device, address: u64, bytes: u64) -> Result<Self> {
        let gpu = open(device)?;
        Ok(Self {
            own: None,
            gpu,
            device,
            address,
            len: bytes,
        })
    }

    pub(crate) fn device(&self) -> Device {
        self.device
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// `len` bytes from `offset` as a DMA buffer, for an HCA.
    #[cfg(feature = "ib")]
    pub(crate) fn export_dma_buf(
        &self,
        offset: u64,
        len: u64,
        over_pcie: bool,
    ) -> Result<cuda::DmaBuf> {
        // SAFETY: the range lies in this memory, which is valid while this lives.
        unsafe { cuda::export_dma_buf(&self.gpu, self.address + offset, len, over_pcie) }
            .map_err(failed(self.device, "export memory as a DMA buffer"))
    }

    /// What another process needs to reach `len` bytes from `offset`.
    pub(crate) fn export(&self, offset: u64, len: u64) -> Result<Export> {
        let exported = match &self.own {
            Some(own) => own.export().map(|export| match export {
                Export::Fd {
                    fd,
                    block,
                    offset: start,
                } => Export::Fd {
                    fd,
                    block,
                    offset: start + offset,
                },
                Export::Legacy {
                    handle,
                    offset: start,
                } => Export::Legacy {
                    handle,
                    offset: start + offset,
                },
            }),
            // SAFETY: the range lies in this memory, which is valid while this lives.
            None => unsafe { cuda::export(&self.gpu, self.address + offset, len) },
        };
        exported.map_err(failed(self.device, "export memory to other processes"))
    }
}

/// Host memory that all GPUs reach at its own address.
pub(crate) struct PinnedHost(PinnedMemory);

impl PinnedHost {
    pub(crate) fn new(device: Device, bytes: u64) -> Result<Self> {
        PinnedMemory::new(&open(device)?, bytes)
            .map(Self)
            .map_err(failed(device, "allocate pinned host memory"))
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }
}

/// Zeroed pages of host memory, which GPUs reach at their own address once they are shown to one.
pub(crate) struct VisiblePages {
    pages: HostPages,
    shown: OnceLock<()>,
}

impl VisiblePages {
    pub(crate) fn new(bytes: u64) -> Result<Self> {
        let pages = HostPages::new(bytes);
        Ok(Self {
            pages: pages.map_err(failed(Device::cpu(), "map memory for kernels"))?,
            shown: OnceLock::new(),
        })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.pages.as_ptr()
    }

    pub(crate) fn show_to(&self, device: Device) -> Result<()> {
        if device.kind() == DeviceKind::Cpu || self.shown.get().is_some() {
            return Ok(());
        }
        (self.pages.pin(&open(device)?))
            .map_err(failed(device, "let its kernels reach host memory"))?;
        self.shown.get_or_init(|| ());
        Ok(())
    }
}
