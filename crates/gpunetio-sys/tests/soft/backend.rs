// SPDX-License-Identifier: MIT
//! A NIC in software under the library, and a GPU whose memory is this process's.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::os::fd::IntoRawFd;
use std::ptr;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard};

use gpunetio_sys::result::{CuResult, CudaError, DocaError};
use gpunetio_sys::seam::Backend;
use gpunetio_sys::verbs::*;
use mscclpp_softnic::devx::{self, Devx, Object, Port, Refusal, Uar, UarKind, Umem};
use mscclpp_softnic::{
    Device, DeviceAddress, HostBuffer, HostMemory, MemoryRange, ProtectionDomain,
};

/// One opened device, with one protection domain, and one GPU.
pub(crate) struct SoftHca {
    pub(crate) devx: Devx,
    pub(crate) domain: ProtectionDomain,
    pd: Box<IbvPd>,
    gpu: Mutex<Gpu>,
}

// SAFETY: the pointer in `pd` is a name, and never followed.
unsafe impl Send for SoftHca {}
// SAFETY: as for Send; all else is behind a lock.
unsafe impl Sync for SoftHca {}

#[derive(Default)]
struct Gpu {
    memory: BTreeMap<u64, HostBuffer>,
    /// What dma-bufs were made of. A number stays here until its buffer is registered.
    exported: HashMap<c_int, MemoryRange>,
    /// Doorbells that the GPU sees.
    mapped: Vec<u64>,
    addresses: usize,
}

/// All that is alive, beside device and domain: memory, mapped doorbells, addresses, umems, and
/// objects of the NIC.
pub(crate) type Live = [usize; 5];

#[repr(C)]
struct SoftUmem {
    public: Mlx5Umem,
    umem: Option<Umem>,
}

#[repr(C)]
struct SoftUar {
    public: Mlx5Uar,
    uar: Option<Uar>,
}

struct SoftAh {
    av: Mlx5Av,
}

impl SoftHca {
    pub(crate) fn open(device: &Device, port: Port) -> Arc<Self> {
        let domain = device.allocate_domain().unwrap();
        let devx = Devx::new(device.clone(), port);
        devx.use_domain(&domain);
        let context = ptr::without_provenance_mut(0x1000);
        let pd = Box::new(IbvPd { context, handle: 1 });
        let gpu = Mutex::default();
        Arc::new(Self {
            devx,
            domain,
            pd,
            gpu,
        })
    }

    pub(crate) fn pd(&self) -> *mut IbvPd {
        (&raw const *self.pd).cast_mut()
    }

    pub(crate) fn allocate(&self, bytes: usize) -> *mut c_void {
        let buffer = HostBuffer::new(bytes);
        let address = buffer.address();
        self.gpu().memory.insert(address, buffer);
        ptr::with_exposed_provenance_mut(address as usize)
    }

    pub(crate) fn free(&self, memory: *mut c_void) {
        assert!(
            self.gpu().memory.remove(&(memory as u64)).is_some(),
            "no memory of the GPU's"
        );
    }

    pub(crate) fn live(&self) -> Live {
        let gpu = self.gpu();
        let nic = self.devx.device().counters().live.total() - 1;
        let nic = usize::try_from(nic).unwrap();
        [
            gpu.memory.len(),
            gpu.mapped.len(),
            gpu.addresses,
            self.devx.live_umems(),
            nic,
        ]
    }

    fn gpu(&self) -> MutexGuard<'_, Gpu> {
        self.gpu.lock().unwrap()
    }

    /// Memory of the GPU, or any other of this process.
    fn range(&self, address: u64, bytes: u64) -> MemoryRange {
        let gpu = self.gpu();
        let below = gpu.memory.range(..=address).next_back();
        let inside = below.and_then(|(start, buffer)| buffer.range().slice(address - start, bytes));
        inside.unwrap_or_else(|| {
            let start = ptr::with_exposed_provenance_mut(address as usize);
            // SAFETY: the library registers what it has allocated, and frees it after it has
            // deregistered it.
            unsafe { HostMemory::range(start, bytes as usize, Arc::new(())) }
        })
    }

    unsafe fn register(&self, range: MemoryRange, umem: *mut *mut Mlx5Umem) -> DocaError {
        match self.devx.register(range) {
            Ok(registered) => {
                let public = Mlx5Umem {
                    id: registered.number(),
                };
                let made = Box::new(SoftUmem {
                    public,
                    umem: Some(registered),
                });
                // SAFETY: a place for the result, as the caller promises.
                unsafe { umem.write(Box::into_raw(made).cast()) };
                DocaError::SUCCESS
            }
            Err(_) => DocaError::DRIVER,
        }
    }
}

/// # Safety
///
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

fn done(result: Result<(), Refusal>) -> DocaError {
    match result {
        Ok(()) => DocaError::SUCCESS,
        Err(_) => DocaError::DRIVER,
    }
}

