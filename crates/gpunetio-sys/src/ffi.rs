// SPDX-License-Identifier: MIT
//! The library's functions, as far as a queue pair made of low-level calls needs them.
//!
//! Declared by hand; a test holds each signature, size, offset and number against the library's
//! headers (`layout.cpp`). What differs between versions is in [`version`](crate::version).
//!
//! They are not safe to call on one object from two threads at once. Objects stand on those that
//! they were made with, which have to live longer. In a process where the library's calls go to a
//! table of tests (feature `seam`), all of them are to be called within `seam::with`, and an object
//! only under the backend that it was made under.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::Error;
use crate::device::DevQp;
use crate::library::Loaded;
use crate::result::DocaError;
use crate::verbs::{IbvPd, opaque};

opaque! {
    /// `doca_gpu_t`: a GPU.
    DocaGpu;
    /// `doca_dev_t`: a device of verbs.
    DocaDev;
    /// `doca_verbs_umem_t`: memory that was registered for the device's own use.
    DocaUmem;
    /// `doca_verbs_uar_t`: a page of doorbells.
    DocaUar;
    /// `doca_verbs_cq_attr_t`: what a completion queue is to be.
    DocaCqAttr;
    /// `struct doca_verbs_cq_t`: a completion queue.
    DocaCq;
    /// `doca_verbs_qp_init_attr_t`: what a queue pair is to be.
    DocaQpInitAttr;
    /// `doca_verbs_qp_attr_t`: what is to change of a queue pair.
    DocaQpAttr;
    /// `doca_verbs_ah_attr_t`: the address of a peer.
    DocaAhAttr;
    /// `struct doca_verbs_qp_t`: a queue pair.
    DocaQp;
    /// `struct doca_gpu_verbs_qp`: a queue pair that was exported to a GPU.
    DocaExportedQp;
}

/// `struct doca_verbs_gid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DocaGid {
    /// In network order.
    pub raw: [u8; 16],
}

/// `struct doca_gpu_verbs_qp_error_info`. Of its fields the library sets the first alone.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the library's names; not one but the first is ever set"
)]
pub struct DocaErrorInfo {
    /// The queue pair is in error.
    pub has_error: bool,
    pub syndrome: c_int,
    pub vendor_err_synd: c_int,
    pub hw_err_synd: c_int,
    pub hw_synd_type: c_int,
    pub wqe_counter: c_int,
}

const _: () = assert!(size_of::<DocaErrorInfo>() == 24);

