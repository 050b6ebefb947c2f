// SPDX-License-Identifier: MIT
//! What the library calls of CUDA, on this crate's buffers: of a GPU, or of the CPU in its place.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::slice;
use std::sync::Mutex;

use gpunetio_sys::result::CudaError;

use crate::buffer::Buffer;
use crate::device::{Device, DeviceKind};
use crate::error::Result;
use crate::gpu_queue::lock;

/// Memory of one device: what the library allocates of it, and what it was lent.
pub(super) struct DeviceMemory {
    device: Device,
    buffers: Mutex<BTreeMap<u64, Buffer>>,
}

/// `cudaMemcpyKind`.
const TO_DEVICE: c_int = 1;
const FROM_DEVICE: c_int = 2;

impl DeviceMemory {
    pub(super) fn new(device: Device, lent: &Buffer) -> Self {
        let buffers = BTreeMap::from([(lent.address(), lent.clone())]);
        Self {
            device,
            buffers: Mutex::new(buffers),
        }
    }

    /// The buffer that has a range, and the offset in it.
    pub(super) fn find(&self, address: u64, len: u64) -> Option<(Buffer, u64)> {
        let buffers = lock(&self.buffers);
        let (start, buffer) = buffers.range(..=address).next_back()?;
        let offset = address - start;
        (offset.checked_add(len)? <= buffer.len()).then(|| (buffer.clone(), offset))
    }

    pub(super) fn read(&self, address: u64, to: &mut [u8]) -> Result<()> {
        match self.find(address, to.len() as u64) {
            Some((buffer, offset)) => buffer.read(offset, to),
            None => Err(crate::error::Error::OutOfBounds {
                what: "memory of a queue",
                offset: address,
                len: to.len() as u64,
                size: 0,
            }),
        }
    }

    /// # Safety
    /// `pointer` is a place for a pointer.
    pub(super) unsafe fn malloc(&self, pointer: *mut *mut c_void, size: usize) -> CudaError {
        match Buffer::new(self.device, size as u64) {
            Ok(buffer) => {
                // SAFETY: the caller's promise.
                unsafe { pointer.write(buffer.as_ptr().cast()) };
                lock(&self.buffers).insert(buffer.address(), buffer);
                CudaError::SUCCESS
            }
            Err(error) => {
                tracing::debug!(%error, "no memory for GPUNetIO");
                CudaError::UNKNOWN
            }
        }
    }

    pub(super) fn free(&self, pointer: *mut c_void) -> CudaError {
        match lock(&self.buffers).remove(&(pointer as u64)) {
            Some(_) => CudaError::SUCCESS,
            None => CudaError::UNKNOWN,
        }
    }

    /// # Safety
    /// As `cudaMemcpy`, of host memory for what is not the device's.
    pub(super) unsafe fn copy(
        &self,
        to: *mut c_void,
        from: *const c_void,
        size: usize,
        kind: c_int,
    ) -> CudaError {
        let done = match (kind, self.device.kind()) {
            (TO_DEVICE, DeviceKind::Gpu) => {
                // SAFETY: the caller's promise, of host memory.
                let from = unsafe { slice::from_raw_parts(from.cast::<u8>(), size) };
                let found = self.find(to as u64, size as u64);
                found.is_some_and(|(buffer, offset)| buffer.write(offset, from).is_ok())
            }
            (FROM_DEVICE, DeviceKind::Gpu) => {
                // SAFETY: the caller's promise, of host memory.
                let to = unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), size) };
                self.read(from as u64, to).is_ok()
            }
            // Of one GPU to itself: the library has no such copy.
            (_, DeviceKind::Gpu) => false,
            (_, DeviceKind::Cpu) => {
                // SAFETY: the caller's promise; all of it is this process's memory.
                unsafe { ptr::copy(from.cast::<u8>(), to.cast(), size) };
                true
            }
        };
        if done {
            CudaError::SUCCESS
        } else {
            CudaError::UNKNOWN
        }
    }

    pub(super) fn set(&self, pointer: *mut c_void, value: c_int, size: usize) -> CudaError {
        let bytes = vec![value as u8; size];
        let found = self.find(pointer as u64, size as u64);
        match found.map(|(buffer, offset)| buffer.write(offset, &bytes)) {
            Some(Ok(())) => CudaError::SUCCESS,
            _ => CudaError::UNKNOWN,
        }
    }
}
