// SPDX-License-Identifier: MIT
//! What the library exports of a queue pair, for the GPU: the facts that this project's own
//! device code is given, and that a policy is checked against.
//!
//! The same from 2.0 to 4.1 (of 2.x and 4.1 the headers alone were seen). The library declares
//! both structures packed; all fields lie where they would lie anyway, and the size is a
//! multiple of 8.

use std::ffi::c_void;
use std::mem::offset_of;

/// `struct doca_gpu_dev_verbs_cq`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the library's names")]
pub struct DevCq {
    /// Address of the ring, for the GPU.
    pub cqe_daddr: *mut c_void,
    pub cq_num: u32,
    /// Entries of the ring.
    pub cqe_num: u32,
    pub dbrec: *mut u32,
    pub cqe_ci: u64,
    pub cqe_mask: u32,
    pub cqe_size: u8,
    /// `enum doca_gpu_dev_verbs_cq_type` from 4.0 on; 0, the same as 64 bytes, before.
    pub cq_type: u8,
    pub reserved1: [u8; 2],
    pub cqe_rsvd: u64,
    /// [`memory_type`](crate::ffi::memory_type).
    pub mem_type: i32,
    pub reserved2: [u8; 12],
}

/// `struct doca_gpu_dev_verbs_qp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the library's names")]
pub struct DevQp {
    pub sq_rsvd_index: u64,
    pub sq_ready_index: u64,
    pub sq_wqe_pi: u64,
    pub sq_num: u32,
    pub sq_num_shift8: u32,
    pub sq_num_shift8_be: u32,
    pub sq_num_shift8_be_ds: [u32; 5],
    pub sq_lock: i32,
    /// Work requests in the ring.
    pub sq_wqe_num: u16,
    pub sq_wqe_mask: u16,
    /// Address of the ring, for the GPU.
    pub sq_wqe_daddr: *mut c_void,
    /// Address of the send half of the doorbell record, for the GPU.
    pub sq_dbrec: *mut u32,
    /// Address of the doorbell, for the GPU.
    pub sq_db: *mut u64,
    pub reserved1: [u8; 72],
    pub cq_sq: DevCq,
    pub reserved3: [u8; 64],
    /// [`handler`](crate::ffi::handler).
    pub nic_handler: i32,
    /// [`memory_type`](crate::ffi::memory_type).
    pub mem_type: i32,
}

const _: () = {
    assert!(size_of::<DevCq>() == 64);
    assert!(offset_of!(DevCq, cqe_daddr) == 0 && offset_of!(DevCq, cq_num) == 8);
    assert!(offset_of!(DevCq, cqe_num) == 12 && offset_of!(DevCq, dbrec) == 16);
    assert!(offset_of!(DevCq, cqe_ci) == 24 && offset_of!(DevCq, cqe_mask) == 32);
    assert!(offset_of!(DevCq, cqe_size) == 36 && offset_of!(DevCq, cq_type) == 37);
    assert!(offset_of!(DevCq, cqe_rsvd) == 40 && offset_of!(DevCq, mem_type) == 48);
    assert!(size_of::<DevQp>() == 296);
    assert!(offset_of!(DevQp, sq_rsvd_index) == 0 && offset_of!(DevQp, sq_ready_index) == 8);
    assert!(offset_of!(DevQp, sq_wqe_pi) == 16 && offset_of!(DevQp, sq_num) == 24);
    assert!(offset_of!(DevQp, sq_num_shift8) == 28 && offset_of!(DevQp, sq_num_shift8_be) == 32);
    assert!(offset_of!(DevQp, sq_num_shift8_be_ds) == 36 && offset_of!(DevQp, sq_lock) == 56);
    assert!(offset_of!(DevQp, sq_wqe_num) == 60 && offset_of!(DevQp, sq_wqe_mask) == 62);
    assert!(offset_of!(DevQp, sq_wqe_daddr) == 64 && offset_of!(DevQp, sq_dbrec) == 72);
    assert!(offset_of!(DevQp, sq_db) == 80 && offset_of!(DevQp, cq_sq) == 160);
    assert!(offset_of!(DevQp, nic_handler) == 288 && offset_of!(DevQp, mem_type) == 292);
};
