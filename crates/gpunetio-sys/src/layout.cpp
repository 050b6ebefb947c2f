// SPDX-License-Identifier: MIT
// Holds the declarations of this crate against the library's own: each size, offset, number and
// signature that Rust uses. Compiled by tests alone, and makes no code. Needs nothing but the
// library's public headers and C++17.
#include <cstddef>
#include <type_traits>

#include "doca_gpunetio_host.h"

#if DOCA_GPUNETIO_VERSION_MAJOR != 3 && DOCA_GPUNETIO_VERSION_MAJOR != 4
#error "GPUNetIO 3.0 and 4.0 are understood, no other"
#elif DOCA_GPUNETIO_VERSION_MINOR != 0
#error "GPUNetIO 3.0 and 4.0 are understood, no other"
#endif
// Without these the library never uses dma-buf, and never says so.
#if !defined(DOCA_GPUNETIO_HAVE_CUDA_DMABUF) || !defined(DOCA_GPUNETIO_HAVE_MLX5DV_UMEM_DMABUF)
#error "this GPUNetIO was configured without dma-buf"
#endif

// Rust's enumerations are i32, and its pointers and sizes 8 bytes.
static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8 && sizeof(bool) == 1);
template <class Enum>
constexpr bool isInt32 = std::is_enum_v<Enum> && sizeof(Enum) == 4;

