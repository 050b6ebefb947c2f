// SPDX-License-Identifier: MIT
// A shared object for tests: the functions that the library takes from libibverbs, libmlx5 and
// CUDA, under their own names, each of which goes on through one table that Rust gives
// (calls.rs). Loaded before the library and for all to see, it is where the library's calls go
// to. Nothing of this is in a program without the feature `seam`.
//
// Needs no headers of those libraries. With RDMA_HEADERS or CUDA_HEADERS it is compiled against
// them, so that their own declarations hold for the definitions here (tests/seam_headers.rs).
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef RDMA_HEADERS
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#else
struct ibv_context;
struct ibv_device_attr;
struct ibv_pd;
struct ibv_ah;
struct ibv_ah_attr;
struct mlx5dv_obj;
struct mlx5dv_devx_obj;
struct mlx5dv_devx_umem;
struct mlx5dv_devx_umem_in;
struct mlx5dv_devx_uar;
#endif

#ifdef CUDA_HEADERS
#include <cuda.h>
#include <cuda_runtime_api.h>
#define ENUM(name) enum name
#else
typedef unsigned long long CUdeviceptr;
// Enumerations of C, and one plain number.
typedef int CUresult, CUdevice_attribute, CUpointer_attribute, CUmemRangeHandleType, CUdevice;
typedef int cudaError_t;
#define ENUM(name) int
#endif

// What stands between the library and Rust, in the order of calls.rs: name in the table, result,
// symbol, parameters and arguments. PLAIN calls return what the table returns. The others are
// those of verbs and mlx5, for which the table has a status, 0 if the call succeeds: they return
// an error number, nothing, or what they made and the table writes through one more argument.
#define CALLS(PLAIN, ERRNO, NOTHING, OBJECT)                                                     \
    PLAIN(CUresult, cuDeviceGetAttribute, (int *a, CUdevice_attribute b, CUdevice c), (a, b, c)) \
    PLAIN(CUresult, cuPointerSetAttribute,                                                       \
          (const void *a, CUpointer_attribute b, CUdeviceptr c), (a, b, c))                      \
    PLAIN(CUresult, cuMemGetHandleForAddressRange,                                               \
          (void *a, CUdeviceptr b, size_t c, CUmemRangeHandleType d, unsigned long long e),      \
          (a, b, c, d, e))                                                                       \
    ERRNO(ibv_query_device, (struct ibv_context *a, struct ibv_device_attr *b), (a, b))          \
    OBJECT(struct ibv_ah, ibv_create_ah, (struct ibv_pd *a, struct ibv_ah_attr *b),              \
           (struct ibv_pd *, struct ibv_ah_attr *, struct ibv_ah **), (a, b, &made))             \
    ERRNO(ibv_destroy_ah, (struct ibv_ah *a), (a))                                               \
    ERRNO(mlx5dv_init_obj, (struct mlx5dv_obj *a, uint64_t b), (a, b))                           \
    OBJECT(struct mlx5dv_devx_obj, mlx5dv_devx_obj_create,                                       \
           (struct ibv_context *a, const void *b, size_t c, void *d, size_t e),                  \
           (struct ibv_context *, const void *, size_t, void *, size_t,                          \
            struct mlx5dv_devx_obj **),                                                          \
           (a, b, c, d, e, &made))                                                               \
    ERRNO(mlx5dv_devx_obj_destroy, (struct mlx5dv_devx_obj *a), (a))                             \
    ERRNO(mlx5dv_devx_obj_query,                                                                 \
          (struct mlx5dv_devx_obj *a, const void *b, size_t c, void *d, size_t e),               \
          (a, b, c, d, e))                                                                       \
    ERRNO(mlx5dv_devx_obj_modify,                                                                \
          (struct mlx5dv_devx_obj *a, const void *b, size_t c, void *d, size_t e),               \
          (a, b, c, d, e))                                                                       \
    ERRNO(mlx5dv_devx_general_cmd,                                                               \
          (struct ibv_context *a, const void *b, size_t c, void *d, size_t e), (a, b, c, d, e))  \
    ERRNO(mlx5dv_devx_query_eqn, (struct ibv_context *a, uint32_t b, uint32_t *c), (a, b, c))    \
    OBJECT(struct mlx5dv_devx_umem, mlx5dv_devx_umem_reg,                                        \
           (struct ibv_context *a, void *b, size_t c, uint32_t d),                               \
           (struct ibv_context *, void *, size_t, uint32_t, struct mlx5dv_devx_umem **),         \
           (a, b, c, d, &made))                                                                  \
    OBJECT(struct mlx5dv_devx_umem, mlx5dv_devx_umem_reg_ex,                                     \
           (struct ibv_context *a, struct mlx5dv_devx_umem_in *b),                               \
           (struct ibv_context *, struct mlx5dv_devx_umem_in *, struct mlx5dv_devx_umem **),     \
           (a, b, &made))                                                                        \
    ERRNO(mlx5dv_devx_umem_dereg, (struct mlx5dv_devx_umem *a), (a))                             \
    OBJECT(struct mlx5dv_devx_uar, mlx5dv_devx_alloc_uar, (struct ibv_context *a, uint32_t b),   \
           (struct ibv_context *, uint32_t, struct mlx5dv_devx_uar **), (a, b, &made))           \
    NOTHING(mlx5dv_devx_free_uar, (struct mlx5dv_devx_uar *a), (a))                              \
    PLAIN(cudaError_t, cudaDeviceGetAttribute, (int *a, ENUM(cudaDeviceAttr) b, int c),          \
          (a, b, c))                                                                             \
    PLAIN(cudaError_t, cudaDeviceGetByPCIBusId, (int *a, const char *b), (a, b))                 \
    PLAIN(cudaError_t, cudaDeviceSynchronize, (void), ())                                        \
    PLAIN(cudaError_t, cudaFree, (void *a), (a))                                                 \
    PLAIN(cudaError_t, cudaGetDevice, (int *a), (a))                                             \
    PLAIN(const char *, cudaGetErrorString, (cudaError_t a), (a))                                \
    PLAIN(cudaError_t, cudaGetLastError, (void), ())                                             \
    PLAIN(cudaError_t, cudaHostGetDevicePointer, (void **a, void *b, unsigned int c), (a, b, c)) \
    PLAIN(cudaError_t, cudaHostRegister, (void *a, size_t b, unsigned int c), (a, b, c))         \
    PLAIN(cudaError_t, cudaHostUnregister, (void *a), (a))                                       \
    PLAIN(cudaError_t, cudaMalloc, (void **a, size_t b), (a, b))                                 \
    PLAIN(cudaError_t, cudaMemcpy, (void *a, const void *b, size_t c, ENUM(cudaMemcpyKind) d),   \
          (a, b, c, d))                                                                          \
    PLAIN(cudaError_t, cudaMemset, (void *a, int b, size_t c), (a, b, c))

