// SPDX-License-Identifier: MIT
//! Where device code runs and where its memory lives.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::gpu;

/// Kind of a [`Device`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DeviceKind {
    /// Device code runs on CPU threads; its memory is host memory.
    Cpu,
    /// Device code runs on a GPU; its memory is that GPU's.
    Gpu,
}

/// A device that runs kernels: its kind, and the index of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Device {
    kind: DeviceKind,
    id: i32,
}

impl Device {
    /// The CPU of this machine: kernels run on its threads, their memory is host memory.
    pub const fn cpu() -> Self {
        Self {
            kind: DeviceKind::Cpu,
            id: -1,
        }
    }

    /// GPU number `id`, counted from 0 as the CUDA driver counts them.
    ///
    /// Naming a GPU costs nothing and touches no driver; whoever allocates on it gets
    /// [`Error::DeviceUnavailable`](crate::Error::DeviceUnavailable) if that cannot be.
    pub const fn gpu(id: i32) -> Self {
        Self {
            kind: DeviceKind::Gpu,
            id,
        }
    }

    /// Kind of the device.
    pub const fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Index of the GPU, or -1 for the CPU.
    pub const fn id(&self) -> i32 {
        self.id
    }

    /// Where the GPU is on PCIe, for [`Hca::nearest`](crate::Hca::nearest). Asks the CUDA driver, and
    /// does not open the GPU.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`](crate::Error::DeviceUnavailable) for the CPU, and as
    /// [`check_available`](Self::check_available).
    #[cfg(feature = "ib")]
    pub fn pci_address(&self) -> Result<crate::PciAddress> {
        gpu::pci_address(*self)
    }

    /// Fails unless this build and machine can allocate on the device.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`](crate::Error::DeviceUnavailable) says what is missing: the feature `cuda`, the driver, or the GPU.
    pub fn check_available(&self) -> Result<()> {
        match self.kind {
            DeviceKind::Cpu => Ok(()),
            DeviceKind::Gpu => gpu::check(*self),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DeviceKind::Cpu => f.write_str("CPU"),
            DeviceKind::Gpu => write!(f, "GPU {}", self.id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_refused_by_name() {
        assert!(Device::cpu().check_available().is_ok());
        let error = Device::gpu(1003).check_available().unwrap_err();
        assert!(error.to_string().contains("GPU 1003"), "{error}");
        #[cfg(feature = "ib")]
        for device in [Device::cpu(), Device::gpu(1003)] {
            let error = device.pci_address().unwrap_err();
            assert!(error.to_string().contains(&device.to_string()), "{error}");
        }
        // Not without telling what to do.
        let told = ["feature", "driver"].map(|word| error.to_string().contains(word));
        assert!(told.contains(&true), "{error}");
    }
}