// SAFETY of all below: pointers are valid as the functions of the same names require, and
// objects are those that this backend has made and not yet released.
impl Backend for SoftHca {
    unsafe fn cu_device_get_attribute(&self, value: *mut c_int, kind: c_int, _: c_int) -> CuResult {
        // dma-buf is supported; what the NIC writes is ordered for all.
        // SAFETY: see above.
        unsafe { value.write(if kind == 118 { 200 } else { 1 }) };
        CuResult::SUCCESS
    }

    unsafe fn cu_pointer_set_attribute(&self, _: *const c_void, _: c_int, _: u64) -> CuResult {
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
        let fd = File::open("/dev/null").unwrap().into_raw_fd();
        let range = self.range(pointer, size as u64);
        self.gpu().exported.insert(fd, range);
        // SAFETY: see above.
        unsafe { handle.write(fd) };
        CuResult::SUCCESS
    }

    unsafe fn ibv_query_device(&self, _: *mut IbvContext, out: *mut IbvDeviceAttr) -> DocaError {
        let limits = self.devx.device().capabilities();
        let number = |limit: u32| c_int::try_from(limit).unwrap_or(c_int::MAX);
        // SAFETY: see above; zeroes are valid in each field.
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
        // SAFETY: see above.
        let gid = unsafe { (&raw const (*attributes).dgid).cast::<[u8; 16]>().read() };
        // SAFETY: numbers, all of them.
        let mut av: Mlx5Av = unsafe { std::mem::zeroed() };
        av.rmac = devx::mac(DeviceAddress(gid));
        av.rgid = gid;
        self.gpu().addresses += 1;
        // SAFETY: see above.
        unsafe { ah.write(Box::into_raw(Box::new(SoftAh { av })).cast()) };
        DocaError::SUCCESS
    }

    unsafe fn ibv_destroy_ah(&self, ah: *mut IbvAh) -> DocaError {
        // SAFETY: see above.
        drop(unsafe { Box::from_raw(ah.cast::<SoftAh>()) });
        self.gpu().addresses -= 1;
        DocaError::SUCCESS
    }

