// SPDX-License-Identifier: MIT
//! A shared object such as a user may build: it exports one function, and has the library
//! inside. `tests/library.rs` looks at what else it exports.

use std::ffi::c_void;

use gpunetio_sys::{ffi, library_version, version};

/// What such an object may call. It is kept whether it is called or not.
#[used]
static CALLED: [&(dyn Fn() -> *const c_void + Sync); 7] = [
    &|| ffi::doca_gpu_create as *const c_void,
    &|| ffi::doca_verbs_umem_create as *const c_void,
    &|| ffi::doca_verbs_uar_create as *const c_void,
    &|| ffi::doca_verbs_cq_create as *const c_void,
    &|| ffi::doca_verbs_qp_create as *const c_void,
    &|| ffi::doca_verbs_qp_modify as *const c_void,
    &|| version::export_qp as *const c_void,
];

/// Major version of the library inside; 0 if it does not tell.
#[unsafe(no_mangle)]
pub extern "C" fn users_entry() -> u32 {
    library_version().map_or(0, |library| library.version[0].into())
}
