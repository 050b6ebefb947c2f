// SPDX-License-Identifier: MIT
// The functions that the library is compiled to call, each of which goes on through one table
// that Rust gives (seam/calls.rs). They are hidden: a shared object exports none of them, nor
// can another object's functions of the same name take their place.
//
// Compiled with the macros that the library is compiled with, so that the library's own
// declarations hold for the definitions here: a wrong signature does not compile.
#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "doca_gpunetio_cuda_wrapper.h"
#include "doca_verbs_net_wrapper.h"

#if !defined(DOCA_VERBS_USE_NET_WRAPPER) || !defined(DOCA_GPUNETIO_USE_CUDA_WRAPPER)
#error "to be compiled with the library's wrappers on"
#endif

// What stands between the library and Rust: result, name in the table, symbol, parameters and
// arguments. The order is that of calls.rs.
#define CALLS(CALL)                                                                              \
    CALL(CUresult, cuDeviceGetAttribute, doca_gpu_cuda_wrapper_cuDeviceGetAttribute,             \
         (int *a, CUdevice_attribute b, CUdevice c), (a, b, c))                                  \
    CALL(CUresult, cuPointerSetAttribute, doca_gpu_cuda_wrapper_cuPointerSetAttribute,           \
         (const void *a, CUpointer_attribute b, CUdeviceptr c), (a, b, c))                       \
    CALL(CUresult, cuMemGetHandleForAddressRange,                                                \
         doca_gpu_cuda_wrapper_cuMemGetHandleForAddressRange,                                    \
         (int *a, CUdeviceptr b, size_t c, CUmemRangeHandleType d, unsigned long long e),        \
         (a, b, c, d, e))                                                                        \
    CALL(doca_error_t, ibv_query_device, doca_verbs_wrapper_ibv_query_device,                    \
         (ibv_context *a, ibv_device_attr *b), (a, b))                                           \
    CALL(doca_error_t, ibv_create_ah, doca_verbs_wrapper_ibv_create_ah,                          \
         (ibv_pd *a, ibv_ah_attr *b, ibv_ah **c), (a, b, c))                                     \
    CALL(doca_error_t, ibv_destroy_ah, doca_verbs_wrapper_ibv_destroy_ah, (ibv_ah *a), (a))      \
    CALL(doca_error_t, init_obj, doca_verbs_wrapper_mlx5dv_init_obj,                             \
         (mlx5dv_obj *a, mlx5dv_obj_type b), (a, b))                                             \
    CALL(doca_error_t, obj_create, doca_verbs_wrapper_mlx5dv_devx_obj_create,                    \
         (ibv_context *a, const void *b, size_t c, void *d, size_t e, mlx5dv_devx_obj **f),      \
         (a, b, c, d, e, f))                                                                     \
    CALL(doca_error_t, obj_destroy, doca_verbs_wrapper_mlx5dv_devx_obj_destroy,                  \
         (mlx5dv_devx_obj *a), (a))                                                              \
    CALL(doca_error_t, obj_query, doca_verbs_wrapper_mlx5dv_devx_obj_query,                      \
         (mlx5dv_devx_obj *a, const void *b, size_t c, void *d, size_t e), (a, b, c, d, e))      \
    CALL(doca_error_t, obj_modify, doca_verbs_wrapper_mlx5dv_devx_obj_modify,                    \
         (mlx5dv_devx_obj *a, const void *b, size_t c, void *d, size_t e), (a, b, c, d, e))      \
    CALL(doca_error_t, general_cmd, doca_verbs_wrapper_mlx5dv_devx_general_cmd,                  \
         (ibv_context *a, const void *b, size_t c, void *d, size_t e), (a, b, c, d, e))          \
    CALL(doca_error_t, query_eqn, doca_verbs_wrapper_mlx5dv_devx_query_eqn,                      \
         (ibv_context *a, uint32_t b, uint32_t *c), (a, b, c))                                   \
    CALL(doca_error_t, umem_reg, doca_verbs_wrapper_mlx5dv_devx_umem_reg,                        \
         (ibv_context *a, void *b, size_t c, uint32_t d, mlx5dv_devx_umem **e), (a, b, c, d, e)) \
    CALL(doca_error_t, umem_reg_ex, doca_verbs_wrapper_mlx5dv_devx_umem_reg_ex,                  \
         (ibv_context *a, mlx5dv_devx_umem_in *b, mlx5dv_devx_umem **c), (a, b, c))              \
    CALL(doca_error_t, umem_dereg, doca_verbs_wrapper_mlx5dv_devx_umem_dereg,                    \
         (mlx5dv_devx_umem *a), (a))                                                             \
    CALL(doca_error_t, alloc_uar, doca_verbs_wrapper_mlx5dv_devx_alloc_uar,                      \
         (ibv_context *a, uint32_t b, mlx5dv_devx_uar **c), (a, b, c))                           \
    CALL(doca_error_t, free_uar, doca_verbs_wrapper_mlx5dv_devx_free_uar, (mlx5dv_devx_uar *a),  \
         (a))                                                                                    \
    CALL(cudaError_t, deviceGetAttribute, gnx_cudaDeviceGetAttribute,                            \
         (int *a, cudaDeviceAttr b, int c), (a, b, c))                                           \
    CALL(cudaError_t, deviceGetByPCIBusId, gnx_cudaDeviceGetByPCIBusId, (int *a, const char *b), \
         (a, b))                                                                                 \
    CALL(cudaError_t, deviceSynchronize, gnx_cudaDeviceSynchronize, (), ())                      \
    CALL(cudaError_t, free, gnx_cudaFree, (void *a), (a))                                        \
    CALL(cudaError_t, getDevice, gnx_cudaGetDevice, (int *a), (a))                               \
    CALL(const char *, getErrorString, gnx_cudaGetErrorString, (cudaError_t a), (a))             \
    CALL(cudaError_t, getLastError, gnx_cudaGetLastError, (), ())                                \
    CALL(cudaError_t, hostGetDevicePointer, gnx_cudaHostGetDevicePointer,                        \
         (void **a, void *b, unsigned int c), (a, b, c))                                         \
    CALL(cudaError_t, hostRegister, gnx_cudaHostRegister, (void *a, size_t b, unsigned int c),   \
         (a, b, c))                                                                              \
    CALL(cudaError_t, hostUnregister, gnx_cudaHostUnregister, (void *a), (a))                    \
    CALL(cudaError_t, malloc, gnx_cudaMalloc, (void **a, size_t b), (a, b))                      \
    CALL(cudaError_t, memcpy, gnx_cudaMemcpy,                                                    \
         (void *a, const void *b, size_t c, cudaMemcpyKind d), (a, b, c, d))                     \
    CALL(cudaError_t, memset, gnx_cudaMemset, (void *a, int b, size_t c), (a, b, c))

