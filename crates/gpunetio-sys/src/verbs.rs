// SPDX-License-Identifier: MIT
//! Structures of rdma-core that the library's functions, and those that it calls, take.
//!
//! What neither looks into is opaque. The others are asserted in `seam/seam.c` too.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}
pub(crate) use opaque;

opaque! {
    /// `struct ibv_context`: an opened device.
    IbvContext;
    /// `struct ibv_ah`: an address that was resolved.
    IbvAh;
    /// `struct mlx5dv_devx_obj`: an object made by a command.
    Mlx5Obj;
}

/// `struct ibv_pd`. Made by the application and given to the library.
#[derive(Debug)]
#[repr(C)]
pub struct IbvPd {
    /// The device that it belongs to.
    pub context: *mut IbvContext,
    /// Number of the kernel's.
    pub handle: u32,
}

/// `struct ibv_device_attr`.
#[derive(Clone, Debug)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "names of rdma-core's manual, ibv_query_device(3)"
)]
pub struct IbvDeviceAttr {
    pub fw_ver: [u8; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `struct ibv_ah_attr`, with its `struct ibv_global_route`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "names of rdma-core's manual, ibv_create_ah(3)")]
pub struct IbvAhAttr {
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct mlx5dv_devx_umem_in`: memory to register for the device's own use.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Mlx5UmemIn {
    /// Where it begins; with a dma-buf, the offset in it.
    pub address: *mut c_void,
    /// In bytes.
    pub size: usize,
    /// `IBV_ACCESS_*`.
    pub access: u32,
    /// Page sizes that may be used.
    pub page_sizes: u64,
    /// [`DMABUF`](Self::DMABUF) if `dmabuf_fd` counts.
    pub mask: u64,
    /// A dma-buf, borrowed for the call.
    pub dmabuf_fd: c_int,
}

impl Mlx5UmemIn {
    /// `MLX5DV_UMEM_MASK_DMABUF`.
    pub const DMABUF: u64 = 1;
}

/// `struct mlx5dv_devx_umem`: memory that was registered for the device's own use. What follows
/// the number belongs to who made it.
#[derive(Debug)]
#[repr(C)]
pub struct Mlx5Umem {
    /// By which commands name it.
    pub id: u32,
}

/// `struct mlx5dv_devx_uar`: a page of doorbells. What follows belongs to who made it.
#[derive(Debug)]
#[repr(C)]
pub struct Mlx5Uar {
    /// Where a send queue's doorbell is written.
    pub register: *mut c_void,
    /// Where the page begins.
    pub base: *mut c_void,
    /// By which commands name it.
    pub page_id: u32,
    /// For mapping it in another process.
    pub mmap_offset: i64,
    /// Which fields follow.
    pub mask: u64,
}

impl Mlx5Uar {
    /// `MLX5DV_UAR_ALLOC_TYPE_BF`: write-combining.
    pub const BLUE_FLAME: u32 = 0;
    /// `MLX5DV_UAR_ALLOC_TYPE_NC`: not cached.
    pub const NON_CACHED: u32 = 1;
    /// A page for one owner alone, of newer kernels.
    pub const NON_CACHED_DEDICATED: u32 = 1 << 31;
}

/// `struct mlx5_wqe_av`: a resolved address, as work requests hold it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "names of mlx5dv.h")]
pub struct Mlx5Av {
    pub key: u64,
    pub dqp_dct: u32,
    pub stat_rate_sl: u8,
    pub fl_mlid: u8,
    pub rlid: u16,
    pub reserved0: [u8; 4],
    pub rmac: [u8; 6],
    pub tclass: u8,
    pub hop_limit: u8,
    pub grh_gid_fl: u32,
    pub rgid: [u8; 16],
}

/// `struct mlx5dv_ah`.
#[derive(Debug)]
#[repr(C)]
pub struct Mlx5dvAh {
    /// Owned by the address handle.
    pub av: *mut Mlx5Av,
    /// Which fields count.
    pub mask: u64,
}

/// `struct mlx5dv_pd`.
#[derive(Debug)]
#[repr(C)]
pub struct Mlx5dvPd {
    /// By which commands name it.
    pub number: u32,
    /// Which fields count.
    pub mask: u64,
}

/// One pair of `struct mlx5dv_obj`.
#[derive(Debug)]
#[repr(C)]
pub struct Mlx5dvPair<I, O> {
    /// The object of verbs.
    pub input: *mut I,
    /// Where what mlx5 knows of it is written.
    pub output: *mut O,
}

/// `struct mlx5dv_obj`. The library asks for protection domains and addresses.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "names of mlx5dv.h")]
pub struct Mlx5dvObj {
    pub qp: Mlx5dvPair<c_void, c_void>,
    pub cq: Mlx5dvPair<c_void, c_void>,
    pub srq: Mlx5dvPair<c_void, c_void>,
    pub rwq: Mlx5dvPair<c_void, c_void>,
    pub dm: Mlx5dvPair<c_void, c_void>,
    pub ah: Mlx5dvPair<IbvAh, Mlx5dvAh>,
    pub pd: Mlx5dvPair<IbvPd, Mlx5dvPd>,
    pub devx: Mlx5dvPair<Mlx5Obj, c_void>,
}

impl Mlx5dvObj {
    /// `MLX5DV_OBJ_AH`.
    pub const AH: u64 = 1 << 5;
    /// `MLX5DV_OBJ_PD`.
    pub const PD: u64 = 1 << 6;
}

const _: () = {
    assert!(size_of::<IbvPd>() == 16 && offset_of!(IbvPd, handle) == 8);
    assert!(size_of::<IbvDeviceAttr>() == 232);
    assert!(offset_of!(IbvDeviceAttr, vendor_id) == 96);
    assert!(offset_of!(IbvDeviceAttr, max_cqe) == 132);
    assert!(offset_of!(IbvDeviceAttr, max_qp_rd_atom) == 144);
    assert!(offset_of!(IbvDeviceAttr, max_qp_init_rd_atom) == 156);
    assert!(offset_of!(IbvDeviceAttr, atomic_cap) == 164);
    assert!(offset_of!(IbvDeviceAttr, max_pkeys) == 224);
    assert!(offset_of!(IbvDeviceAttr, phys_port_cnt) == 227);
    assert!(size_of::<IbvAhAttr>() == 32);
    assert!(offset_of!(IbvAhAttr, sgid_index) == 20);
    assert!(offset_of!(IbvAhAttr, dlid) == 24 && offset_of!(IbvAhAttr, port_num) == 30);
    assert!(size_of::<Mlx5UmemIn>() == 48 && offset_of!(Mlx5UmemIn, access) == 16);
    assert!(offset_of!(Mlx5UmemIn, page_sizes) == 24 && offset_of!(Mlx5UmemIn, dmabuf_fd) == 40);
    assert!(size_of::<Mlx5Umem>() == 4);
    assert!(size_of::<Mlx5Uar>() == 40 && offset_of!(Mlx5Uar, page_id) == 16);
    assert!(offset_of!(Mlx5Uar, mmap_offset) == 24 && offset_of!(Mlx5Uar, mask) == 32);
    assert!(size_of::<Mlx5Av>() == 48 && offset_of!(Mlx5Av, rmac) == 20);
    assert!(offset_of!(Mlx5Av, tclass) == 26 && offset_of!(Mlx5Av, rgid) == 32);
    assert!(size_of::<Mlx5dvAh>() == 16 && size_of::<Mlx5dvPd>() == 16);
    assert!(size_of::<Mlx5dvObj>() == 128 && offset_of!(Mlx5dvObj, ah) == 80);
    assert!(offset_of!(Mlx5dvObj, pd) == 96);
};