    unsafe fn mlx5dv_init_obj(&self, object: *mut Mlx5dvObj, kind: c_int) -> DocaError {
        // SAFETY: see above.
        unsafe {
            if kind & Mlx5dvObj::PD != 0 {
                (*(*object).pd.output).number = self.domain.number();
            }
            if kind & Mlx5dvObj::AH != 0 {
                let ah = (*object).ah.input.cast::<SoftAh>();
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
        // SAFETY: see above.
        let (input, output) = unsafe { bytes(input, input_size, output, output_size) };
        match self.devx.create(input, output) {
            Ok(made) => {
                // SAFETY: see above.
                unsafe { object.write(Box::into_raw(Box::new(made)).cast()) };
                DocaError::SUCCESS
            }
            Err(_) => DocaError::DRIVER,
        }
    }

    unsafe fn devx_obj_destroy(&self, object: *mut Mlx5Obj) -> DocaError {
        // SAFETY: see above.
        let made = unsafe { Box::from_raw(object.cast::<Object>()) };
        match self.devx.destroy(*made) {
            Ok(()) => DocaError::SUCCESS,
            Err((_, refusal)) => panic!("{refusal}"),
        }
    }

    unsafe fn devx_obj_query(
        &self,
        object: *mut Mlx5Obj,
        input: *const c_void,
        input_size: usize,
        output: *mut c_void,
        output_size: usize,
    ) -> DocaError {
        // SAFETY: see above.
        let (input, output) = unsafe { bytes(input, input_size, output, output_size) };
        // SAFETY: see above.
        done(
            self.devx
                .query(unsafe { &*object.cast::<Object>() }, input, output),
        )
    }

    unsafe fn devx_obj_modify(
        &self,
        object: *mut Mlx5Obj,
        input: *const c_void,
        input_size: usize,
        output: *mut c_void,
        output_size: usize,
    ) -> DocaError {
        // SAFETY: see above.
        let (input, output) = unsafe { bytes(input, input_size, output, output_size) };
        // SAFETY: see above.
        done(
            self.devx
                .modify(unsafe { &*object.cast::<Object>() }, input, output),
        )
    }

    unsafe fn devx_general_cmd(
        &self,
        _: *mut IbvContext,
        input: *const c_void,
        input_size: usize,
        output: *mut c_void,
        output_size: usize,
    ) -> DocaError {
        // SAFETY: see above.
        let (input, output) = unsafe { bytes(input, input_size, output, output_size) };
        done(self.devx.general(input, output))
    }

    unsafe fn devx_query_eqn(&self, _: *mut IbvContext, vector: u32, eqn: *mut u32) -> DocaError {
        match self.devx.event_queue(vector) {
            Some(number) => {
                // SAFETY: see above.
                unsafe { eqn.write(number) };
                DocaError::SUCCESS
            }
            None => DocaError::DRIVER,
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
        let range = self.range(address as u64, size as u64);
        // SAFETY: see above.
        unsafe { self.register(range, umem) }
    }

    unsafe fn devx_umem_reg_ex(
        &self,
        _: *mut IbvContext,
        input: *mut Mlx5UmemIn,
        umem: *mut *mut Mlx5Umem,
    ) -> DocaError {
        // SAFETY: see above.
        let input = unsafe { &*input };
        let (address, size) = (input.address as u64, input.size as u64);
        let range = if input.mask & Mlx5UmemIn::DMABUF == 0 {
            Some(self.range(address, size))
        } else {
            // With a dma-buf the address is the offset in it.
            let exported = self.gpu().exported.remove(&input.dmabuf_fd);
            exported.and_then(|range| range.slice(address, size))
        };
        match range {
            // SAFETY: see above.
            Some(range) => unsafe { self.register(range, umem) },
            None => DocaError::DRIVER,
        }
    }

    unsafe fn devx_umem_dereg(&self, umem: *mut Mlx5Umem) -> DocaError {
        // SAFETY: see above.
        let mut made = unsafe { Box::from_raw(umem.cast::<SoftUmem>()) };
        match made.umem.take().map(|umem| self.devx.deregister(umem)) {
            Some(Ok(())) => DocaError::SUCCESS,
            Some(Err((_, refusal))) => panic!("{refusal}"),
            None => panic!("deregistered twice"),
        }
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
            other => panic!("a page of kind {other:#x}"),
        };
        let Ok(made) = self.devx.allocate_page(kind) else {
            return DocaError::DRIVER;
        };
        let register = made.page().register().address() as usize;
        let public = Mlx5Uar {
            register: ptr::with_exposed_provenance_mut(register),
            base: ptr::with_exposed_provenance_mut(register - 0x800),
            page_id: made.number(),
            mmap_offset: 0,
            mask: 0,
        };
        let made = Box::new(SoftUar {
            public,
            uar: Some(made),
        });
        // SAFETY: see above.
        unsafe { uar.write(Box::into_raw(made).cast()) };
        DocaError::SUCCESS
    }

    unsafe fn devx_free_uar(&self, uar: *mut Mlx5Uar) -> DocaError {
        // SAFETY: see above.
        let mut made = unsafe { Box::from_raw(uar.cast::<SoftUar>()) };
        match made.uar.take().map(|uar| self.devx.free_page(uar)) {
            Some(Ok(())) => DocaError::SUCCESS,
            Some(Err((_, refusal))) => panic!("{refusal}"),
            None => panic!("freed twice"),
        }
    }

    unsafe fn cuda_device_get_attribute(&self, value: *mut c_int, _: c_int, _: c_int) -> CudaError {
        // SAFETY: see above.
        unsafe { value.write(1) };
        CudaError::SUCCESS
    }

    unsafe fn cuda_device_get_by_pci_bus_id(
        &self,
        device: *mut c_int,
        _: *const c_char,
    ) -> CudaError {
        // SAFETY: see above.
        unsafe { device.write(0) };
        CudaError::SUCCESS
    }

    unsafe fn cuda_device_synchronize(&self) -> CudaError {
        CudaError::SUCCESS
    }

    unsafe fn cuda_free(&self, pointer: *mut c_void) -> CudaError {
        self.free(pointer);
        CudaError::SUCCESS
    }

    unsafe fn cuda_get_device(&self, device: *mut c_int) -> CudaError {
        // SAFETY: see above.
        unsafe { device.write(0) };
        CudaError::SUCCESS
    }

    unsafe fn cuda_get_error_string(&self, _: CudaError) -> *const c_char {
        c"an error that was injected".as_ptr()
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
        // SAFETY: see above.
        unsafe { device.write(host) };
        CudaError::SUCCESS
    }

    unsafe fn cuda_host_register(
        &self,
        pointer: *mut c_void,
        size: usize,
        flags: c_uint,
    ) -> CudaError {
        // Eight bytes of a device: portable, mapped, I/O memory.
        assert_eq!((size, flags), (8, 7));
        self.gpu().mapped.push(pointer as u64);
        CudaError::SUCCESS
    }

    unsafe fn cuda_host_unregister(&self, pointer: *mut c_void) -> CudaError {
        let mut gpu = self.gpu();
        let place = gpu
            .mapped
            .iter()
            .position(|mapped| *mapped == pointer as u64);
        gpu.mapped.remove(place.expect("it is not registered"));
        CudaError::SUCCESS
    }

    unsafe fn cuda_malloc(&self, pointer: *mut *mut c_void, size: usize) -> CudaError {
        // SAFETY: see above.
        unsafe { pointer.write(self.allocate(size)) };
        CudaError::SUCCESS
    }

    unsafe fn cuda_memcpy(
        &self,
        to: *mut c_void,
        from: *const c_void,
        size: usize,
        _: c_int,
    ) -> CudaError {
        // SAFETY: see above.
        unsafe { ptr::copy(from.cast::<u8>(), to.cast(), size) };
        CudaError::SUCCESS
    }

    unsafe fn cuda_memset(&self, pointer: *mut c_void, value: c_int, size: usize) -> CudaError {
        // SAFETY: see above.
        unsafe { ptr::write_bytes(pointer.cast::<u8>(), value as u8, size) };
        CudaError::SUCCESS
    }
}