namespace {

#define ENTRY(result, name, symbol, parameters, arguments) result(*name) parameters;
struct Table {
    CALLS(ENTRY)
};

#define SYMBOL(result, name, symbol, parameters, arguments) #symbol,
const char *const symbols[] = {CALLS(SYMBOL)};
static_assert(sizeof(Table) == sizeof symbols);

// Set once, by whoever first says what the library's calls are to reach.
const Table *table;

// What a call returns before that, as one does afterwards where nothing is in force.
template <class Result>
Result outside();
template <>
doca_error_t outside() {
    return DOCA_ERROR_BAD_STATE;
}
template <>
CUresult outside() {
    return CUDA_ERROR_NOT_INITIALIZED;
}
template <>
cudaError_t outside() {
    return cudaErrorInitializationError;
}
template <>
const char *outside() {
    return "nothing is installed";
}

}  // namespace

#define HIDDEN extern "C" __attribute__((visibility("hidden")))

#define FORWARD(result, name, symbol, parameters, arguments)          \
    HIDDEN result symbol parameters {                                 \
        const Table *set = __atomic_load_n(&table, __ATOMIC_ACQUIRE); \
        return set ? set->name arguments : outside<result>();         \
    }
CALLS(FORWARD)

HIDDEN bool gnx_install(const Table *given, size_t size) {
    if (size != sizeof(Table)) return false;
    __atomic_store_n(&table, given, __ATOMIC_RELEASE);
    return true;
}

HIDDEN const char *gnx_symbol(size_t index) {
    return index < sizeof symbols / sizeof *symbols ? symbols[index] : nullptr;
}

