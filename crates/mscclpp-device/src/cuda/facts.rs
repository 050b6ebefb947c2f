// SPDX-License-Identifier: MIT
//! What the driver says of a GPU without opening it.

use std::ffi::{CStr, c_char};

use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute_enum as Attribute, CUresult};

use super::error::check;
use super::{CudaError, gpu_count};

/// A GPU as the driver describes it. Asking makes no context and takes no memory of the GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuFacts {
    /// Its product name.
    pub name: String,
    /// Where it is on PCIe, as sysfs writes it: `0000:1b:00.0`.
    pub pci: String,
    /// Whether its memory can be registered with an HCA as a DMA buffer.
    pub dma_buf: bool,
}

impl GpuFacts {
    /// Those of GPU number `ordinal`, counted from 0 as the driver counts them.
    ///
    /// # Errors
    ///
    /// [`CudaError::NoGpu`], those of [`driver`](super::driver), and what the driver says.
    pub fn of(ordinal: u32) -> Result<Self, CudaError> {
        let count = gpu_count()?;
        let wanted = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
        let Some(wanted) = wanted else {
            return Err(CudaError::NoGpu {
                wanted: ordinal.to_string(),
                count,
            });
        };
        let (mut device, mut dma_buf) = (0, 0);
        // SAFETY: a valid place to write to, the driver is initialised, the ordinal exists.
        check(ordinal, "cuDeviceGet", unsafe {
            sys::cuDeviceGet(&mut device, wanted)
        })?;
        // SAFETY: as above, a device of the driver.
        check(ordinal, "cuDeviceGetAttribute", unsafe {
            sys::cuDeviceGetAttribute(
                &mut dma_buf,
                Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
                device,
            )
        })?;
        let text = |call, get| text(ordinal, device, call, get);
        Ok(Self {
            name: text("cuDeviceGetName", |text, length, device| {
                // SAFETY: as many bytes to write to as told.
                unsafe { sys::cuDeviceGetName(text, length, device) }
            })?,
            pci: text("cuDeviceGetPCIBusId", |text, length, device| {
                // SAFETY: as many bytes to write to as told.
                unsafe { sys::cuDeviceGetPCIBusId(text, length, device) }
            })?
            .to_ascii_lowercase(),
            dma_buf: dma_buf != 0,
        })
    }
}

type GetText = fn(*mut c_char, i32, CUdevice) -> CUresult;

fn text(gpu: u32, device: CUdevice, call: &'static str, get: GetText) -> Result<String, CudaError> {
    let mut text = [0; 128];
    let length = text.len() as i32 - 1;
    check(gpu, call, get(text.as_mut_ptr(), length, device))?;
    // SAFETY: zeroes follow what was written.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    Ok(text.to_string_lossy().into_owned())
}
