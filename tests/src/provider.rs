// SPDX-License-Identifier: MIT
//! Whose queues the GPU-initiated backends use: chosen once for a run.

use std::sync::OnceLock;

use clap::ValueEnum;
use mscclpp_port::Hca;
use mscclpp_softnic as softnic;

/// Who makes queues that kernels post to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Provider {
    /// A NIC in software.
    #[default]
    #[value(name = "soft")]
    Soft,
    /// NVIDIA's GPUNetIO, on a NIC in software.
    #[cfg(feature = "gpunetio")]
    #[value(name = "doca:soft0")]
    Doca,
}

static CHOSEN: OnceLock<Provider> = OnceLock::new();

impl Provider {
    /// Chooses this one for the whole process. The first choice counts.
    ///
    /// # Errors
    ///
    /// When there is none, why.
    pub fn choose(self) -> Result<(), String> {
        #[cfg(feature = "gpunetio")]
        if self == Self::Doca {
            let library = gpunetio_sys::Library::over_table();
            let library =
                library.map_err(|error| format!("--provider {}: {error}", self.name()))?;
            tracing::info!(version = %library.version(), "queues are made by it");
        }
        let _ = CHOSEN.set(self);
        Ok(())
    }

    /// The one that was chosen.
    pub fn chosen() -> Self {
        CHOSEN.get().copied().unwrap_or_default()
    }

    /// Its name, as the command line and reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Soft => "soft",
            #[cfg(feature = "gpunetio")]
            Self::Doca => "doca:soft0",
        }
    }

    /// The HCA that a NIC in software is.
    pub fn hca(self, nic: softnic::Device) -> Hca {
        match self {
            Self::Soft => Hca::from(nic),
            #[cfg(feature = "gpunetio")]
            Self::Doca => Hca::doca(nic),
        }
    }

    /// An HCA that is opened by its name.
    pub fn named(self) -> Hca {
        Hca::named(match self {
            Self::Soft => "soft0",
            #[cfg(feature = "gpunetio")]
            Self::Doca => "doca:soft0",
        })
    }

    /// Why a queue cannot lie in host memory, if so.
    pub fn host_queue_obstacle(self) -> Option<String> {
        match self {
            Self::Soft => None,
            #[cfg(feature = "gpunetio")]
            Self::Doca => Some("queues of doca:soft0 lie in the GPU's memory".to_owned()),
        }
    }
}
