// SPDX-License-Identifier: MIT
//! The calls, each in one line, and what is made of the list: the trait, the table, the names.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::os::unix::Library;

use super::{CuResult, CudaError, DocaError, Failure as _, dispatch};
use crate::verbs::{
    IbvAh, IbvAhAttr, IbvContext, IbvDeviceAttr, IbvPd, Mlx5Obj, Mlx5Uar, Mlx5Umem, Mlx5UmemIn,
    Mlx5dvObj,
};

macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        $variant:ident $symbol:literal $name:ident($($argument:ident: $type:ty),*) -> $result:ty;
    )*) => {
        /// What the library stands on: verbs, mlx5 and CUDA, as far as it calls them.
        ///
        /// Each method is called on the thread that called the library, within
        /// [`with`](super::with). Pointers are as the function of the same name in C takes them, but
        /// verbs and mlx5 calls return a status of the library's, and write what they made through a
        /// last pointer, only if they succeed. An object is released by the backend that made it. A
        /// method that is not implemented fails.
        ///
        /// # Safety
        ///
        /// Of each method: arguments are as the C function requires, for the call's duration.
        #[expect(clippy::missing_safety_doc, reason = "it is the trait's, for all of them")]
        pub trait Backend: Send + Sync {
            $(
                $(#[$doc])*
                unsafe fn $name(&self, $($argument: $type),*) -> $result {
                    let _ = ($($argument,)*);
                    <$result>::failed()
                }
            )*
        }

        /// One of the calls.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Call {
            $( $(#[$doc])* $variant, )*
        }

        impl Call {
            /// All of them, in the table's order.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The function that the library calls.
            pub fn symbol(self) -> &'static str {
                match self {
                    $( Self::$variant => $symbol, )*
                }
            }
        }

        /// Laid out as the table of `seam.c`.
        #[repr(C)]
        struct Table {
            $( $name: unsafe extern "C" fn($($type),*) -> $result, )*
        }

        static TABLE: Table = Table { $( $name: forward::$name, )* };

        mod forward {
            use super::*;

            $(
                pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                    // SAFETY: the library's arguments are those that the C function requires.
                    dispatch(|backend| unsafe { backend.$name($($argument),*) })
                }
            )*
        }

        impl Backend for super::Intercepted {
            $(
                unsafe fn $name(&self, $($argument: $type),*) -> $result {
                    if self.fails(Call::$variant) {
                        return <$result>::failed();
                    }
                    // SAFETY: passed on as they came.
                    unsafe { self.inner().$name($($argument),*) }
                }
            )*
        }
    };
}

