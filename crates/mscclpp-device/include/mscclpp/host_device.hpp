// SPDX-License-Identifier: MIT
// Device code on CPU threads: the names that CUDA gives to kernels, and what the
// executor tells each thread. Included by device.hpp.
#ifndef MSCCLPP_HOST_DEVICE_HPP_
#define MSCCLPP_HOST_DEVICE_HPP_

#include <mscclpp/cstdint_device.hpp>

#define __host__
#define __device__
#define __constant__
#define __forceinline__ inline

struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned int x, y;
};
struct uint3 {
  unsigned int x, y, z;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned int x, y, z, w;
};
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};
struct dim3 {
  unsigned int x = 1, y = 1, z = 1;
};

inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned int x, unsigned int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) { return {x, y, z, w}; }
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }

namespace mscclpp {
namespace host {

/// Version of ThreadContext and Hooks; an entry that does not know it does nothing.
constexpr uint32_t contextVersion = 1;

/// What the executor does for a thread. `self` is ThreadContext::self. The memory hooks are
/// called by modelled objects only; order and scope are MemoryOrder and MemoryScope.
struct Hooks {
  /// Tells the size of the kernel's arguments and whether the object is modelled.
  void (*describe)(void* self, uint64_t argsSize, uint32_t modelled);
  /// Block barrier; returns whether any thread of the block gave a predicate that is not 0.
  int (*barrier)(void* self, int predicate);
  /// One turn of a loop that waits.
  void (*relax)(void* self);
  uint64_t (*load)(void* self, const void* address, uint32_t bytes, int order, int scope);
  void (*store)(void* self, void* address, uint64_t value, uint32_t bytes, int order, int scope);
  uint64_t (*fetchAdd)(void* self, void* address, uint64_t operand, uint32_t bytes, int order, int scope);
  /// Returns the value found; it was replaced if it equals `expected`.
  uint64_t (*compareExchange)(void* self, void* address, uint64_t expected, uint64_t desired, uint32_t bytes,
                              int order, int scope);
  void (*fence)(void* self, int order, int scope);
  /// A store to a device register.
  void (*storeMmio)(void* self, void* address, uint64_t value);
};

/// What an entry made by MSCCLPP_KERNEL is called with. `args == nullptr` asks it to describe
/// itself and return.
struct ThreadContext {
  uint32_t version;
  uint32_t threadIdx;
  uint32_t blockIdx;
  uint32_t blockDim;
  uint32_t gridDim;
  uint32_t reserved;
  const void* args;
  const Hooks* hooks;
  void* self;
  /// A trace::Ring, or null. Read by objects with a trace only.
  const void* trace;
};

static_assert(sizeof(ThreadContext) == 56 && sizeof(Hooks) == 72, "the mirrors in Rust have these sizes");

/// The context of the calling thread, or null outside of the executor.
inline thread_local const ThreadContext* current = nullptr;

}  // namespace host
}  // namespace mscclpp

inline thread_local uint3 threadIdx{0, 0, 0};
inline thread_local uint3 blockIdx{0, 0, 0};
inline thread_local dim3 blockDim;
inline thread_local dim3 gridDim;

inline int __syncthreads_or(int predicate) {
  const mscclpp::host::ThreadContext* thread = mscclpp::host::current;
  return thread == nullptr ? predicate : thread->hooks->barrier(thread->self, predicate);
}

inline void __syncthreads() { (void)__syncthreads_or(0); }

#endif  // MSCCLPP_HOST_DEVICE_HPP_
