// SPDX-License-Identifier: MIT
//! A GPU and its context.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Mutex, OnceLock, PoisonError};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute_enum as Attribute, CUresult,
};

use super::block::Slab;
use super::error::{check, warn};
use super::{CudaError, GpuFacts, Stream, gpu_count};
use crate::nvrtc::Arch;

/// A GPU of this machine, with its primary context, which other CUDA libraries of the process use
/// too. Cheap to copy; any thread may use it.
///
/// Once opened it stays open until the process ends. GPUs that can reach each other's memory do so
/// as soon as both are open.
#[derive(Clone, Copy)]
pub struct Gpu(&'static Inner);

struct Inner {
    ordinal: u32,
    device: CUdevice,
    context: CUcontext,
    service: OnceLock<Stream>,
    slab: Mutex<Slab>,
}

// SAFETY: the context's handle may be used by any thread; the rest is.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// While it lives, the GPU's context is the calling thread's. Dropping it gives back the one that
/// was.
pub struct Entered {
    gpu: u32,
    // The context is a thread's.
    _thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: pops what `enter` pushed on this thread.
        let popped = unsafe { sys::cuCtxPopCurrent_v2(&mut context) };
        // At the end of the process the driver may have gone first.
        if popped != CUresult::CUDA_ERROR_DEINITIALIZED {
            warn(check(self.gpu, "cuCtxPopCurrent", popped));
        }
    }
}

impl Gpu {
    /// GPU number `ordinal`, counted from 0 as the driver counts them.
    ///
    /// # Errors
    ///
    /// [`CudaError::NoGpu`], those of [`driver`](super::driver), and what the driver says.
    pub fn open(ordinal: u32) -> Result<Self, CudaError> {
        static OPEN: Mutex<BTreeMap<u32, Gpu>> = Mutex::new(BTreeMap::new());
        let count = gpu_count()?;
        let wanted = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
        let Some(wanted) = wanted else {
            return Err(CudaError::NoGpu {
                wanted: ordinal.to_string(),
                count,
            });
        };
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = open.get(&ordinal) {
            return Ok(*gpu);
        }
        let mut device = 0;
        // SAFETY: valid places to write to, the driver is initialised, the ordinal exists.
        check(ordinal, "cuDeviceGet", unsafe {
            sys::cuDeviceGet(&mut device, wanted)
        })?;
        let mut context = std::ptr::null_mut();
        // SAFETY: as above.
        check(ordinal, "cuDevicePrimaryCtxRetain", unsafe {
            sys::cuDevicePrimaryCtxRetain(&mut context, device)
        })?;
        let gpu = Self(Box::leak(Box::new(Inner {
            ordinal,
            device,
            context,
            service: OnceLock::new(),
            slab: Mutex::new(Slab::default()),
        })));
        for other in open.values() {
            gpu.meet(other)?;
        }
        open.insert(ordinal, gpu);
        Ok(gpu)
    }

    /// The GPU with a UUID as `nvidia-smi -L` prints it (`GPU-…` or, of a part of one, `MIG-…`).
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn by_uuid(uuid: &str) -> Result<Self, CudaError> {
        let bare = |uuid: &str| {
            let uuid = uuid.to_ascii_lowercase();
            uuid.trim_start_matches("gpu-")
                .trim_start_matches("mig-")
                .to_owned()
        };
        let count = gpu_count()?;
        for ordinal in 0..count {
            let gpu = Self::open(ordinal)?;
            if bare(&gpu.uuid()?) == bare(uuid) {
                return Ok(gpu);
            }
        }
        Err(CudaError::NoGpu {
            wanted: uuid.to_owned(),
            count,
        })
    }

    /// Its number.
    pub fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    /// Its UUID, as `GPU-…`.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn uuid(&self) -> Result<String, CudaError> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: a valid place to write to and a device of the driver.
        self.check("cuDeviceGetUuid", unsafe {
            sys::cuDeviceGetUuid_v2(&mut uuid, self.0.device)
        })?;
        let hex: String = uuid
            .bytes
            .iter()
            .map(|byte| format!("{:02x}", byte.cast_unsigned()))
            .collect();
        Ok(format!(
            "GPU-{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        ))
    }

    /// Its product name.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn name(&self) -> Result<String, CudaError> {
        Ok(GpuFacts::of(self.ordinal())?.name)
    }