#define PLAIN_ENTRY(result, name, parameters, arguments) result(*name) parameters;
#define ERRNO_ENTRY(name, parameters, arguments) int(*name) parameters;
#define OBJECT_ENTRY(type, name, parameters, types, arguments) int(*name) types;
struct Table {
    CALLS(PLAIN_ENTRY, ERRNO_ENTRY, ERRNO_ENTRY, OBJECT_ENTRY)
};

#define PLAIN_NAME(result, name, parameters, arguments) #name,
#define ERRNO_NAME(name, parameters, arguments) #name,
#define OBJECT_NAME(type, name, parameters, types, arguments) #name,
static const char *const names[] = {CALLS(PLAIN_NAME, ERRNO_NAME, ERRNO_NAME, OBJECT_NAME)};
_Static_assert(sizeof(struct Table) == sizeof names, "a name an entry");

// Set before the library is loaded, and never again.
static const struct Table *table;

#define PLAIN_CALL(result, name, parameters, arguments) \
    result name parameters { return table->name arguments; }
#define ERRNO_CALL(name, parameters, arguments) \
    int name parameters { return table->name arguments ? EREMOTEIO : 0; }
#define NOTHING_CALL(name, parameters, arguments) \
    void name parameters { table->name arguments; }
#define OBJECT_CALL(type, name, parameters, types, arguments) \
    type *name parameters {                                   \
        type *made = NULL;                                    \
        if (table->name arguments) {                          \
            errno = EREMOTEIO;                                \
            return NULL;                                      \
        }                                                     \
        return made;                                          \
    }
CALLS(PLAIN_CALL, ERRNO_CALL, NOTHING_CALL, OBJECT_CALL)

// What the library calls from 4.0 on in addition: events of completion queues, and arming one
// from a GPU. Nobody here uses either, so these are not in the table: they fail.
// Nor are they declared: what they are given is not looked at.
#define UNSUPPORTED(result, error, name) \
    result name(void) {                  \
        errno = EOPNOTSUPP;              \
        return error;                    \
    }
#ifndef RDMA_HEADERS
UNSUPPORTED(void *, NULL, mlx5dv_devx_create_event_channel)
UNSUPPORTED(int, EOPNOTSUPP, mlx5dv_devx_subscribe_devx_event)
UNSUPPORTED(ssize_t, -1, mlx5dv_devx_get_event)
void mlx5dv_devx_destroy_event_channel(void) {}
#endif
#ifndef CUDA_HEADERS
enum { cudaErrorNotSupported = 801 };
UNSUPPORTED(cudaError_t, cudaErrorNotSupported, cudaStreamCreateWithFlags)
UNSUPPORTED(cudaError_t, cudaErrorNotSupported, cudaStreamDestroy)
UNSUPPORTED(cudaError_t, cudaErrorNotSupported, cudaStreamSynchronize)
UNSUPPORTED(cudaError_t, cudaErrorNotSupported, cudaMemcpyAsync)
UNSUPPORTED(cudaError_t, cudaErrorNotSupported, cudaPointerGetAttributes)
#endif

