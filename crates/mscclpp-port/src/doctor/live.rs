// SPDX-License-Identifier: MIT
//! What files do not say: libraries, drivers and programs, asked on this machine.

use std::collections::BTreeMap;
use std::ffi::OsString;

use mscclpp_ib_sys::{LoadError, Mlx5dv, Verbs};
use rustix::fs::Access;

use super::compiler;
use crate::env::env;
use crate::ib::port::Wish;
use crate::machine::{GpuFunction, RdmaDevice, Root};
use crate::verbs::{Device, Mtu};

/// The answers. Tests give their own.
pub(super) struct Live {
    /// Its file, or why it cannot be used.
    pub(super) ibverbs: Result<String, String>,
    pub(super) mlx5: Result<String, String>,
    /// File and version.
    pub(super) nvrtc: Result<String, String>,
    pub(super) cuda: Result<Cuda, String>,
    /// The compiler's own words.
    pub(super) compiler: Result<String, String>,
    /// What libibverbs says, by name.
    pub(super) hcas: BTreeMap<String, Result<AskedHca, String>>,
    /// Device files that are there and that this process may not open.
    pub(super) denied: Vec<String>,
    /// Variables that begin as this project's do, by name.
    pub(super) environment: BTreeMap<String, OsString>,
    /// How a GID would be chosen.
    pub(super) wish: Wish,
    /// The HCAs that `MSCCLPP_HCA_DEVICES` names.
    pub(super) named: Vec<String>,
}

/// The CUDA driver.
#[derive(Default)]
pub(super) struct Cuda {
    pub(super) version: (i32, i32),
    pub(super) gpus: Vec<CudaGpu>,
}

/// A GPU that it shows.
#[derive(Clone)]
pub(super) struct CudaGpu {
    pub(super) pci: String,
    pub(super) name: String,
    pub(super) dma_buf: bool,
}

/// What libibverbs says of a device.
pub(super) struct AskedHca {
    pub(super) atomics: bool,
    /// By number.
    pub(super) ports: BTreeMap<u8, AskedPort>,
}

pub(super) struct AskedPort {
    pub(super) active_mtu: Option<Mtu>,
    pub(super) max_mtu: Option<Mtu>,
    pub(super) grh_required: bool,
}

impl Live {
    /// Asks everybody.
    pub(super) fn ask(root: &Root) -> Self {
        let ibverbs = Verbs::get().map(|verbs| verbs.file().to_owned());
        let hcas = match &ibverbs {
            Ok(_) => (root.names("/sys/class/infiniband").into_iter())
                .map(|name| (name.clone(), ask_hca(&name)))
                .collect(),
            Err(_) => BTreeMap::new(),
        };
        Self {
            ibverbs: ibverbs.map_err(why),
            mlx5: Mlx5dv::get()
                .map(|mlx5| mlx5.file().to_owned())
                .map_err(why),
            nvrtc: ask_nvrtc(),
            cuda: ask_cuda(),
            compiler: compiler::ask(),
            hcas,
            denied: device_files(root)
                .into_iter()
                .filter(|file| root.exists(file))
                .filter(|file| {
                    rustix::fs::access(file, Access::READ_OK | Access::WRITE_OK).is_err()
                })
                .collect(),
            environment: std::env::vars_os()
                .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
                .filter(|(name, _)| name.starts_with(super::environment::PREFIX))
                .collect(),
            wish: Wish {
                port: None,
                gid_index: env().gid_index,
                // As a context's connections decide it.
                ipv6: mscclpp_bootstrap::interface::choose(None).is_ok_and(|ip| ip.is_ipv6()),
            },
            named: env().hca_devices.clone(),
        }
    }
}

/// Every device file that some channel would open.
fn device_files(root: &Root) -> Vec<String> {
    let rdma = RdmaDevice::all(root).into_iter();
    let rdma = rdma.filter_map(|device| device.uverbs);
    let mut files: Vec<String> = rdma.map(|name| super::rdma::device_file(&name)).collect();
    files.extend(super::gpu::device_files(&GpuFunction::all(root)));
    files
}

/// Without what to do about it: that is the check's.
fn why(error: LoadError) -> String {
    match error {
        LoadError::NotFound { tried, .. } => tried.join("; "),
        error => error.to_string(),
    }
}

fn ask_hca(name: &str) -> Result<AskedHca, String> {
    let device = Device::open(name).map_err(|error| error.to_string())?;
    let mut ports = BTreeMap::new();
    for number in 1..=device.capabilities().ports {
        let port = device.port(number).map_err(|error| error.to_string())?;
        ports.insert(
            number,
            AskedPort {
                active_mtu: port.active_mtu,
                max_mtu: port.max_mtu,
                grh_required: port.grh_required,
            },
        );
    }
    Ok(AskedHca {
        atomics: device.capabilities().atomics,
        ports,
    })
}

#[cfg(not(feature = "cuda"))]
fn ask_nvrtc() -> Result<String, String> {
    Err("this build lacks the feature `cuda`".into())
}

#[cfg(not(feature = "cuda"))]
fn ask_cuda() -> Result<Cuda, String> {
    Err("this build lacks the feature `cuda`".into())
}

#[cfg(feature = "cuda")]
fn ask_nvrtc() -> Result<String, String> {
    use mscclpp_device::nvrtc::{Nvrtc, NvrtcError};
    let nvrtc = Nvrtc::load().map_err(|error| match error {
        NvrtcError::NotFound { tried } => tried.join("; "),
        error => error.to_string(),
    })?;
    let (major, minor) = nvrtc.version().map_err(|error| error.to_string())?;
    Ok(format!("{}, of CUDA {major}.{minor}", nvrtc.file()))
}

#[cfg(feature = "cuda")]
fn ask_cuda() -> Result<Cuda, String> {
    use mscclpp_device::cuda::{CudaError, GpuFacts, driver_version, gpu_count};
    let ask = || -> Result<Cuda, CudaError> {
        let version = driver_version()?;
        let mut gpus = Vec::new();
        for ordinal in 0..gpu_count()? {
            let facts = GpuFacts::of(ordinal)?;
            gpus.push(CudaGpu {
                pci: facts.pci,
                name: facts.name,
                dma_buf: facts.dma_buf,
            });
        }
        Ok(Cuda { version, gpus })
    };
    ask().map_err(|error| error.to_string())
}
