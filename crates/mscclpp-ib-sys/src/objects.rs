// SPDX-License-Identifier: MIT
//! Objects that libibverbs allocates: devices, contexts and what is made in them. Programs see
//! pointers to them and read some fields.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use crate::attributes::ibv_port_attr;
use crate::layout::c_structures;
use crate::requests::{ibv_recv_wr, ibv_send_wr, ibv_wc};

/// A function that this crate never calls: its place counts, its type does not.
pub type Uncalled = Option<unsafe extern "C" fn()>;

/// `poll_cq` of [`ibv_context_ops`].
pub type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
/// `req_notify_cq` of [`ibv_context_ops`].
pub type ReqNotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
/// `post_send` of [`ibv_context_ops`].
pub type PostSend =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
/// `post_recv` of [`ibv_context_ops`].
pub type PostRecv =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
/// `query_port` of [`verbs_context`].
pub type QueryPort = unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int;

c_structures! {
    struct ibv_device {
        _ops: _ibv_device_ops,
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }
    struct _ibv_device_ops {
        _dummy1: Uncalled,
        _dummy2: Uncalled,
    }
    struct ibv_context_ops {
        _compat_query_device: Uncalled,
        _compat_query_port: Uncalled,
        _compat_alloc_pd: Uncalled,
        _compat_dealloc_pd: Uncalled,
        _compat_reg_mr: Uncalled,
        _compat_rereg_mr: Uncalled,
        _compat_dereg_mr: Uncalled,
        alloc_mw: Uncalled,
        bind_mw: Uncalled,
        dealloc_mw: Uncalled,
        _compat_create_cq: Uncalled,
        poll_cq: Option<PollCq>,
        req_notify_cq: Option<ReqNotifyCq>,
        _compat_cq_event: Uncalled,
        _compat_resize_cq: Uncalled,
        _compat_destroy_cq: Uncalled,
        _compat_create_srq: Uncalled,
        _compat_modify_srq: Uncalled,
        _compat_query_srq: Uncalled,
        _compat_destroy_srq: Uncalled,
        post_srq_recv: Uncalled,
        _compat_create_qp: Uncalled,
        _compat_query_qp: Uncalled,
        _compat_modify_qp: Uncalled,
        _compat_destroy_qp: Uncalled,
        post_send: Option<PostSend>,
        post_recv: Option<PostRecv>,
        _compat_create_ah: Uncalled,
        _compat_destroy_ah: Uncalled,
        _compat_attach_mcast: Uncalled,
        _compat_detach_mcast: Uncalled,
        _compat_async_event: Uncalled,
    }
    struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }
    // New fields are added at its front: `sz` and `context` stay where they are, counted from its end.
    struct verbs_context {
        query_port: Option<QueryPort>,
        advise_mr: Uncalled,
        alloc_null_mr: Uncalled,
        read_counters: Uncalled,
        attach_counters_point_flow: Uncalled,
        create_counters: Uncalled,
        destroy_counters: Uncalled,
        reg_dm_mr: Uncalled,
        alloc_dm: Uncalled,
        free_dm: Uncalled,
        modify_flow_action_esp: Uncalled,
        destroy_flow_action: Uncalled,
        create_flow_action_esp: Uncalled,
        modify_qp_rate_limit: Uncalled,
        alloc_parent_domain: Uncalled,
        dealloc_td: Uncalled,
        alloc_td: Uncalled,
        modify_cq: Uncalled,
        post_srq_ops: Uncalled,
        destroy_rwq_ind_table: Uncalled,
        create_rwq_ind_table: Uncalled,
        destroy_wq: Uncalled,
        modify_wq: Uncalled,
        create_wq: Uncalled,
        query_rt_values: Uncalled,
        create_cq_ex: Uncalled,
        r#priv = "priv_": *mut c_void,
        query_device_ex: Uncalled,
        ibv_destroy_flow: Uncalled,
        ABI_placeholder2: Uncalled,
        ibv_create_flow: Uncalled,
        ABI_placeholder1: Uncalled,
        open_qp: Uncalled,
        create_qp_ex: Uncalled,
        get_srq_num: Uncalled,
        create_srq_ex: Uncalled,
        open_xrcd: Uncalled,
        close_xrcd: Uncalled,
        _ABI_placeholder3: u64,
        sz: usize,
        context: ibv_context,
    }
    struct ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }
    struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }
    struct ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        refcnt: c_int,
    }
    struct ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }
    struct ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut c_void,
        handle: u32,
        qp_num: u32,
        state: c_uint,
        qp_type: c_uint,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }
}
