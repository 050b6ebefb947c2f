// SPDX-License-Identifier: MIT
// What the library calls from 4.0 on in addition: events of completion queues, and arming one
// from a GPU. Nobody here uses either, so these calls are not in the table: they fail. Hidden,
// as those of seam.cpp.
#include <sys/types.h>

#include <cstdint>

#include <cuda_runtime_api.h>

#include "doca_verbs_net_wrapper.h"

#define HIDDEN extern "C" __attribute__((visibility("hidden")))
#define UNSUPPORTED(symbol, ...) \
    HIDDEN doca_error_t symbol(__VA_ARGS__) { return DOCA_ERROR_NOT_SUPPORTED; }
#define UNSUPPORTED_CUDA(symbol, ...) \
    HIDDEN cudaError_t symbol(__VA_ARGS__) { return cudaErrorNotSupported; }

UNSUPPORTED(doca_verbs_wrapper_mlx5dv_devx_create_event_channel, ibv_context *,
            mlx5dv_devx_create_event_channel_flags, mlx5dv_devx_event_channel **)
UNSUPPORTED(doca_verbs_wrapper_mlx5dv_devx_destroy_event_channel, mlx5dv_devx_event_channel *)
UNSUPPORTED(doca_verbs_wrapper_mlx5dv_devx_subscribe_devx_event, mlx5dv_devx_event_channel *,
            mlx5dv_devx_obj *, uint16_t, uint16_t *, uint64_t)
UNSUPPORTED(doca_verbs_wrapper_mlx5dv_devx_get_event, mlx5dv_devx_event_channel *,
            mlx5dv_devx_async_event_hdr *, size_t, ssize_t *)

UNSUPPORTED_CUDA(gnx_cudaStreamCreateWithFlags, cudaStream_t *, unsigned int)
UNSUPPORTED_CUDA(gnx_cudaStreamDestroy, cudaStream_t)
UNSUPPORTED_CUDA(gnx_cudaStreamSynchronize, cudaStream_t)
UNSUPPORTED_CUDA(gnx_cudaMemcpyAsync, void *, const void *, size_t, cudaMemcpyKind, cudaStream_t)
UNSUPPORTED_CUDA(gnx_cudaPointerGetAttributes, cudaPointerAttributes *, const void *)