macro_rules! numbers {
    ($($(#[$doc:meta])* $module:ident: $type:ty { $($name:ident = $value:expr,)* })*) => {$(
        $(#[$doc])*
        #[expect(missing_docs, reason = "the library's names, without their prefix")]
        pub mod $module {
            $( pub const $name: $type = $value; )*
        }
    )*};
}

numbers! {
    /// `DOCA_VERBS_UAR_ALLOCATION_TYPE_*`.
    uar_type: i32 { BLUEFLAME = 0, NONCACHE = 1, NONCACHE_DEDICATED = 2, }
    /// `DOCA_VERBS_QP_STATE_*`.
    state: i32 { RST = 0, INIT = 1, RTR = 2, RTS = 3, ERR = 4, }
    /// `DOCA_VERBS_ADDR_TYPE_*`.
    address_type: i32 { IPV4 = 0, IPV6 = 1, IB_GRH = 2, IB_NO_GRH = 3, }
    /// `DOCA_VERBS_MTU_SIZE_*`: one less than verbs' number of the same size.
    mtu: i32 { B256 = 0, B512 = 1, B1K = 2, B2K = 3, B4K = 4, }
    /// `DOCA_VERBS_CQ_*_OVERRUN`.
    overrun: i32 { DISABLE = 0, ENABLE = 1, }
    /// `DOCA_VERBS_QP_ATOMIC_MODE_*`.
    atomic_mode: i32 { NONE = 0, IB_SPEC = 1, }
    /// `DOCA_VERBS_QP_SEND_DBR_MODE_*`.
    record_mode: i32 { DBR_VALID = 0, NO_DBR_EXT = 1, }
    /// `DOCA_GPUNETIO_VERBS_SEND_DBR_MODE_EXT_*`.
    record_mode_ext: i32 { VALID_DBR = 0, NO_DBR_HW = 1, NO_DBR_SW_EMULATED = 2, }
    /// `DOCA_GPUNETIO_VERBS_NIC_HANDLER_*`: who rings doorbells.
    handler: i32 { AUTO = 0, CPU_PROXY = 1, GPU_SM_DB = 2, GPU_SM_BF = 6, GPU_SM_NO_DBR = 10, }
    /// `DOCA_GPUNETIO_VERBS_MEM_TYPE_*`: where a queue lies.
    memory_type: i32 { AUTO = 0, HOST = 1, GPU = 2, }
    /// `DOCA_VERBS_QP_ATTR_*`: which attributes `doca_verbs_qp_modify` is given.
    attribute: i32 {
        ALLOW_REMOTE_WRITE = 1 << 0,
        ALLOW_REMOTE_READ = 1 << 1,
        PKEY_INDEX = 1 << 2,
        MIN_RNR_TIMER = 1 << 3,
        PORT_NUM = 1 << 4,
        NEXT_STATE = 1 << 5,
        CURRENT_STATE = 1 << 6,
        PATH_MTU = 1 << 7,
        RQ_PSN = 1 << 8,
        SQ_PSN = 1 << 9,
        DEST_QP_NUM = 1 << 10,
        ACK_TIMEOUT = 1 << 11,
        RETRY_CNT = 1 << 12,
        RNR_RETRY = 1 << 13,
        AH_ATTR = 1 << 14,
        ATOMIC_MODE = 1 << 15,
        MAX_QP_RD_ATOMIC = 1 << 16,
        MAX_DEST_RD_ATOMIC = 1 << 17,
    }
}

/// `DOCA_VERBS_QP_TYPE_RC`.
pub const QP_TYPE_RC: u32 = 0;
/// `DOCA_VERBS_DMABUF_INVALID_FD`: memory that is no dma-buf.
pub const NO_DMABUF: c_int = -1;

macro_rules! functions {
    ($( fn $name:ident($($argument:ident: $type:ty),*) -> DocaError; )*) => {
        /// The library's functions, by their names.
        ///
        /// Each is as safe as its own documentation says: pointers are valid, and objects alive and
        /// not used by another thread.
        #[derive(Debug)]
        #[expect(missing_docs, reason = "the library's own; its headers document them")]
        pub struct Functions {
            $( pub $name: unsafe extern "C" fn($($argument: $type),*) -> DocaError, )*
        }

        impl Functions {
            /// Looks each of them up.
            pub(crate) fn of(library: &Loaded<'_>) -> Result<Self, Error> {
                Ok(Self {
                    // SAFETY: the function of that name has this signature in each version that is
                    // understood; `layout.cpp` holds it against their headers.
                    $( $name: unsafe { library.function(stringify!($name)) }?, )*
                })
            }
        }
    };
}

// One line a function, in the order of `layout.cpp`.
#[rustfmt::skip]
functions! {
    fn doca_gpu_verbs_check_device_code_compatibility(version: u32) -> DocaError;
    fn doca_gpu_verbs_check_host_code_compatibility(version: u32) -> DocaError;

    fn doca_gpu_create(bus_id: *const c_char, gpu: *mut *mut DocaGpu) -> DocaError;
    fn doca_gpu_destroy(gpu: *mut DocaGpu) -> DocaError;
    fn doca_gpu_get_dmabuf_fd(gpu: *mut DocaGpu, memory: *mut c_void, size: usize, fd: *mut c_int) -> DocaError;
    fn doca_verbs_dev_open(pd: *mut IbvPd, dev: *mut *mut DocaDev) -> DocaError;
    fn doca_verbs_dev_close(dev: *mut DocaDev) -> DocaError;

    fn doca_verbs_umem_create(dev: *mut DocaDev, gpu: *mut DocaGpu, address: *mut c_void, size: usize, access: u32, dmabuf: c_int, dmabuf_offset: usize, umem: *mut *mut DocaUmem) -> DocaError;
    fn doca_verbs_umem_destroy(umem: *mut DocaUmem) -> DocaError;
    fn doca_verbs_umem_get_id(umem: *const DocaUmem, id: *mut u32) -> DocaError;
    fn doca_verbs_uar_create(dev: *mut DocaDev, kind: i32, uar: *mut *mut DocaUar) -> DocaError;
    fn doca_verbs_uar_destroy(uar: *mut DocaUar) -> DocaError;
    fn doca_verbs_uar_id_get(uar: *const DocaUar, id: *mut u32) -> DocaError;
    fn doca_verbs_uar_reg_addr_get(uar: *const DocaUar, address: *mut *mut c_void) -> DocaError;

    fn doca_verbs_cq_attr_create(attr: *mut *mut DocaCqAttr) -> DocaError;
    fn doca_verbs_cq_attr_destroy(attr: *mut DocaCqAttr) -> DocaError;
    fn doca_verbs_cq_attr_set_cq_size(attr: *mut DocaCqAttr, entries: u32) -> DocaError;
    fn doca_verbs_cq_attr_set_external_umem(attr: *mut DocaCqAttr, umem: *mut DocaUmem, offset: u64) -> DocaError;
    fn doca_verbs_cq_attr_set_external_uar(attr: *mut DocaCqAttr, uar: *mut DocaUar) -> DocaError;
    fn doca_verbs_cq_attr_set_cq_overrun(attr: *mut DocaCqAttr, overrun: i32) -> DocaError;
    fn doca_verbs_cq_attr_set_cq_collapsed(attr: *mut DocaCqAttr, collapsed: u8) -> DocaError;
    fn doca_verbs_cq_create(dev: *mut DocaDev, attr: *mut DocaCqAttr, cq: *mut *mut DocaCq) -> DocaError;
    fn doca_verbs_cq_destroy(cq: *mut DocaCq) -> DocaError;

    fn doca_verbs_qp_init_attr_create(attr: *mut *mut DocaQpInitAttr) -> DocaError;
    fn doca_verbs_qp_init_attr_destroy(attr: *mut DocaQpInitAttr) -> DocaError;
    fn doca_verbs_qp_init_attr_set_pd(attr: *mut DocaQpInitAttr, dev: *mut DocaDev) -> DocaError;
    fn doca_verbs_qp_init_attr_set_send_cq(attr: *mut DocaQpInitAttr, cq: *mut DocaCq) -> DocaError;
    fn doca_verbs_qp_init_attr_set_sq_sig_all(attr: *mut DocaQpInitAttr, all: c_int) -> DocaError;
    fn doca_verbs_qp_init_attr_set_sq_wr(attr: *mut DocaQpInitAttr, requests: u32) -> DocaError;
    fn doca_verbs_qp_init_attr_set_rq_wr(attr: *mut DocaQpInitAttr, requests: u32) -> DocaError;
    fn doca_verbs_qp_init_attr_set_send_max_sges(attr: *mut DocaQpInitAttr, entries: u32) -> DocaError;
    fn doca_verbs_qp_init_attr_set_receive_max_sges(attr: *mut DocaQpInitAttr, entries: u32) -> DocaError;
    fn doca_verbs_qp_init_attr_set_user_index(attr: *mut DocaQpInitAttr, index: u32) -> DocaError;
    fn doca_verbs_qp_init_attr_set_qp_type(attr: *mut DocaQpInitAttr, kind: u32) -> DocaError;
    fn doca_verbs_qp_init_attr_set_external_umem(attr: *mut DocaQpInitAttr, umem: *mut DocaUmem, offset: u64) -> DocaError;
    fn doca_verbs_qp_init_attr_set_external_umem_dbr(attr: *mut DocaQpInitAttr, umem: *mut DocaUmem, offset: u64) -> DocaError;
    fn doca_verbs_qp_init_attr_set_external_uar(attr: *mut DocaQpInitAttr, uar: *mut DocaUar) -> DocaError;
    fn doca_verbs_qp_init_attr_set_core_direct_master(attr: *mut DocaQpInitAttr, master: u8) -> DocaError;
    fn doca_verbs_qp_init_attr_set_send_dbr_mode(attr: *mut DocaQpInitAttr, mode: i32) -> DocaError;

    fn doca_verbs_qp_create(dev: *mut DocaDev, attr: *mut DocaQpInitAttr, qp: *mut *mut DocaQp) -> DocaError;
    fn doca_verbs_qp_destroy(qp: *mut DocaQp) -> DocaError;
    fn doca_verbs_qp_modify(qp: *mut DocaQp, attr: *mut DocaQpAttr, attributes: c_int) -> DocaError;
    fn doca_verbs_qp_query(qp: *mut DocaQp, attr: *mut DocaQpAttr, init: *mut DocaQpInitAttr, attributes: *mut c_int) -> DocaError;
    fn doca_verbs_qp_get_qpn(qp: *const DocaQp, number: *mut u32) -> DocaError;

    fn doca_verbs_qp_attr_create(attr: *mut *mut DocaQpAttr) -> DocaError;
    fn doca_verbs_qp_attr_destroy(attr: *mut DocaQpAttr) -> DocaError;
    fn doca_verbs_qp_attr_set_next_state(attr: *mut DocaQpAttr, state: i32) -> DocaError;
    fn doca_verbs_qp_attr_set_current_state(attr: *mut DocaQpAttr, state: i32) -> DocaError;
    fn doca_verbs_qp_attr_get_current_state(attr: *mut DocaQpAttr, state: *mut i32) -> DocaError;
    fn doca_verbs_qp_attr_set_path_mtu(attr: *mut DocaQpAttr, mtu: i32) -> DocaError;
    fn doca_verbs_qp_attr_set_rq_psn(attr: *mut DocaQpAttr, psn: u32) -> DocaError;
    fn doca_verbs_qp_attr_set_sq_psn(attr: *mut DocaQpAttr, psn: u32) -> DocaError;
    fn doca_verbs_qp_attr_set_dest_qp_num(attr: *mut DocaQpAttr, number: u32) -> DocaError;
    fn doca_verbs_qp_attr_set_allow_remote_write(attr: *mut DocaQpAttr, allow: c_int) -> DocaError;
    fn doca_verbs_qp_attr_set_allow_remote_read(attr: *mut DocaQpAttr, allow: c_int) -> DocaError;
    fn doca_verbs_qp_attr_set_atomic_mode(attr: *mut DocaQpAttr, mode: i32) -> DocaError;
    fn doca_verbs_qp_attr_set_ah_attr(attr: *mut DocaQpAttr, address: *mut DocaAhAttr) -> DocaError;
    fn doca_verbs_qp_attr_set_pkey_index(attr: *mut DocaQpAttr, index: u16) -> DocaError;
    fn doca_verbs_qp_attr_set_port_num(attr: *mut DocaQpAttr, port: u16) -> DocaError;
    fn doca_verbs_qp_attr_set_ack_timeout(attr: *mut DocaQpAttr, timeout: u16) -> DocaError;
    fn doca_verbs_qp_attr_set_retry_cnt(attr: *mut DocaQpAttr, count: u16) -> DocaError;
    fn doca_verbs_qp_attr_set_rnr_retry(attr: *mut DocaQpAttr, count: u16) -> DocaError;
    fn doca_verbs_qp_attr_set_min_rnr_timer(attr: *mut DocaQpAttr, timer: u16) -> DocaError;
    fn doca_verbs_qp_attr_set_max_rd_atomic(attr: *mut DocaQpAttr, outstanding: u8) -> DocaError;
    fn doca_verbs_qp_attr_set_max_dest_rd_atomic(attr: *mut DocaQpAttr, outstanding: u8) -> DocaError;

    fn doca_verbs_ah_attr_create(dev: *mut DocaDev, address: *mut *mut DocaAhAttr) -> DocaError;
    fn doca_verbs_ah_attr_destroy(address: *mut DocaAhAttr) -> DocaError;
    fn doca_verbs_ah_attr_set_gid(address: *mut DocaAhAttr, gid: DocaGid) -> DocaError;
    fn doca_verbs_ah_attr_set_addr_type(address: *mut DocaAhAttr, kind: i32) -> DocaError;
    fn doca_verbs_ah_attr_set_dlid(address: *mut DocaAhAttr, lid: u32) -> DocaError;
    fn doca_verbs_ah_attr_set_sl(address: *mut DocaAhAttr, level: u8) -> DocaError;
    fn doca_verbs_ah_attr_set_sgid_index(address: *mut DocaAhAttr, index: u8) -> DocaError;
    fn doca_verbs_ah_attr_set_static_rate(address: *mut DocaAhAttr, rate: u8) -> DocaError;
    fn doca_verbs_ah_attr_set_hop_limit(address: *mut DocaAhAttr, limit: u8) -> DocaError;
    fn doca_verbs_ah_attr_set_traffic_class(address: *mut DocaAhAttr, class: u8) -> DocaError;

    fn doca_gpu_verbs_unexport_qp(gpu: *mut DocaGpu, qp: *mut DocaExportedQp) -> DocaError;
    fn doca_gpu_verbs_get_qp_dev(qp: *mut DocaExportedQp, device: *mut *mut DevQp) -> DocaError;
    fn doca_gpu_verbs_query_last_error(qp: *mut DocaExportedQp, error: *mut DocaErrorInfo) -> DocaError;
    fn doca_gpu_verbs_export_multi_qps_dev(gpu: *mut DocaGpu, qps: *mut *mut DocaExportedQp, count: c_uint, devices: *mut *mut DevQp) -> DocaError;
    fn doca_gpu_verbs_unexport_multi_qps_dev(gpu: *mut DocaGpu, qps: *mut *mut DocaExportedQp, count: c_uint, devices: *mut DevQp) -> DocaError;
}
