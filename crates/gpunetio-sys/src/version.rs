// SPDX-License-Identifier: MIT
//! What differs between 3.0 and 4.0, in Rust. In C++ it is `seam_4.cpp`, and what `layout.cpp`
//! has under a version.

use std::ffi::c_void;

use crate::ffi::{DocaCq, DocaExportedQp, DocaGpu, DocaQp};
use crate::result::DocaError;

#[cfg(gpunetio_major = "3")]
unsafe extern "C" {
    fn doca_verbs_cq_get_cqn(cq: *const DocaCq, number: *mut u32) -> DocaError;
    fn doca_gpu_verbs_export_qp(
        gpu: *mut DocaGpu,
        qp: *mut DocaQp,
        handler: i32,
        queue: *mut c_void,
        cq: *mut DocaCq,
        record_mode: i32,
        exported: *mut *mut DocaExportedQp,
    ) -> DocaError;
}

#[cfg(gpunetio_major = "4")]
unsafe extern "C" {
    fn doca_verbs_cq_get_cq_num(cq: *const DocaCq, number: *mut u32) -> DocaError;
    fn doca_gpu_verbs_export_qp(
        gpu: *mut DocaGpu,
        qp: *mut DocaQp,
        handler: i32,
        queue: *mut c_void,
        cq: *mut DocaCq,
        record_mode: i32,
        cq_type: u8,
        data_direct: bool,
        exported: *mut *mut DocaExportedQp,
    ) -> DocaError;
}

/// `doca_verbs_cq_get_cqn`, or as it is called from 4.0 on.
///
/// # Safety
///
/// As the library's function: both pointers are valid.
pub unsafe fn cq_number(cq: *const DocaCq, number: *mut u32) -> DocaError {
    // SAFETY: passed on.
    #[cfg(gpunetio_major = "3")]
    let result = unsafe { doca_verbs_cq_get_cqn(cq, number) };
    // SAFETY: passed on.
    #[cfg(gpunetio_major = "4")]
    let result = unsafe { doca_verbs_cq_get_cq_num(cq, number) };
    result
}

/// `doca_gpu_verbs_export_qp`, of a queue whose completions are 64 bytes each in the GPU's
/// memory, one an entry, and without Data Direct.
///
/// # Safety
///
/// As the library's function: the objects are alive, and `queue` is the GPU's memory that was
/// registered for the send queue.
pub unsafe fn export_qp(
    gpu: *mut DocaGpu,
    qp: *mut DocaQp,
    handler: i32,
    queue: *mut c_void,
    cq: *mut DocaCq,
    record_mode: i32,
    exported: *mut *mut DocaExportedQp,
) -> DocaError {
    // SAFETY: passed on.
    #[cfg(gpunetio_major = "3")]
    let result =
        unsafe { doca_gpu_verbs_export_qp(gpu, qp, handler, queue, cq, record_mode, exported) };
    // SAFETY: passed on. The type 0 is `DOCA_GPUNETIO_VERBS_CQ_64B`.
    #[cfg(gpunetio_major = "4")]
    let result = unsafe {
        doca_gpu_verbs_export_qp(gpu, qp, handler, queue, cq, record_mode, 0, false, exported)
    };
    result
}
