// SPDX-License-Identifier: MIT
//! A kernel, for either executor.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use mscclpp_device::executor::{self, HostKernel, LaunchDims};
use mscclpp_port::{Device, DeviceKind};

/// A kernel: of `tests/kernels/`, linked into this program for CPU threads, and with its source for
/// GPUs; or for GPUs alone.
pub(super) struct Kernel {
    /// Its name.
    pub(super) name: &'static str,
    /// For CPU threads.
    pub(super) host: Option<HostKernel>,
    /// The file that defines it.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "for GPUs alone"))]
    pub(super) source: Source,
}

/// A file with kernels, or a header of one.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "for GPUs alone"))]
pub(super) struct Source {
    /// Its name.
    pub(super) name: &'static str,
    /// What is in it.
    pub(super) text: &'static str,
}

/// A file of this package's directory of kernels.
macro_rules! source {
    ($file:literal) => {
        $crate::kernels::kernel::Source {
            name: $file,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/", $file)),
        }
    };
}
pub(super) use source;

/// The headers that the sources share, beside those of `mscclpp-device`.
#[cfg(feature = "cuda")]
pub(super) const HEADERS: [Source; 2] = [source!("clock.hpp"), source!("report.hpp")];

/// Declares a kernel: its host entry, its arguments and the file that defines it.
macro_rules! kernel {
    ($(#[$doc:meta])* $name:ident = $entry:ident($args:ty) in $file:literal) => {
        $(#[$doc])*
        pub(super) static $name: $crate::kernels::kernel::Kernel = {
            unsafe extern "C" {
                fn $entry(context: *const std::ffi::c_void);
            }
            $crate::kernels::kernel::Kernel {
                name: stringify!($entry),
                // SAFETY: MSCCLPP_KERNEL made the entry, and it is linked into this program. It is
                // launched by this module alone, with arguments of the size that the executor checks
                // and the layout of the C++ struct beside it; what they name by address is in the
                // launch's `kept` until the kernel has ended, and is written atomically or by one
                // thread at a time.
                host: Some(unsafe {
                    mscclpp_device::executor::HostKernel::new(stringify!($entry), $entry)
                }),
                source: $crate::kernels::kernel::source!($file),
            }
        };
    };
}
pub(super) use kernel;

/// A launched kernel.
pub(super) enum Running {
    /// On CPU threads.
    Host(executor::Running),
    /// On a GPU.
    #[cfg(feature = "cuda")]
    Cuda(super::cuda::Running),
}

impl Kernel {
    /// Starts it on a device, and tells when that was: what has to be done once is done before.
    pub(super) fn launch<T: Copy + Send + 'static>(
        &'static self,
        device: Device,
        dims: LaunchDims,
        args: T,
    ) -> anyhow::Result<(Instant, Running)> {
        match device.kind() {
            DeviceKind::Cpu => {
                let host = (self.host).with_context(|| format!("{} is for GPUs", self.name))?;
                let started = Instant::now();
                Ok((started, Running::Host(host.launch(dims, args)?)))
            }
            #[cfg(feature = "cuda")]
            DeviceKind::Gpu => {
                let (started, running) = super::cuda::launch(self, device, dims, args)?;
                Ok((started, Running::Cuda(running)))
            }
            other => anyhow::bail!("nothing here runs kernels on {other:?}"),
        }
    }
}

impl Running {
    /// Waits until all threads have returned.
    pub(super) fn join(&self, timeout: Duration) -> anyhow::Result<()> {
        match self {
            Self::Host(running) => Ok(running.join(timeout)?),
            #[cfg(feature = "cuda")]
            Self::Cuda(running) => running.join(timeout),
        }
    }

    /// Whether all threads have returned.
    pub(super) fn is_finished(&self) -> bool {
        match self {
            Self::Host(running) => running.is_finished(),
            #[cfg(feature = "cuda")]
            Self::Cuda(running) => running.is_finished(),
        }
    }
}
