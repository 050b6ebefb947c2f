// SPDX-License-Identifier: MIT
//! A NIC in software under the library: its pages and memory registrations.

mod cuda;
mod table;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;

use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::fmt::Display;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

use gpunetio_sys::Library;
use gpunetio_sys::result::DocaError;
use gpunetio_sys::seam::{Backend, Call, Intercepted};
use gpunetio_sys::verbs::{IbvPd, Mlx5Av, Mlx5Uar, Mlx5Umem};
use mscclpp_softnic as nic;
use nic::devx::{Devx, Port, UarKind};

use super::super::config::IbConfig;
use super::super::lock;
use super::super::policy::PortRecord;
use super::super::provider::{HcaAddress, QueuePlan};
use super::super::soft::SoftHca;
use super::DocaHca;
use super::calls::Ground;
use super::hca::Site;
use super::queue::PortUse;
use crate::buffer::Buffer;
use crate::device::{Device, DeviceKind};
use crate::error::Result;
use crate::random::random_u64;
use cuda::DeviceMemory;

/// Told of each call of the library to what it stands on; `true` fails the call.
pub(crate) type Watch = Arc<dyn Fn(Call) -> bool + Send + Sync>;

impl DocaHca {
    /// An InfiniBand port of a NIC in software. Nobody looks its LID up: packets go by GID.
    pub(crate) const INFINI_BAND: Port = Port::InfiniBand { lid: 1 };

    /// A NIC in software, under the library: `doca:soft0`. The library has to be there now.
    pub(crate) fn soft(
        name: String,
        device: nic::Device,
        port: Port,
        watch: Option<Watch>,
    ) -> Result<Self> {
        let nic = Arc::new(SoftHca::new(device)?);
        let devx = Devx::new(nic.device().clone(), port);
        devx.use_domain(nic.domain());
        let rest = Arc::clone(&nic) as _;
        let site = Box::new(SoftSite { nic, devx, watch });
        let hca = Self::new(name, rest, site);
        hca.library()?;
        Ok(hca)
    }
}

/// A NIC in software, which takes the commands of a driver.
struct SoftSite {
    nic: Arc<SoftHca>,
    devx: Devx,
    watch: Option<Watch>,
}

impl Site for SoftSite {
    fn library(&self) -> Result<&'static Library, gpunetio_sys::Error> {
        Library::over_table()
    }

    fn ground(&self, plan: &QueuePlan, rings: &Buffer) -> Result<Arc<dyn Ground>> {
        let (nic, devx) = (Arc::clone(&self.nic), self.devx.clone());
        let watch = self.watch.clone();
        Ok(Arc::new(SoftGround::new(
            nic,
            devx,
            plan.device,
            rings,
            watch,
        )))
    }

    fn port(&self, _: &IbConfig) -> Result<PortUse> {
        let lid = match self.devx.port() {
            Port::InfiniBand { lid } => Some(lid),
            _ => None,
        };
        let device = self.devx.device();
        Ok(PortUse {
            number: 1,
            gid: HcaAddress(device.address().0),
            gid_index: 0,
            mtu: None,
            max_message: device.capabilities().max_message,
            record: PortRecord {
                ethernet: lid.is_none(),
                lid: lid.unwrap_or(0),
                needs_gid: true,
                first_packet: random_u64()? as u32 & 0xff_ffff,
            },
        })
    }
}

/// A NIC in software, as one queue's calls of the library find it.
struct SoftGround {
    nic: Arc<SoftHca>,
    devx: Devx,
    device: Device,
    memory: DeviceMemory,
    domain: Box<IbvPd>,
    /// What dma-bufs were made of, by descriptor, until they are registered.
    exported: Mutex<HashMap<c_int, (u64, u64)>>,
    reason: Mutex<Option<String>>,
    watch: Option<Watch>,
}

// SAFETY: the pointer in `domain` is a name, and never followed.
unsafe impl Send for SoftGround {}
// SAFETY: as for Send; all that changes is behind locks.
unsafe impl Sync for SoftGround {}

/// What the library has a pointer to: the part that it reads comes first.
#[repr(C)]
struct SoftUmem {
    public: Mlx5Umem,
    umem: nic::devx::Umem,
}

