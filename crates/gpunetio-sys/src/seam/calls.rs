// SPDX-License-Identifier: MIT
//! The calls, each in one line, and what is made of the list: the trait, the table, the names.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{CuResult, CudaError, DocaError, Failure as _, Once, dispatch};
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
        /// [`with`](super::with). Pointers are as the function of the same name in C takes them:
        /// verbs and mlx5 calls return a status and write what they made through a last pointer,
        /// only if they succeed. An object is released by the backend that made it. A method that is
        /// not implemented fails.
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

            /// The symbol that the library is compiled to call.
            pub fn symbol(self) -> &'static str {
                match self {
                    $( Self::$variant => $symbol, )*
                }
            }
        }

        /// Laid out as the table of `seam.cpp`.
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
    CuDeviceGetAttribute "doca_gpu_cuda_wrapper_cuDeviceGetAttribute"
        cu_device_get_attribute(value: *mut c_int, attribute: c_int, device: c_int) -> CuResult;
    /// `cuPointerSetAttribute`.
    CuPointerSetAttribute "doca_gpu_cuda_wrapper_cuPointerSetAttribute"
        cu_pointer_set_attribute(value: *const c_void, attribute: c_int, pointer: u64) -> CuResult;
    /// `cuMemGetHandleForAddressRange`.
    CuMemGetHandleForAddressRange "doca_gpu_cuda_wrapper_cuMemGetHandleForAddressRange"
        cu_mem_get_handle_for_address_range(
            handle: *mut c_int, pointer: u64, size: usize, kind: c_int, flags: u64
        ) -> CuResult;

    /// `ibv_query_device`.
    IbvQueryDevice "doca_verbs_wrapper_ibv_query_device"
        ibv_query_device(context: *mut IbvContext, attributes: *mut IbvDeviceAttr) -> DocaError;
    /// `ibv_create_ah`.
    IbvCreateAh "doca_verbs_wrapper_ibv_create_ah"
        ibv_create_ah(pd: *mut IbvPd, attributes: *mut IbvAhAttr, ah: *mut *mut IbvAh) -> DocaError;
    /// `ibv_destroy_ah`.
    IbvDestroyAh "doca_verbs_wrapper_ibv_destroy_ah"
        ibv_destroy_ah(ah: *mut IbvAh) -> DocaError;

    /// `mlx5dv_init_obj`.
    Mlx5dvInitObj "doca_verbs_wrapper_mlx5dv_init_obj"
        mlx5dv_init_obj(object: *mut Mlx5dvObj, kind: c_int) -> DocaError;
    /// `mlx5dv_devx_obj_create`.
    DevxObjCreate "doca_verbs_wrapper_mlx5dv_devx_obj_create"
        devx_obj_create(
            context: *mut IbvContext, input: *const c_void, input_size: usize,
            output: *mut c_void, output_size: usize, object: *mut *mut Mlx5Obj
        ) -> DocaError;
    /// `mlx5dv_devx_obj_destroy`.
    DevxObjDestroy "doca_verbs_wrapper_mlx5dv_devx_obj_destroy"
        devx_obj_destroy(object: *mut Mlx5Obj) -> DocaError;
    /// `mlx5dv_devx_obj_query`.
    DevxObjQuery "doca_verbs_wrapper_mlx5dv_devx_obj_query"
        devx_obj_query(
            object: *mut Mlx5Obj, input: *const c_void, input_size: usize,
            output: *mut c_void, output_size: usize
        ) -> DocaError;
    /// `mlx5dv_devx_obj_modify`.
    DevxObjModify "doca_verbs_wrapper_mlx5dv_devx_obj_modify"
        devx_obj_modify(
            object: *mut Mlx5Obj, input: *const c_void, input_size: usize,
            output: *mut c_void, output_size: usize
        ) -> DocaError;
    /// `mlx5dv_devx_general_cmd`.
    DevxGeneralCmd "doca_verbs_wrapper_mlx5dv_devx_general_cmd"
        devx_general_cmd(
            context: *mut IbvContext, input: *const c_void, input_size: usize,
            output: *mut c_void, output_size: usize
        ) -> DocaError;
    /// `mlx5dv_devx_query_eqn`.
    DevxQueryEqn "doca_verbs_wrapper_mlx5dv_devx_query_eqn"
        devx_query_eqn(context: *mut IbvContext, vector: u32, eqn: *mut u32) -> DocaError;
    /// `mlx5dv_devx_umem_reg`.
    DevxUmemReg "doca_verbs_wrapper_mlx5dv_devx_umem_reg"
        devx_umem_reg(
            context: *mut IbvContext, address: *mut c_void, size: usize, access: u32,
            umem: *mut *mut Mlx5Umem
        ) -> DocaError;
    /// `mlx5dv_devx_umem_reg_ex`.
    DevxUmemRegEx "doca_verbs_wrapper_mlx5dv_devx_umem_reg_ex"
        devx_umem_reg_ex(
            context: *mut IbvContext, input: *mut Mlx5UmemIn, umem: *mut *mut Mlx5Umem
        ) -> DocaError;
    /// `mlx5dv_devx_umem_dereg`.
    DevxUmemDereg "doca_verbs_wrapper_mlx5dv_devx_umem_dereg"
        devx_umem_dereg(umem: *mut Mlx5Umem) -> DocaError;
    /// `mlx5dv_devx_alloc_uar`.
    DevxAllocUar "doca_verbs_wrapper_mlx5dv_devx_alloc_uar"
        devx_alloc_uar(context: *mut IbvContext, kind: u32, uar: *mut *mut Mlx5Uar) -> DocaError;
    /// `mlx5dv_devx_free_uar`.
    DevxFreeUar "doca_verbs_wrapper_mlx5dv_devx_free_uar"
        devx_free_uar(uar: *mut Mlx5Uar) -> DocaError;

    /// `cudaDeviceGetAttribute`.
    CudaDeviceGetAttribute "gnx_cudaDeviceGetAttribute"
        cuda_device_get_attribute(value: *mut c_int, attribute: c_int, device: c_int) -> CudaError;
    /// `cudaDeviceGetByPCIBusId`.
    CudaDeviceGetByPciBusId "gnx_cudaDeviceGetByPCIBusId"
        cuda_device_get_by_pci_bus_id(device: *mut c_int, bus_id: *const c_char) -> CudaError;
    /// `cudaDeviceSynchronize`.
    CudaDeviceSynchronize "gnx_cudaDeviceSynchronize"
        cuda_device_synchronize() -> CudaError;
    /// `cudaFree`.
    CudaFree "gnx_cudaFree"
        cuda_free(pointer: *mut c_void) -> CudaError;
    /// `cudaGetDevice`.
    CudaGetDevice "gnx_cudaGetDevice"
        cuda_get_device(device: *mut c_int) -> CudaError;
    /// `cudaGetErrorString`: a text that lives as long as the program. Failed by
    /// [`Intercepted`](super::Intercepted), it is a text all the same.
    CudaGetErrorString "gnx_cudaGetErrorString"
        cuda_get_error_string(error: CudaError) -> *const c_char;
    /// `cudaGetLastError`.
    CudaGetLastError "gnx_cudaGetLastError"
        cuda_get_last_error() -> CudaError;
    /// `cudaHostGetDevicePointer`.
    CudaHostGetDevicePointer "gnx_cudaHostGetDevicePointer"
        cuda_host_get_device_pointer(
            device: *mut *mut c_void, host: *mut c_void, flags: c_uint
        ) -> CudaError;
    /// `cudaHostRegister`.
    CudaHostRegister "gnx_cudaHostRegister"
        cuda_host_register(pointer: *mut c_void, size: usize, flags: c_uint) -> CudaError;
    /// `cudaHostUnregister`.
    CudaHostUnregister "gnx_cudaHostUnregister"
        cuda_host_unregister(pointer: *mut c_void) -> CudaError;
    /// `cudaMalloc`.
    CudaMalloc "gnx_cudaMalloc"
        cuda_malloc(pointer: *mut *mut c_void, size: usize) -> CudaError;
    /// `cudaMemcpy`.
    CudaMemcpy "gnx_cudaMemcpy"
        cuda_memcpy(to: *mut c_void, from: *const c_void, size: usize, kind: c_int) -> CudaError;
    /// `cudaMemset`.
    CudaMemset "gnx_cudaMemset"
        cuda_memset(pointer: *mut c_void, value: c_int, size: usize) -> CudaError;
}

unsafe extern "C" {
    /// Takes the table; `false` if it is of another size than that of `seam.cpp`.
    fn gnx_install(table: *const Table, size: usize) -> bool;
    /// The symbol at a place of the table of `seam.cpp`, or null behind the last.
    #[cfg(test)]
    fn gnx_symbol(index: usize) -> *const c_char;
}

/// Gives the table to the library's side, once.
pub(super) fn install() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        // SAFETY: the table is static and never changes.
        let taken = unsafe { gnx_install(&raw const TABLE, size_of::<Table>()) };
        assert!(
            taken,
            "seam.cpp was compiled with another list of calls than calls.rs"
        );
    });
}

#[cfg(test)]
pub(super) fn symbols() -> Vec<String> {
    let mut symbols = Vec::new();
    loop {
        // SAFETY: it takes any number.
        let symbol = unsafe { gnx_symbol(symbols.len()) };
        if symbol.is_null() {
            return symbols;
        }
        // SAFETY: it is a literal.
        symbols.push(
            unsafe { std::ffi::CStr::from_ptr(symbol) }
                .to_string_lossy()
                .into_owned(),
        );
    }
}
