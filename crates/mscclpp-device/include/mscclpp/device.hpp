// SPDX-License-Identifier: MIT
// How this translation unit is compiled, and the function qualifiers that follow.
//
// Device code compiles in one of three modes. Each has an inline namespace of its
// own, so that objects of several modes link into one program:
//
//   cuda      nvcc or NVRTC: PTX, no other header needed
//   direct    a C++17 host compiler: CPU threads, __atomic builtins
//   modelled  the same with MSCCLPP_MODELLED_MEMORY defined: each store, fence and
//             atomic goes through the executor's memory model (trace or weak)
//
// With MSCCLPP_DEVICE_TRACE defined, the first two are cuda_traced and direct_traced: calls
// leave records behind (trace_device.hpp).
#ifndef MSCCLPP_DEVICE_HPP_
#define MSCCLPP_DEVICE_HPP_

#include <mscclpp/cstdint_device.hpp>

#define MSCCLPP_DEVICE_COMPILE

#if defined(__CUDACC__)

#define MSCCLPP_DEVICE_CUDA
#if defined(MSCCLPP_DEVICE_TRACE)
#define MSCCLPP_MODE cuda_traced
#else
#define MSCCLPP_MODE cuda
#endif
#define MSCCLPP_INLINE __forceinline__
#define MSCCLPP_DEVICE_INLINE __forceinline__ __device__
#define MSCCLPP_HOST_DEVICE_INLINE __forceinline__ __host__ __device__
#define MSCCLPP_DEVICE_NOINLINE inline __noinline__ __device__
#define MSCCLPP_UNROLL _Pragma("unroll")

#else  // a host compiler

#define MSCCLPP_DEVICE_HOST
#if defined(MSCCLPP_MODELLED_MEMORY)
#define MSCCLPP_MODE modelled
#elif defined(MSCCLPP_DEVICE_TRACE)
#define MSCCLPP_MODE direct_traced
#else
#define MSCCLPP_MODE direct
#endif
#define MSCCLPP_INLINE inline
#define MSCCLPP_DEVICE_INLINE inline
#define MSCCLPP_HOST_DEVICE_INLINE inline
#define MSCCLPP_DEVICE_NOINLINE inline __attribute__((noinline))
#define MSCCLPP_UNROLL

#include <mscclpp/host_device.hpp>

#endif

#endif  // MSCCLPP_DEVICE_HPP_
