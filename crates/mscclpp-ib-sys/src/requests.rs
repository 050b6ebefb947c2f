// SPDX-License-Identifier: MIT
//! Work requests and work completions.

use std::ffi::{c_int, c_uint, c_void};

use crate::layout::c_structures;

c_structures! {
    struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }
    struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: c_uint,
        send_flags: c_uint,
        // Big-endian.
        imm_data = "__bindgen_anon_1": u32,
        wr: ibv_send_wr_remote,
        // A union with one member, the number of an XRC queue.
        qp_type: u32,
        // A union for memory windows and segmentation.
        window_or_segmentation = "__bindgen_anon_2": [u64; 6],
    }
    union ibv_send_wr_remote = "ibv_send_wr__bindgen_ty_2" {
        rdma: ibv_send_wr_rdma,
        atomic: ibv_send_wr_atomic,
        ud: ibv_send_wr_ud,
    }
    struct ibv_send_wr_rdma = "ibv_send_wr__bindgen_ty_2__bindgen_ty_1" {
        remote_addr: u64,
        rkey: u32,
    }
    struct ibv_send_wr_atomic = "ibv_send_wr__bindgen_ty_2__bindgen_ty_2" {
        remote_addr: u64,
        compare_add: u64,
        swap: u64,
        rkey: u32,
    }
    struct ibv_send_wr_ud = "ibv_send_wr__bindgen_ty_2__bindgen_ty_3" {
        ah: *mut c_void,
        remote_qpn: u32,
        remote_qkey: u32,
    }
    struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }
    struct ibv_wc {
        wr_id: u64,
        status: c_uint,
        opcode: c_uint,
        vendor_err: u32,
        byte_len: u32,
        // Big-endian.
        imm_data = "__bindgen_anon_1": u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }
}