    /// Its architecture.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn arch(&self) -> Result<Arch, CudaError> {
        let major = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(Arch::from((major * 10 + minor).cast_unsigned()))
    }

    /// The NUMA node it is attached to; `None` where the system does not say, as in most virtual
    /// machines.
    pub fn numa_node(&self) -> Option<u32> {
        let bus = GpuFacts::of(self.ordinal()).ok()?.pci;
        let path = format!("/sys/bus/pci/devices/{bus}/numa_node");
        // -1 where nobody knows.
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// Whether its kernels and copies can reach the memory of `peer`.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn can_reach(&self, peer: &Self) -> Result<bool, CudaError> {
        if self.ordinal() == peer.ordinal() {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: a valid integer to write to and two devices of the driver.
        self.check("cuDeviceCanAccessPeer", unsafe {
            sys::cuDeviceCanAccessPeer(&mut can, self.0.device, peer.0.device)
        })?;
        Ok(can != 0)
    }

    /// Makes its context the calling thread's until the guard is dropped.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn enter(&self) -> Result<Entered, CudaError> {
        // SAFETY: a context that lives as long as the process.
        self.check("cuCtxPushCurrent", unsafe {
            sys::cuCtxPushCurrent_v2(self.0.context)
        })?;
        Ok(Entered {
            gpu: self.ordinal(),
            _thread: PhantomData,
        })
    }

    /// The stream for what is done to its memory once, such as clearing it.
    pub(super) fn service(&self) -> Result<&'static Stream, CudaError> {
        if let Some(stream) = self.0.service.get() {
            return Ok(stream);
        }
        let stream = Stream::bare_for_copies(self)?;
        Ok(self.0.service.get_or_init(|| stream))
    }

    pub(super) fn slab(&self) -> &'static Mutex<Slab> {
        &self.0.slab
    }

    pub(super) fn device(&self) -> CUdevice {
        self.0.device
    }

    /// Every device whose kernels can reach its memory, itself the first.
    pub(super) fn reached_by(&self) -> Result<Vec<CUdevice>, CudaError> {
        let mut devices = vec![self.0.device];
        for ordinal in 0..gpu_count()? {
            let (mut device, mut can) = (0, 0);
            // SAFETY: valid integers to write to, an ordinal that exists.
            self.check("cuDeviceGet", unsafe {
                sys::cuDeviceGet(&mut device, ordinal.cast_signed())
            })?;
            if device == self.0.device {
                continue;
            }
            // SAFETY: as above, two devices of the driver.
            self.check("cuDeviceCanAccessPeer", unsafe {
                sys::cuDeviceCanAccessPeer(&mut can, device, self.0.device)
            })?;
            if can != 0 {
                devices.push(device);
            }
        }
        Ok(devices)
    }

    pub(super) fn attribute(&self, attribute: Attribute) -> Result<i32, CudaError> {
        let mut value = 0;
        // SAFETY: a valid integer to write to and a device of the driver.
        self.check("cuDeviceGetAttribute", unsafe {
            sys::cuDeviceGetAttribute(&mut value, attribute, self.0.device)
        })?;
        Ok(value)
    }

    pub(super) fn check(&self, call: &'static str, result: CUresult) -> Result<(), CudaError> {
        check(self.ordinal(), call, result)
    }

    /// Lets two open GPUs reach each other's memory, where they can.
    fn meet(&self, other: &Self) -> Result<(), CudaError> {
        for (here, there) in [(self, other), (other, self)] {
            if !here.can_reach(there)? {
                continue;
            }
            let _entered = here.enter()?;
            // SAFETY: the other's context lives as long as the process.
            match unsafe { sys::cuCtxEnablePeerAccess(there.0.context, 0) } {
                CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {}
                result => here.check("cuCtxEnablePeerAccess", result)?,
            }
        }
        Ok(())
    }
}

impl PartialEq for Gpu {
    fn eq(&self, other: &Self) -> bool {
        self.ordinal() == other.ordinal()
    }
}

impl Eq for Gpu {}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({})", self.ordinal())
    }
}