calls! {
    /// `cuDeviceGetAttribute`.
    CuDeviceGetAttribute "cuDeviceGetAttribute"
        cu_device_get_attribute(value: *mut c_int, attribute: c_int, device: c_int) -> CuResult;
    /// `cuPointerSetAttribute`.
    CuPointerSetAttribute "cuPointerSetAttribute"
        cu_pointer_set_attribute(value: *const c_void, attribute: c_int, pointer: u64) -> CuResult;
    /// `cuMemGetHandleForAddressRange`.
    CuMemGetHandleForAddressRange "cuMemGetHandleForAddressRange"
        cu_mem_get_handle_for_address_range(
            handle: *mut c_int, pointer: u64, size: usize, kind: c_int, flags: u64
        ) -> CuResult;

    /// `ibv_query_device`.
    IbvQueryDevice "ibv_query_device"
        ibv_query_device(context: *mut IbvContext, attributes: *mut IbvDeviceAttr) -> DocaError;
    /// `ibv_create_ah`.
    IbvCreateAh "ibv_create_ah"
        ibv_create_ah(pd: *mut IbvPd, attributes: *mut IbvAhAttr, ah: *mut *mut IbvAh) -> DocaError;
    /// `ibv_destroy_ah`.
    IbvDestroyAh "ibv_destroy_ah"
        ibv_destroy_ah(ah: *mut IbvAh) -> DocaError;

    /// `mlx5dv_init_obj`.
    Mlx5dvInitObj "mlx5dv_init_obj"
        mlx5dv_init_obj(object: *mut Mlx5dvObj, kinds: u64) -> DocaError;
    /// `mlx5dv_devx_obj_create`.
    DevxObjCreate "mlx5dv_devx_obj_create"
        devx_obj_create(
            context: *mut IbvContext, input: *const c_void, input_size: usize,
            output: *mut c_void, output_size: usize, object: *mut *mut Mlx5Obj
        ) -> DocaError;
    /// `mlx5dv_devx_obj_destroy`.
    DevxObjDestroy "mlx5dv_devx_obj_destroy"
        devx_obj_destroy(object: *mut Mlx5Obj) -> DocaError;
    /// `mlx5dv_devx_obj_query`.
    DevxObjQuery "mlx5dv_devx_obj_query"
        devx_obj_query(
            object: *mut Mlx5Obj, input: *const c_void, input_size: usize,
            output: *mut c_void, output_size: usize
        ) -> DocaError;
    /// `mlx5dv_devx_obj_modify`.
    DevxObjModify "mlx5dv_devx_obj_modify"
        devx_obj_modify(
            object: *mut Mlx5Obj, input: *const c_void, input_size: usize,
            output: *mut c_void, output_size: usize
        ) -> DocaError;
    /// `mlx5dv_devx_general_cmd`.
    DevxGeneralCmd "mlx5dv_devx_general_cmd"
        devx_general_cmd(
            context: *mut IbvContext, input: *const c_void, input_size: usize,
            output: *mut c_void, output_size: usize
        ) -> DocaError;
    /// `mlx5dv_devx_query_eqn`.
    DevxQueryEqn "mlx5dv_devx_query_eqn"
        devx_query_eqn(context: *mut IbvContext, vector: u32, eqn: *mut u32) -> DocaError;
    /// `mlx5dv_devx_umem_reg`.
    DevxUmemReg "mlx5dv_devx_umem_reg"
        devx_umem_reg(
            context: *mut IbvContext, address: *mut c_void, size: usize, access: u32,
            umem: *mut *mut Mlx5Umem
        ) -> DocaError;
    /// `mlx5dv_devx_umem_reg_ex`.
    DevxUmemRegEx "mlx5dv_devx_umem_reg_ex"
        devx_umem_reg_ex(
            context: *mut IbvContext, input: *mut Mlx5UmemIn, umem: *mut *mut Mlx5Umem
        ) -> DocaError;
    /// `mlx5dv_devx_umem_dereg`.
    DevxUmemDereg "mlx5dv_devx_umem_dereg"
        devx_umem_dereg(umem: *mut Mlx5Umem) -> DocaError;
    /// `mlx5dv_devx_alloc_uar`.
    DevxAllocUar "mlx5dv_devx_alloc_uar"
        devx_alloc_uar(context: *mut IbvContext, kind: u32, uar: *mut *mut Mlx5Uar) -> DocaError;
    /// `mlx5dv_devx_free_uar`.
    DevxFreeUar "mlx5dv_devx_free_uar"
        devx_free_uar(uar: *mut Mlx5Uar) -> DocaError;

    /// `cudaDeviceGetAttribute`.
    CudaDeviceGetAttribute "cudaDeviceGetAttribute"
        cuda_device_get_attribute(value: *mut c_int, attribute: c_int, device: c_int) -> CudaError;
    /// `cudaDeviceGetByPCIBusId`.
    CudaDeviceGetByPciBusId "cudaDeviceGetByPCIBusId"
        cuda_device_get_by_pci_bus_id(device: *mut c_int, bus_id: *const c_char) -> CudaError;
    /// `cudaDeviceSynchronize`.
    CudaDeviceSynchronize "cudaDeviceSynchronize"
        cuda_device_synchronize() -> CudaError;
    /// `cudaFree`.
    CudaFree "cudaFree"
        cuda_free(pointer: *mut c_void) -> CudaError;
    /// `cudaGetDevice`.
    CudaGetDevice "cudaGetDevice"
        cuda_get_device(device: *mut c_int) -> CudaError;
    /// `cudaGetErrorString`: a text that lives as long as the program. Failed by
    /// [`Intercepted`](super::Intercepted), it is a text all the same.
    CudaGetErrorString "cudaGetErrorString"
        cuda_get_error_string(error: CudaError) -> *const c_char;
    /// `cudaGetLastError`.
    CudaGetLastError "cudaGetLastError"
        cuda_get_last_error() -> CudaError;
    /// `cudaHostGetDevicePointer`.
    CudaHostGetDevicePointer "cudaHostGetDevicePointer"
        cuda_host_get_device_pointer(
            device: *mut *mut c_void, host: *mut c_void, flags: c_uint
        ) -> CudaError;
    /// `cudaHostRegister`.
    CudaHostRegister "cudaHostRegister"
        cuda_host_register(pointer: *mut c_void, size: usize, flags: c_uint) -> CudaError;
    /// `cudaHostUnregister`.
    CudaHostUnregister "cudaHostUnregister"
        cuda_host_unregister(pointer: *mut c_void) -> CudaError;
    /// `cudaMalloc`.
    CudaMalloc "cudaMalloc"
        cuda_malloc(pointer: *mut *mut c_void, size: usize) -> CudaError;
    /// `cudaMemcpy`.
    CudaMemcpy "cudaMemcpy"
        cuda_memcpy(to: *mut c_void, from: *const c_void, size: usize, kind: c_int) -> CudaError;
    /// `cudaMemset`.
    CudaMemset "cudaMemset"
        cuda_memset(pointer: *mut c_void, value: c_int, size: usize) -> CudaError;
}

/// Gives the table to an object that is made of `seam.c`.
///
/// # Safety
///
/// The object is such a one. The library is not loaded yet.
pub(super) unsafe fn install(object: &Library) -> Result<(), libloading::Error> {
    type Install = unsafe extern "C" fn(*const Table, usize) -> bool;
    // SAFETY: it is this function there.
    let install = unsafe { object.get::<Install>(b"gnx_install\0") }?;
    // SAFETY: the table is static and never changes.
    let taken = unsafe { install(&raw const TABLE, size_of::<Table>()) };
    assert!(taken, "seam.c has another list of calls than calls.rs");
    Ok(())
}

/// The names in the table of an object that is made of `seam.c`.
#[cfg(test)]
pub(super) fn symbols(object: &Library) -> Vec<String> {
    type Symbol = unsafe extern "C" fn(usize) -> *const c_char;
    // SAFETY: it is this function there.
    let symbol = unsafe { object.get::<Symbol>(b"gnx_symbol\0") }.unwrap();
    let name = |index| {
        // SAFETY: it takes any number.
        let name = unsafe { symbol(index) };
        // SAFETY: it is a literal, or null behind the last.
        (!name.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(name) })
    };
    (0..)
        .map_while(name)
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}