#define SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type)
#define FIELD(type, field, at, bytes)                                               \
    static_assert(offsetof(type, field) == (at), #type "." #field);                 \
    static_assert(sizeof(type::field) == (bytes), #type "." #field)
#define NUMBER(name, number) static_assert(static_cast<long long>(name) == (number), #name)
#define SIGNATURE(function, ...) \
    static_assert(std::is_same_v<decltype(function), doca_error_t(__VA_ARGS__)>, #function)

// result.rs
static_assert(isInt32<doca_error_t>);
NUMBER(DOCA_SUCCESS, 0);
NUMBER(DOCA_ERROR_NOT_SUPPORTED, 4);
NUMBER(DOCA_ERROR_INVALID_VALUE, 6);
NUMBER(DOCA_ERROR_NO_MEMORY, 7);
NUMBER(DOCA_ERROR_BAD_STATE, 18);
NUMBER(DOCA_ERROR_OPERATING_SYSTEM, 20);
NUMBER(DOCA_ERROR_DRIVER, 21);
NUMBER(DOCA_ERROR_UNEXPECTED, 22);

// device.rs
SIZE(doca_gpu_dev_verbs_cq, 64);
FIELD(doca_gpu_dev_verbs_cq, cqe_daddr, 0, 8);
FIELD(doca_gpu_dev_verbs_cq, cq_num, 8, 4);
FIELD(doca_gpu_dev_verbs_cq, cqe_num, 12, 4);
FIELD(doca_gpu_dev_verbs_cq, dbrec, 16, 8);
FIELD(doca_gpu_dev_verbs_cq, cqe_ci, 24, 8);
FIELD(doca_gpu_dev_verbs_cq, cqe_mask, 32, 4);
FIELD(doca_gpu_dev_verbs_cq, cqe_size, 36, 1);
FIELD(doca_gpu_dev_verbs_cq, cqe_rsvd, 40, 8);
FIELD(doca_gpu_dev_verbs_cq, mem_type, 48, 4);
#if DOCA_GPUNETIO_VERSION_MAJOR == 3
FIELD(doca_gpu_dev_verbs_cq, reserved1, 37, 3);
#else
FIELD(doca_gpu_dev_verbs_cq, cq_type, 37, 1);
NUMBER(DOCA_GPUNETIO_VERBS_CQ_64B, 0);
#endif
SIZE(doca_gpu_dev_verbs_qp, 296);
FIELD(doca_gpu_dev_verbs_qp, sq_rsvd_index, 0, 8);
FIELD(doca_gpu_dev_verbs_qp, sq_ready_index, 8, 8);
FIELD(doca_gpu_dev_verbs_qp, sq_wqe_pi, 16, 8);
FIELD(doca_gpu_dev_verbs_qp, sq_num, 24, 4);
FIELD(doca_gpu_dev_verbs_qp, sq_num_shift8, 28, 4);
FIELD(doca_gpu_dev_verbs_qp, sq_num_shift8_be, 32, 4);
FIELD(doca_gpu_dev_verbs_qp, sq_num_shift8_be_1ds, 36, 4);
FIELD(doca_gpu_dev_verbs_qp, sq_num_shift8_be_5ds, 52, 4);
FIELD(doca_gpu_dev_verbs_qp, sq_lock, 56, 4);
FIELD(doca_gpu_dev_verbs_qp, sq_wqe_num, 60, 2);
FIELD(doca_gpu_dev_verbs_qp, sq_wqe_mask, 62, 2);
FIELD(doca_gpu_dev_verbs_qp, sq_wqe_daddr, 64, 8);
FIELD(doca_gpu_dev_verbs_qp, sq_dbrec, 72, 8);
FIELD(doca_gpu_dev_verbs_qp, sq_db, 80, 8);
FIELD(doca_gpu_dev_verbs_qp, cq_sq, 160, 64);
FIELD(doca_gpu_dev_verbs_qp, nic_handler, 288, 4);
FIELD(doca_gpu_dev_verbs_qp, mem_type, 292, 4);

// ffi.rs
SIZE(doca_verbs_gid, 16);
SIZE(doca_gpu_verbs_qp_error_info, 24);
FIELD(doca_gpu_verbs_qp_error_info, has_error, 0, 1);
FIELD(doca_gpu_verbs_qp_error_info, syndrome, 4, 4);
FIELD(doca_gpu_verbs_qp_error_info, vendor_err_synd, 8, 4);
FIELD(doca_gpu_verbs_qp_error_info, hw_err_synd, 12, 4);
FIELD(doca_gpu_verbs_qp_error_info, hw_synd_type, 16, 4);
FIELD(doca_gpu_verbs_qp_error_info, wqe_counter, 20, 4);

static_assert(isInt32<doca_verbs_uar_allocation_type>);
NUMBER(DOCA_VERBS_UAR_ALLOCATION_TYPE_BLUEFLAME, 0);
NUMBER(DOCA_VERBS_UAR_ALLOCATION_TYPE_NONCACHE, 1);
NUMBER(DOCA_VERBS_UAR_ALLOCATION_TYPE_NONCACHE_DEDICATED, 2);
static_assert(isInt32<doca_verbs_qp_state>);
NUMBER(DOCA_VERBS_QP_STATE_RST, 0);
NUMBER(DOCA_VERBS_QP_STATE_INIT, 1);
NUMBER(DOCA_VERBS_QP_STATE_RTR, 2);
NUMBER(DOCA_VERBS_QP_STATE_RTS, 3);
NUMBER(DOCA_VERBS_QP_STATE_ERR, 4);
static_assert(isInt32<doca_verbs_addr_type>);
NUMBER(DOCA_VERBS_ADDR_TYPE_IPv4, 0);
NUMBER(DOCA_VERBS_ADDR_TYPE_IPv6, 1);
NUMBER(DOCA_VERBS_ADDR_TYPE_IB_GRH, 2);
NUMBER(DOCA_VERBS_ADDR_TYPE_IB_NO_GRH, 3);
static_assert(isInt32<doca_verbs_mtu_size>);
NUMBER(DOCA_VERBS_MTU_SIZE_256_BYTES, 0);
NUMBER(DOCA_VERBS_MTU_SIZE_512_BYTES, 1);
NUMBER(DOCA_VERBS_MTU_SIZE_1K_BYTES, 2);
NUMBER(DOCA_VERBS_MTU_SIZE_2K_BYTES, 3);
NUMBER(DOCA_VERBS_MTU_SIZE_4K_BYTES, 4);
static_assert(isInt32<doca_verbs_cq_overrun>);
NUMBER(DOCA_VERBS_CQ_DISABLE_OVERRUN, 0);
NUMBER(DOCA_VERBS_CQ_ENABLE_OVERRUN, 1);
static_assert(isInt32<doca_verbs_qp_atomic_mode>);
NUMBER(DOCA_VERBS_QP_ATOMIC_MODE_NONE, 0);
NUMBER(DOCA_VERBS_QP_ATOMIC_MODE_IB_SPEC, 1);
static_assert(isInt32<doca_verbs_qp_send_dbr_mode>);
NUMBER(DOCA_VERBS_QP_SEND_DBR_MODE_DBR_VALID, 0);
NUMBER(DOCA_VERBS_QP_SEND_DBR_MODE_NO_DBR_EXT, 1);
static_assert(isInt32<doca_gpu_verbs_send_dbr_mode_ext>);
NUMBER(DOCA_GPUNETIO_VERBS_SEND_DBR_MODE_EXT_VALID_DBR, 0);
NUMBER(DOCA_GPUNETIO_VERBS_SEND_DBR_MODE_EXT_NO_DBR_HW, 1);
NUMBER(DOCA_GPUNETIO_VERBS_SEND_DBR_MODE_EXT_NO_DBR_SW_EMULATED, 2);
static_assert(isInt32<doca_gpu_dev_verbs_nic_handler>);
NUMBER(DOCA_GPUNETIO_VERBS_NIC_HANDLER_AUTO, 0);
NUMBER(DOCA_GPUNETIO_VERBS_NIC_HANDLER_CPU_PROXY, 1);
NUMBER(DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB, 2);
NUMBER(DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_BF, 6);
NUMBER(DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_NO_DBR, 10);
static_assert(isInt32<doca_gpu_dev_verbs_mem_type>);
NUMBER(DOCA_GPUNETIO_VERBS_MEM_TYPE_AUTO, 0);
NUMBER(DOCA_GPUNETIO_VERBS_MEM_TYPE_HOST, 1);
NUMBER(DOCA_GPUNETIO_VERBS_MEM_TYPE_GPU, 2);
NUMBER(DOCA_VERBS_QP_ATTR_ALLOW_REMOTE_WRITE, 1 << 0);
NUMBER(DOCA_VERBS_QP_ATTR_ALLOW_REMOTE_READ, 1 << 1);
NUMBER(DOCA_VERBS_QP_ATTR_PKEY_INDEX, 1 << 2);
NUMBER(DOCA_VERBS_QP_ATTR_MIN_RNR_TIMER, 1 << 3);
NUMBER(DOCA_VERBS_QP_ATTR_PORT_NUM, 1 << 4);
NUMBER(DOCA_VERBS_QP_ATTR_NEXT_STATE, 1 << 5);
NUMBER(DOCA_VERBS_QP_ATTR_CURRENT_STATE, 1 << 6);
NUMBER(DOCA_VERBS_QP_ATTR_PATH_MTU, 1 << 7);
NUMBER(DOCA_VERBS_QP_ATTR_RQ_PSN, 1 << 8);
NUMBER(DOCA_VERBS_QP_ATTR_SQ_PSN, 1 << 9);
NUMBER(DOCA_VERBS_QP_ATTR_DEST_QP_NUM, 1 << 10);
NUMBER(DOCA_VERBS_QP_ATTR_ACK_TIMEOUT, 1 << 11);
NUMBER(DOCA_VERBS_QP_ATTR_RETRY_CNT, 1 << 12);
NUMBER(DOCA_VERBS_QP_ATTR_RNR_RETRY, 1 << 13);
NUMBER(DOCA_VERBS_QP_ATTR_AH_ATTR, 1 << 14);
NUMBER(DOCA_VERBS_QP_ATTR_ATOMIC_MODE, 1 << 15);
NUMBER(DOCA_VERBS_QP_ATTR_MAX_QP_RD_ATOMIC, 1 << 16);
NUMBER(DOCA_VERBS_QP_ATTR_MAX_DEST_RD_ATOMIC, 1 << 17);
NUMBER(DOCA_VERBS_QP_TYPE_RC, 0);
NUMBER(static_cast<int>(DOCA_VERBS_DMABUF_INVALID_FD), -1);

SIGNATURE(doca_gpu_verbs_get_library_version, uint32_t *);
SIGNATURE(doca_gpu_verbs_check_device_code_compatibility, uint32_t);
SIGNATURE(doca_gpu_verbs_check_host_code_compatibility, uint32_t);
SIGNATURE(doca_gpu_create, const char *, doca_gpu_t **);
SIGNATURE(doca_gpu_destroy, doca_gpu_t *);
SIGNATURE(doca_gpu_get_dmabuf_fd, doca_gpu_t *, void *, size_t, int *);
SIGNATURE(doca_verbs_dev_open, ibv_pd *, doca_dev_t **);
SIGNATURE(doca_verbs_dev_close, doca_dev_t *);
SIGNATURE(doca_verbs_umem_create, doca_dev_t *, doca_gpu_t *, void *, size_t, uint32_t, int, size_t, doca_verbs_umem_t **);
SIGNATURE(doca_verbs_umem_destroy, doca_verbs_umem_t *);
SIGNATURE(doca_verbs_umem_get_id, const doca_verbs_umem_t *, uint32_t *);
SIGNATURE(doca_verbs_uar_create, doca_dev_t *, doca_verbs_uar_allocation_type, doca_verbs_uar_t **);
SIGNATURE(doca_verbs_uar_destroy, doca_verbs_uar_t *);
SIGNATURE(doca_verbs_uar_id_get, const doca_verbs_uar_t *, uint32_t *);
SIGNATURE(doca_verbs_uar_reg_addr_get, const doca_verbs_uar_t *, void **);
SIGNATURE(doca_verbs_cq_attr_create, doca_verbs_cq_attr_t **);
SIGNATURE(doca_verbs_cq_attr_destroy, doca_verbs_cq_attr_t *);
SIGNATURE(doca_verbs_cq_attr_set_cq_size, doca_verbs_cq_attr_t *, uint32_t);
SIGNATURE(doca_verbs_cq_attr_set_external_umem, doca_verbs_cq_attr_t *, doca_verbs_umem_t *, uint64_t);
SIGNATURE(doca_verbs_cq_attr_set_external_uar, doca_verbs_cq_attr_t *, doca_verbs_uar_t *);
SIGNATURE(doca_verbs_cq_attr_set_cq_overrun, doca_verbs_cq_attr_t *, doca_verbs_cq_overrun);
SIGNATURE(doca_verbs_cq_attr_set_cq_collapsed, doca_verbs_cq_attr_t *, uint8_t);
SIGNATURE(doca_verbs_cq_create, doca_dev_t *, doca_verbs_cq_attr_t *, doca_verbs_cq_t **);
SIGNATURE(doca_verbs_cq_destroy, doca_verbs_cq_t *);
SIGNATURE(doca_verbs_qp_init_attr_create, doca_verbs_qp_init_attr_t **);
SIGNATURE(doca_verbs_qp_init_attr_destroy, doca_verbs_qp_init_attr_t *);
SIGNATURE(doca_verbs_qp_init_attr_set_pd, doca_verbs_qp_init_attr_t *, doca_dev_t *);
SIGNATURE(doca_verbs_qp_init_attr_set_send_cq, doca_verbs_qp_init_attr_t *, doca_verbs_cq_t *);
SIGNATURE(doca_verbs_qp_init_attr_set_sq_sig_all, doca_verbs_qp_init_attr_t *, int);
SIGNATURE(doca_verbs_qp_init_attr_set_sq_wr, doca_verbs_qp_init_attr_t *, uint32_t);
SIGNATURE(doca_verbs_qp_init_attr_set_rq_wr, doca_verbs_qp_init_attr_t *, uint32_t);
SIGNATURE(doca_verbs_qp_init_attr_set_send_max_sges, doca_verbs_qp_init_attr_t *, uint32_t);
SIGNATURE(doca_verbs_qp_init_attr_set_receive_max_sges, doca_verbs_qp_init_attr_t *, uint32_t);
SIGNATURE(doca_verbs_qp_init_attr_set_user_index, doca_verbs_qp_init_attr_t *, uint32_t);
SIGNATURE(doca_verbs_qp_init_attr_set_qp_type, doca_verbs_qp_init_attr_t *, uint32_t);
SIGNATURE(doca_verbs_qp_init_attr_set_external_umem, doca_verbs_qp_init_attr_t *, doca_verbs_umem_t *, uint64_t);
SIGNATURE(doca_verbs_qp_init_attr_set_external_umem_dbr, doca_verbs_qp_init_attr_t *, doca_verbs_umem_t *, uint64_t);
SIGNATURE(doca_verbs_qp_init_attr_set_external_uar, doca_verbs_qp_init_attr_t *, doca_verbs_uar_t *);
SIGNATURE(doca_verbs_qp_init_attr_set_core_direct_master, doca_verbs_qp_init_attr_t *, uint8_t);
SIGNATURE(doca_verbs_qp_init_attr_set_send_dbr_mode, doca_verbs_qp_init_attr_t *, doca_verbs_qp_send_dbr_mode);
SIGNATURE(doca_verbs_qp_create, doca_dev_t *, doca_verbs_qp_init_attr_t *, doca_verbs_qp_t **);
SIGNATURE(doca_verbs_qp_destroy, doca_verbs_qp_t *);
SIGNATURE(doca_verbs_qp_modify, doca_verbs_qp_t *, doca_verbs_qp_attr_t *, int);
SIGNATURE(doca_verbs_qp_query, doca_verbs_qp_t *, doca_verbs_qp_attr_t *, doca_verbs_qp_init_attr_t *, int *);
SIGNATURE(doca_verbs_qp_get_qpn, const doca_verbs_qp_t *, uint32_t *);
SIGNATURE(doca_verbs_qp_attr_create, doca_verbs_qp_attr_t **);
SIGNATURE(doca_verbs_qp_attr_destroy, doca_verbs_qp_attr_t *);
SIGNATURE(doca_verbs_qp_attr_set_next_state, doca_verbs_qp_attr_t *, doca_verbs_qp_state);
SIGNATURE(doca_verbs_qp_attr_set_current_state, doca_verbs_qp_attr_t *, doca_verbs_qp_state);
SIGNATURE(doca_verbs_qp_attr_get_current_state, doca_verbs_qp_attr_t *, doca_verbs_qp_state *);
SIGNATURE(doca_verbs_qp_attr_set_path_mtu, doca_verbs_qp_attr_t *, doca_verbs_mtu_size);
SIGNATURE(doca_verbs_qp_attr_set_rq_psn, doca_verbs_qp_attr_t *, uint32_t);
SIGNATURE(doca_verbs_qp_attr_set_sq_psn, doca_verbs_qp_attr_t *, uint32_t);
SIGNATURE(doca_verbs_qp_attr_set_dest_qp_num, doca_verbs_qp_attr_t *, uint32_t);
SIGNATURE(doca_verbs_qp_attr_set_allow_remote_write, doca_verbs_qp_attr_t *, int);
SIGNATURE(doca_verbs_qp_attr_set_allow_remote_read, doca_verbs_qp_attr_t *, int);
SIGNATURE(doca_verbs_qp_attr_set_atomic_mode, doca_verbs_qp_attr_t *, doca_verbs_qp_atomic_mode);
SIGNATURE(doca_verbs_qp_attr_set_ah_attr, doca_verbs_qp_attr_t *, doca_verbs_ah_attr_t *);
SIGNATURE(doca_verbs_qp_attr_set_pkey_index, doca_verbs_qp_attr_t *, uint16_t);
SIGNATURE(doca_verbs_qp_attr_set_port_num, doca_verbs_qp_attr_t *, uint16_t);
SIGNATURE(doca_verbs_qp_attr_set_ack_timeout, doca_verbs_qp_attr_t *, uint16_t);
SIGNATURE(doca_verbs_qp_attr_set_retry_cnt, doca_verbs_qp_attr_t *, uint16_t);
SIGNATURE(doca_verbs_qp_attr_set_rnr_retry, doca_verbs_qp_attr_t *, uint16_t);
SIGNATURE(doca_verbs_qp_attr_set_min_rnr_timer, doca_verbs_qp_attr_t *, uint16_t);
SIGNATURE(doca_verbs_qp_attr_set_max_rd_atomic, doca_verbs_qp_attr_t *, uint8_t);
SIGNATURE(doca_verbs_qp_attr_set_max_dest_rd_atomic, doca_verbs_qp_attr_t *, uint8_t);
SIGNATURE(doca_verbs_ah_attr_create, doca_dev_t *, doca_verbs_ah_attr_t **);
SIGNATURE(doca_verbs_ah_attr_destroy, doca_verbs_ah_attr_t *);
SIGNATURE(doca_verbs_ah_attr_set_gid, doca_verbs_ah_attr_t *, doca_verbs_gid);
SIGNATURE(doca_verbs_ah_attr_set_addr_type, doca_verbs_ah_attr_t *, doca_verbs_addr_type);
SIGNATURE(doca_verbs_ah_attr_set_dlid, doca_verbs_ah_attr_t *, uint32_t);
SIGNATURE(doca_verbs_ah_attr_set_sl, doca_verbs_ah_attr_t *, uint8_t);
SIGNATURE(doca_verbs_ah_attr_set_sgid_index, doca_verbs_ah_attr_t *, uint8_t);
SIGNATURE(doca_verbs_ah_attr_set_static_rate, doca_verbs_ah_attr_t *, uint8_t);
SIGNATURE(doca_verbs_ah_attr_set_hop_limit, doca_verbs_ah_attr_t *, uint8_t);
SIGNATURE(doca_verbs_ah_attr_set_traffic_class, doca_verbs_ah_attr_t *, uint8_t);
SIGNATURE(doca_gpu_verbs_unexport_qp, doca_gpu_t *, doca_gpu_verbs_qp *);
SIGNATURE(doca_gpu_verbs_get_qp_dev, doca_gpu_verbs_qp *, doca_gpu_dev_verbs_qp **);
SIGNATURE(doca_gpu_verbs_query_last_error, doca_gpu_verbs_qp *, doca_gpu_verbs_qp_error_info *);
SIGNATURE(doca_gpu_verbs_export_multi_qps_dev, doca_gpu_t *, doca_gpu_verbs_qp **, unsigned int, doca_gpu_dev_verbs_qp **);
SIGNATURE(doca_gpu_verbs_unexport_multi_qps_dev, doca_gpu_t *, doca_gpu_verbs_qp **, unsigned int, doca_gpu_dev_verbs_qp *);

// version.rs
#if DOCA_GPUNETIO_VERSION_MAJOR == 3
SIGNATURE(doca_gpu_verbs_export_qp, doca_gpu_t *, doca_verbs_qp_t *, doca_gpu_dev_verbs_nic_handler,
          void *, doca_verbs_cq_t *, doca_gpu_verbs_send_dbr_mode_ext, doca_gpu_verbs_qp **);
#else
static_assert(sizeof(doca_gpu_dev_verbs_cq_type) == 1);
SIGNATURE(doca_gpu_verbs_export_qp, doca_gpu_t *, doca_verbs_qp_t *, doca_gpu_dev_verbs_nic_handler,
          void *, doca_verbs_cq_t *, doca_gpu_verbs_send_dbr_mode_ext, doca_gpu_dev_verbs_cq_type,
          bool, doca_gpu_verbs_qp **);
#endif