// Takes the table; false if it is of another size than the one here.
bool gnx_install(const struct Table *given, size_t size) {
    table = given;
    return size == sizeof *given;
}

// The name at a place of the table, or null behind the last.
const char *gnx_symbol(size_t index) {
    return index < sizeof names / sizeof *names ? names[index] : NULL;
}

// verbs.rs and result.rs: the same numbers are asserted there.
#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#define AT(type, field, at) _Static_assert(offsetof(type, field) == (at), #type "." #field)
#define NUMBER(name, number) _Static_assert((long long)(name) == (number), #name)

#ifdef CUDA_HEADERS
SIZE(CUresult, 4);
SIZE(cudaError_t, 4);
SIZE(CUdeviceptr, 8);
SIZE(CUdevice_attribute, 4);
SIZE(CUpointer_attribute, 4);
SIZE(CUmemRangeHandleType, 4);
SIZE(CUdevice, 4);
SIZE(enum cudaDeviceAttr, 4);
SIZE(enum cudaMemcpyKind, 4);
NUMBER(CUDA_SUCCESS, 0);
NUMBER(CUDA_ERROR_NOT_INITIALIZED, 3);
NUMBER(CUDA_ERROR_UNKNOWN, 999);
NUMBER(cudaSuccess, 0);
NUMBER(cudaErrorInitializationError, 3);
NUMBER(cudaErrorNotSupported, 801);
NUMBER(cudaErrorUnknown, 999);
#endif

#ifdef RDMA_HEADERS
SIZE(off_t, 8);
AT(struct ibv_pd, context, 0);
AT(struct ibv_pd, handle, 8);
SIZE(struct ibv_device_attr, 232);
AT(struct ibv_device_attr, vendor_id, 96);
AT(struct ibv_device_attr, max_cqe, 132);
AT(struct ibv_device_attr, max_qp_rd_atom, 144);
AT(struct ibv_device_attr, max_qp_init_rd_atom, 156);
AT(struct ibv_device_attr, atomic_cap, 164);
AT(struct ibv_device_attr, max_pkeys, 224);
AT(struct ibv_device_attr, phys_port_cnt, 227);
SIZE(struct ibv_ah_attr, 32);
AT(struct ibv_ah_attr, grh.dgid, 0);
AT(struct ibv_ah_attr, grh.flow_label, 16);
AT(struct ibv_ah_attr, grh.sgid_index, 20);
AT(struct ibv_ah_attr, grh.hop_limit, 21);
AT(struct ibv_ah_attr, grh.traffic_class, 22);
AT(struct ibv_ah_attr, dlid, 24);
AT(struct ibv_ah_attr, sl, 26);
AT(struct ibv_ah_attr, is_global, 29);
AT(struct ibv_ah_attr, port_num, 30);
SIZE(struct mlx5dv_devx_umem_in, 48);
AT(struct mlx5dv_devx_umem_in, addr, 0);
AT(struct mlx5dv_devx_umem_in, size, 8);
AT(struct mlx5dv_devx_umem_in, access, 16);
AT(struct mlx5dv_devx_umem_in, pgsz_bitmap, 24);
AT(struct mlx5dv_devx_umem_in, comp_mask, 32);
AT(struct mlx5dv_devx_umem_in, dmabuf_fd, 40);
NUMBER(MLX5DV_UMEM_MASK_DMABUF, 1);
SIZE(struct mlx5dv_devx_umem, 4);
SIZE(struct mlx5dv_devx_uar, 40);
AT(struct mlx5dv_devx_uar, reg_addr, 0);
AT(struct mlx5dv_devx_uar, base_addr, 8);
AT(struct mlx5dv_devx_uar, page_id, 16);
AT(struct mlx5dv_devx_uar, mmap_off, 24);
AT(struct mlx5dv_devx_uar, comp_mask, 32);
NUMBER(MLX5DV_UAR_ALLOC_TYPE_BF, 0);
NUMBER(MLX5DV_UAR_ALLOC_TYPE_NC, 1);
SIZE(struct mlx5_wqe_av, 48);
AT(struct mlx5_wqe_av, rlid, 14);
AT(struct mlx5_wqe_av, rmac, 20);
AT(struct mlx5_wqe_av, tclass, 26);
AT(struct mlx5_wqe_av, rgid, 32);
SIZE(struct mlx5dv_ah, 16);
AT(struct mlx5dv_ah, comp_mask, 8);
SIZE(struct mlx5dv_pd, 16);
AT(struct mlx5dv_pd, comp_mask, 8);
// It grows at its end; what is here of it does not move.
_Static_assert(sizeof(struct mlx5dv_obj) >= 112, "mlx5dv_obj");
AT(struct mlx5dv_obj, ah, 80);
AT(struct mlx5dv_obj, pd, 96);
AT(struct mlx5dv_obj, pd.out, 104);
NUMBER(MLX5DV_OBJ_AH, 1 << 5);
NUMBER(MLX5DV_OBJ_PD, 1 << 6);
#endif
