// SPDX-License-Identifier: MIT
//! The functions that the library calls, over a NIC in software.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::os::fd::IntoRawFd;
use std::ptr;
use std::slice;

use gpunetio_sys::result::{CuResult, CudaError, DocaError};
use gpunetio_sys::seam::Backend;
use gpunetio_sys::verbs::{
    IbvAh, IbvAhAttr, IbvContext, IbvDeviceAttr, IbvPd, Mlx5Av, Mlx5Obj, Mlx5Uar, Mlx5Umem,
    Mlx5UmemIn, Mlx5dvObj,
};
use mscclpp_softnic as nic;
use nic::devx::{Object, UarKind};

use super::{SoftAddress, SoftGround, SoftUar, SoftUmem};
use crate::gpu_queue::lock;

/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`, and that they are ordered for all.
const WRITES_ORDERING: c_int = 118;
const ALL_DEVICES: c_int = 200;

/// A command and where its answer goes.
///
/// # Safety
/// Both are what a command's functions take.
unsafe fn bytes<'a>(
    input: *const c_void,
    input_size: usize,
    output: *mut c_void,
    output_size: usize,
) -> (&'a [u8], &'a mut [u8]) {
    // SAFETY: the caller's promise.
    unsafe {
        (
            slice::from_raw_parts(input.cast(), input_size),
            slice::from_raw_parts_mut(output.cast(), output_size),
        )
    }
}

// Of all below: pointers are valid as the functions of the same names require, and objects are those
// that this value, or another one of the same NIC, has made and not yet let go of.
impl Backend for SoftGround {
    unsafe fn cu_device_get_attribute(&self, value: *mut c_int, kind: c_int, _: c_int) -> CuResult {
        let answer = if kind == WRITES_ORDERING {
            ALL_DEVICES
        } else {
            1
        };
        // SAFETY: a place for a number.
        unsafe { value.write(answer) };
        CuResult::SUCCESS
    }

    unsafe fn cu_pointer_set_attribute(&self, _: *const c_void, _: c_int, _: u64) -> CuResult {
        // Copies of this program's wait for their end.
        CuResult::SUCCESS
    }

    unsafe fn cu_mem_get_handle_for_address_range(
        &self,
        handle: *mut c_int,
        pointer: u64,
        size: usize,
        _: c_int,
        _: u64,
    ) -> CuResult {
        // Any descriptor: it is a name for the range until it is registered.
        let Ok(file) = File::open("/dev/null") else {
            return CuResult::UNKNOWN;
        };
        let fd = file.into_raw_fd();
        lock(&self.exported).insert(fd, (pointer, size as u64));
        // SAFETY: a place for a descriptor.
        unsafe { handle.write(fd) };
        CuResult::SUCCESS
    }

    unsafe fn ibv_query_device(&self, _: *mut IbvContext, out: *mut IbvDeviceAttr) -> DocaError {
        let limits = self.devx.device().capabilities();
        let number = |limit: u32| c_int::try_from(limit).unwrap_or(c_int::MAX);
        // SAFETY: a place for numbers, all of which may be zero.
        let attributes = unsafe {
            out.write_bytes(0, 1);
            &mut *out
        };
        attributes.max_qp = number(limits.max_objects);
        attributes.max_cq = number(limits.max_objects);
        attributes.max_mr = number(limits.max_objects);
        attributes.max_pd = number(limits.max_objects);
        attributes.max_ah = number(limits.max_objects);
        attributes.max_qp_wr = number(limits.max_send_blocks);
        attributes.max_cqe = number(limits.max_completions);
        attributes.max_sge = 30;
        attributes.max_qp_rd_atom = limits.max_outstanding_reads.into();
        attributes.max_qp_init_rd_atom = limits.max_outstanding_reads.into();
        attributes.atomic_cap = limits.atomics.into();
        attributes.max_pkeys = 1;
        attributes.phys_port_cnt = 1;
        DocaError::SUCCESS
    }

    unsafe fn ibv_create_ah(
        &self,
        _: *mut IbvPd,
        attributes: *mut IbvAhAttr,
        ah: *mut *mut IbvAh,
    ) -> DocaError {
        // SAFETY: attributes, whose first 16 bytes are the GID.
        let gid = unsafe { (&raw const (*attributes).dgid).cast::<[u8; 16]>().read() };
        // SAFETY: numbers, all of which may be zero.
        let mut av: Mlx5Av = unsafe { std::mem::zeroed() };
        av.rmac = nic::devx::mac(nic::DeviceAddress(gid));
        av.rgid = gid;
        // SAFETY: a place for a pointer.
        unsafe { ah.write(Box::into_raw(Box::new(SoftAddress { av })).cast()) };
        DocaError::SUCCESS
    }

    unsafe fn ibv_destroy_ah(&self, ah: *mut IbvAh) -> DocaError {
        // SAFETY: made above, and let go of once.
        drop(unsafe { Box::from_raw(ah.cast::<SoftAddress>()) });
        DocaError::SUCCESS
    }

    unsafe fn mlx5dv_init_obj(&self, object: *mut Mlx5dvObj, kinds: u64) -> DocaError {
        // SAFETY: the pairs that `kinds` says are set.
        unsafe {
            if kinds & Mlx5dvObj::PD != 0 {
                (*(*object).pd.output).number = self.nic.domain().number();
            }
            if kinds & Mlx5dvObj::AH != 0 {
                let ah = (*object).ah.input.cast::<SoftAddress>();
                (*(*object).ah.output).av = &raw mut (*ah).av;
            }
        }
        DocaError::SUCCESS
    }

    unsafe fn devx_obj_create(
        &self,
        _: *mut IbvContext,
        input: *const c_void,
        input_size: usize,
        output: *mut c_void,
        output_size: usize,
        object: *mut *mut Mlx5Obj,
    ) -> DocaError {
        // SAFETY: passed on.
        let (input, output) = unsafe { bytes(input, input_size, output, output_size) };
        match self.devx.create(input, output) {
            Ok(made) => {
                // SAFETY: a place for a pointer.
                unsafe { object.write(Box::into_raw(Box::new(made)).cast()) };
                DocaError::SUCCESS
            }
            Err(refusal) => self.failed(refusal),
        }
    }

    unsafe fn devx_obj_destroy(&self, object: *mut Mlx5Obj) -> DocaError {
        // SAFETY: made above, and let go of once.
        let made = unsafe { Box::from_raw(object.cast::<Object>()) };
        // What is refused is let go of all the same, by the end of its owner.
        self.done(self.devx.destroy(*made).map_err(|(_, refusal)| refusal))
    }

    unsafe fn devx_obj_query(
        &self,
        object: *mut Mlx5Obj,
        input: *const c_void,
        input_size: usize,
        output: *mut c_void,
        output_size: usize,
    ) -> DocaError {
        // SAFETY: passed on.
        let (input, output) = unsafe { bytes(input, input_size, output, output_size) };
        // SAFETY: made above.
        let object = unsafe { &*object.cast::<Object>() };
        self.done(self.devx.query(object, input, output))
    }

    unsafe fn devx_obj_modify(
        &self,
        object: *mut Mlx5Obj,
        input: *const c_void,
        input_size: usize,
        output: *mut c_void,
        output_size: usize,
    ) -> DocaError {
        // SAFETY: passed on.
        let (input, output) = unsafe { bytes(input, input_size, output, output_size) };
        // SAFETY: made above.
        let object = unsafe { &*object.cast::<Object>() };
        self.done(self.devx.modify(object, input, output))
    }

    unsafe fn devx_general_cmd(
        &self,
        _: *mut IbvContext,
        input: *const c_void,
        input_size: usize,
        output: *mut c_void,
        output_size: usize,
    ) -> DocaError {
        // SAFETY: passed on.
        let (input, output) = unsafe { bytes(input, input_size, output, output_size) };
        self.done(self.devx.general(input, output))
    }

    unsafe fn devx_query_eqn(&self, _: *mut IbvContext, vector: u32, eqn: *mut u32) -> DocaError {
        match self.devx.event_queue(vector) {
            Some(number) => {
                // SAFETY: a place for a number.
                unsafe { eqn.write(number) };
                DocaError::SUCCESS
            }
            None => self.failed(format_args!("there is no completion vector {vector}")),
        }
    }

    unsafe fn devx_umem_reg(
        &self,
        _: *mut IbvContext,
        address: *mut c_void,
        size: usize,
        _: u32,
        umem: *mut *mut Mlx5Umem,
    ) -> DocaError {
        // SAFETY: passed on.
        unsafe { self.register(address as u64, size as u64, umem) }
    }

    unsafe fn devx_umem_reg_ex(
        &self,
        _: *mut IbvContext,
        input: *mut Mlx5UmemIn,
        umem: *mut *mut Mlx5Umem,
    ) -> DocaError {
        // SAFETY: what the function takes.
        let input = unsafe { &*input };
        let (address, size) = (input.address as u64, input.size as u64);
        let address = if input.mask & Mlx5UmemIn::DMABUF == 0 {
            address
        } else {
            // With a dma-buf it is the offset in it.
            let exported = lock(&self.exported).remove(&input.dmabuf_fd);
            let inside =
                |(_, len): &(u64, u64)| address.checked_add(size).is_some_and(|end| end <= *len);
            match exported.filter(inside) {
                Some((start, _)) => start + address,
                None => {
                    return self.failed(format_args!(
                        "{size} bytes from {address:#x} are none of dma-buf {}",
                        input.dmabuf_fd
                    ));
                }
            }
        };
        // SAFETY: passed on.
        unsafe { self.register(address, size, umem) }
    }

    unsafe fn devx_umem_dereg(&self, umem: *mut Mlx5Umem) -> DocaError {
        // SAFETY: made above, and let go of once.
        let made = unsafe { Box::from_raw(umem.cast::<SoftUmem>()) };
        self.done(
            self.devx
                .deregister(made.umem)
                .map_err(|(_, refusal)| refusal),
        )
    }

    unsafe fn devx_alloc_uar(
        &self,
        _: *mut IbvContext,
        kind: u32,
        uar: *mut *mut Mlx5Uar,
    ) -> DocaError {
        let kind = match kind {
            Mlx5Uar::BLUE_FLAME => UarKind::BlueFlame,
            Mlx5Uar::NON_CACHED => UarKind::NonCached,
            Mlx5Uar::NON_CACHED_DEDICATED => UarKind::Dedicated,
            other => return self.failed(format_args!("there are no pages of kind {other:#x}")),
        };
        let made = match self.page(kind) {
            Ok(made) => made,
            Err(why) => return self.failed(why),
        };
        let register = made.page().register().address() as usize;
        let base = register - register % nic::DoorbellPage::BYTES as usize;
        let public = Mlx5Uar {
            register: ptr::with_exposed_provenance_mut(register),
            base: ptr::with_exposed_provenance_mut(base),
            page_id: made.number(),
            mmap_offset: 0,
            mask: 0,
        };
        let made = Box::new(SoftUar { public, uar: made });
        // SAFETY: a place for a pointer.
        unsafe { uar.write(Box::into_raw(made).cast()) };
        DocaError::SUCCESS
    }

    unsafe fn devx_free_uar(&self, uar: *mut Mlx5Uar) -> DocaError {
        // SAFETY: made above, and let go of once.
        let made = unsafe { Box::from_raw(uar.cast::<SoftUar>()) };
        self.done(
            self.devx
                .free_page(made.uar)
                .map_err(|(_, refusal)| refusal),
        )
    }

    unsafe fn cuda_device_get_attribute(&self, value: *mut c_int, _: c_int, _: c_int) -> CudaError {
        // SAFETY: a place for a number.
        unsafe { value.write(1) };
        CudaError::SUCCESS
    }

    unsafe fn cuda_device_get_by_pci_bus_id(
        &self,
        device: *mut c_int,
        _: *const c_char,
    ) -> CudaError {
        // SAFETY: a place for a number.
        unsafe { device.write(self.device.id().max(0)) };
        CudaError::SUCCESS
    }

    unsafe fn cuda_device_synchronize(&self) -> CudaError {
        CudaError::SUCCESS
    }

    unsafe fn cuda_free(&self, pointer: *mut c_void) -> CudaError {
        self.memory.free(pointer)
    }

    unsafe fn cuda_get_device(&self, device: *mut c_int) -> CudaError {
        // SAFETY: a place for a number.
        unsafe { device.write(self.device.id().max(0)) };
        CudaError::SUCCESS
    }

    unsafe fn cuda_get_error_string(&self, _: CudaError) -> *const c_char {
        c"see the log of this program".as_ptr()
    }

    unsafe fn cuda_get_last_error(&self) -> CudaError {
        CudaError::SUCCESS
    }

    unsafe fn cuda_host_get_device_pointer(
        &self,
        device: *mut *mut c_void,
        host: *mut c_void,
        _: c_uint,
    ) -> CudaError {
        // SAFETY: a place for a pointer.
        unsafe { device.write(host) };
        CudaError::SUCCESS
    }

    unsafe fn cuda_host_register(&self, _: *mut c_void, _: usize, _: c_uint) -> CudaError {
        // A page of doorbells, which is mapped already.
        CudaError::SUCCESS
    }

    unsafe fn cuda_host_unregister(&self, _: *mut c_void) -> CudaError {
        CudaError::SUCCESS
    }

    unsafe fn cuda_malloc(&self, pointer: *mut *mut c_void, size: usize) -> CudaError {
        // SAFETY: passed on.
        unsafe { self.memory.malloc(pointer, size) }
    }

    unsafe fn cuda_memcpy(
        &self,
        to: *mut c_void,
        from: *const c_void,
        size: usize,
        kind: c_int,
    ) -> CudaError {
        // SAFETY: passed on.
        unsafe { self.memory.copy(to, from, size, kind) }
    }

    unsafe fn cuda_memset(&self, pointer: *mut c_void, value: c_int, size: usize) -> CudaError {
        self.memory.set(pointer, value, size)
    }
}