#[repr(C)]
struct SoftUar {
    public: Mlx5Uar,
    uar: nic::devx::Uar,
}

struct SoftAddress {
    av: Mlx5Av,
}

impl SoftGround {
    /// For a queue in `rings`, to which kernels of `device` post.
    fn new(
        nic: Arc<SoftHca>,
        devx: Devx,
        device: Device,
        rings: &Buffer,
        watch: Option<Watch>,
    ) -> Self {
        Self {
            nic,
            devx,
            device,
            memory: DeviceMemory::new(device, rings),
            domain: Box::new(IbvPd {
                context: ptr::without_provenance_mut(0x1000),
                handle: 1,
            }),
            exported: Mutex::default(),
            reason: Mutex::default(),
            watch,
        }
    }

    fn failed(&self, why: impl Display) -> DocaError {
        *lock(&self.reason) = Some(why.to_string());
        DocaError::DRIVER
    }

    fn done(&self, result: Result<(), impl Display>) -> DocaError {
        match result {
            Ok(()) => DocaError::SUCCESS,
            Err(why) => self.failed(why),
        }
    }

    /// Memory that the library names: of the device, or else its own.
    fn range(&self, address: u64, bytes: u64) -> Result<nic::MemoryRange> {
        match self.memory.find(address, bytes) {
            Some((buffer, offset)) => self.nic.range(&buffer, offset, bytes),
            None => {
                let start = ptr::with_exposed_provenance_mut(address as usize);
                // SAFETY: the library registers memory that it has allocated, and frees it after it
                // has let go of the queue in it and deregistered it.
                Ok(unsafe { nic::HostMemory::range(start, bytes as usize, Arc::new(())) })
            }
        }
    }

    /// # Safety
    /// `umem` is a place for a pointer.
    unsafe fn register(&self, address: u64, bytes: u64, umem: *mut *mut Mlx5Umem) -> DocaError {
        let range = match self.range(address, bytes) {
            Ok(range) => range,
            Err(error) => return self.failed(error),
        };
        match self.devx.register(range) {
            Ok(registered) => {
                let public = Mlx5Umem {
                    id: registered.number(),
                };
                let made = Box::new(SoftUmem {
                    public,
                    umem: registered,
                });
                // SAFETY: the caller's promise.
                unsafe { umem.write(Box::into_raw(made).cast()) };
                DocaError::SUCCESS
            }
            Err(refusal) => self.failed(refusal),
        }
    }

    /// A page of doorbells that threads of the device can ring.
    fn page(&self, kind: UarKind) -> Result<nic::devx::Uar, String> {
        let text = |error: &dyn Display| error.to_string();
        match self.device.kind() {
            DeviceKind::Cpu => self.devx.allocate_page(kind).map_err(|e| text(&e)),
            DeviceKind::Gpu => {
                // It is mapped for GPUs from the start: host memory is no I/O memory, and the driver
                // refuses to map it as such.
                let page = Buffer::pinned(self.device, nic::DoorbellPage::BYTES);
                let page = page.map_err(|e| text(&e))?;
                let range = self.nic.range(&page, 0, page.len()).map_err(|e| text(&e))?;
                let page = self.devx.allocate_page_in(kind, range);
                page.map_err(|e| text(&e))
            }
        }
    }
}

impl Ground for SoftGround {
    fn domain(&self) -> NonNull<IbvPd> {
        NonNull::from(&*self.domain)
    }

    fn gpu(&self) -> CString {
        // A name that nobody looks at: the table's functions know which device is meant.
        c"0000:00:00.0".into()
    }

    fn read(&self, address: u64, to: &mut [u8]) -> Result<()> {
        self.memory.read(address, to)
    }

    fn call(&self, call: &mut dyn FnMut() -> DocaError) -> DocaError {
        call()
    }

    fn reason(&self) -> Option<String> {
        lock(&self.reason).take()
    }

    fn backend(self: Arc<Self>) -> Option<Arc<dyn Backend>> {
        Some(match self.watch.clone() {
            None => self,
            Some(watch) => Arc::new(Intercepted::new(self, move |call| watch(call))),
        })
    }
}