// verbs.rs and result.rs: the same numbers are asserted there.
#define SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type)
#define AT(type, field, at) static_assert(offsetof(type, field) == (at), #type "." #field)
#define NUMBER(name, number) static_assert(static_cast<long long>(name) == (number), #name)

static_assert(sizeof(CUresult) == 4 && sizeof(cudaError_t) == 4 && sizeof(CUdeviceptr) == 8);
static_assert(sizeof(CUdevice_attribute) == 4 && sizeof(CUpointer_attribute) == 4);
static_assert(sizeof(CUmemRangeHandleType) == 4 && sizeof(CUdevice) == 4);
static_assert(sizeof(cudaDeviceAttr) == 4 && sizeof(cudaMemcpyKind) == 4);
static_assert(sizeof(mlx5dv_obj_type) == 4 && sizeof(off_t) == 8);
NUMBER(CUDA_SUCCESS, 0);
NUMBER(CUDA_ERROR_NOT_INITIALIZED, 3);
NUMBER(cudaSuccess, 0);
NUMBER(cudaErrorInitializationError, 3);
NUMBER(cudaErrorUnknown, 999);
SIZE(ibv_pd, 16);
AT(ibv_pd, handle, 8);
SIZE(ibv_device_attr, 232);
AT(ibv_device_attr, vendor_id, 96);
AT(ibv_device_attr, max_cqe, 132);
AT(ibv_device_attr, max_qp_rd_atom, 144);
AT(ibv_device_attr, max_qp_init_rd_atom, 156);
AT(ibv_device_attr, atomic_cap, 164);
AT(ibv_device_attr, max_pkeys, 224);
AT(ibv_device_attr, phys_port_cnt, 227);
SIZE(ibv_ah_attr, 32);
AT(ibv_ah_attr, grh.dgid, 0);
AT(ibv_ah_attr, grh.flow_label, 16);
AT(ibv_ah_attr, grh.sgid_index, 20);
AT(ibv_ah_attr, grh.hop_limit, 21);
AT(ibv_ah_attr, grh.traffic_class, 22);
AT(ibv_ah_attr, dlid, 24);
AT(ibv_ah_attr, sl, 26);
AT(ibv_ah_attr, is_global, 29);
AT(ibv_ah_attr, port_num, 30);
SIZE(mlx5dv_devx_umem_in, 48);
AT(mlx5dv_devx_umem_in, addr, 0);
AT(mlx5dv_devx_umem_in, size, 8);
AT(mlx5dv_devx_umem_in, access, 16);
AT(mlx5dv_devx_umem_in, pgsz_bitmap, 24);
AT(mlx5dv_devx_umem_in, comp_mask, 32);
AT(mlx5dv_devx_umem_in, dmabuf_fd, 40);
NUMBER(MLX5DV_UMEM_MASK_DMABUF, 1);
SIZE(mlx5dv_devx_umem, 4);
SIZE(mlx5dv_devx_uar, 40);
AT(mlx5dv_devx_uar, reg_addr, 0);
AT(mlx5dv_devx_uar, base_addr, 8);
AT(mlx5dv_devx_uar, page_id, 16);
AT(mlx5dv_devx_uar, mmap_off, 24);
AT(mlx5dv_devx_uar, comp_mask, 32);
NUMBER(MLX5DV_UAR_ALLOC_TYPE_BF, 0);
NUMBER(MLX5DV_UAR_ALLOC_TYPE_NC, 1);
SIZE(doca_gpunetio_ib_mlx5_wqe_av, 48);
AT(doca_gpunetio_ib_mlx5_wqe_av, rlid, 14);
AT(doca_gpunetio_ib_mlx5_wqe_av, rmac, 20);
AT(doca_gpunetio_ib_mlx5_wqe_av, tclass, 26);
AT(doca_gpunetio_ib_mlx5_wqe_av, rgid, 32);
SIZE(mlx5dv_ah, 16);
AT(mlx5dv_ah, comp_mask, 8);
SIZE(mlx5dv_pd, 16);
AT(mlx5dv_pd, comp_mask, 8);
SIZE(mlx5dv_obj, 128);
AT(mlx5dv_obj, ah, 80);
AT(mlx5dv_obj, pd, 96);
AT(mlx5dv_obj, pd.out, 104);
NUMBER(MLX5DV_OBJ_AH, 1 << 5);
NUMBER(MLX5DV_OBJ_PD, 1 << 6);
