// SPDX-License-Identifier: MIT
// What GPUNetIO's device functions use of CUDA, for CPU threads: included in place of <cuda.h> and
// <cuda/atomic>. Everything that another thread or a NIC may see goes through the memory layer of
// this project's headers, so that a trace records both sides alike.
#pragma once

#include <cassert>
#include <cerrno>
#include <cstdio>

#include <mscclpp/memory_device.hpp>

#define __noinline__ __attribute__((noinline))

template <typename T>
inline T max(T a, T b) {
  return a < b ? b : a;
}

template <typename T>
inline T atomicCAS(T* at, T expected, T desired) {
  sched_yield();
  return mscclpp::memory::compareExchange<mscclpp::scopeDevice>(at, expected, desired, mscclpp::memoryOrderRelaxed);
}

template <typename T>
inline T atomicCAS_block(T* at, T expected, T desired) {
  sched_yield();
  return mscclpp::memory::compareExchange<mscclpp::scopeBlock>(at, expected, desired, mscclpp::memoryOrderRelaxed);
}

inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>(((static_cast<uint64_t>(high) << 32) | low) >> (shift & 31));
}

// A thread here is a warp of its own.
inline void __syncwarp(unsigned = ~0u) {}
template <typename T>
inline T __shfl_sync(unsigned, T value, int) {
  return value;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) { return value; }

namespace cuda {

enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block };
enum memory_order { memory_order_relaxed = 0, memory_order_acquire = 2, memory_order_release = 3 };

template <typename T, thread_scope Scope>
class atomic_ref {
 public:
  explicit atomic_ref(T& word) : word_(&word) {}

  T load(memory_order order) const { return mscclpp::memory::load<scope>(word_, ordered(order)); }
  void store(T value, memory_order order) const { mscclpp::memory::store<scope>(word_, value, ordered(order)); }
  T fetch_add(T value, memory_order order) const {
    return mscclpp::memory::fetchAdd<scope>(word_, value, ordered(order));
  }
  T fetch_max(T value, memory_order order) const {
    T seen = load(order);
    while (seen < value) {
      const T was = mscclpp::memory::compareExchange<scope>(word_, seen, value, ordered(order));
      if (was == seen) break;
      seen = was;
    }
    return seen;
  }

 private:
  static constexpr mscclpp::MemoryScope scope = Scope == thread_scope_system   ? mscclpp::scopeSystem
                                                : Scope == thread_scope_device ? mscclpp::scopeDevice
                                                                               : mscclpp::scopeBlock;

  static mscclpp::MemoryOrder ordered(memory_order order) { return static_cast<mscclpp::MemoryOrder>(order); }

  T* word_;
};

}  // namespace cuda

// One function for each PTX instruction in the headers, named after it (see ptx.rs): the results
// first, as references.
namespace ptx {

constexpr uint64_t globaltimer = 0;
constexpr uint32_t laneid = 0;

inline void mov_u64(uint64_t& to, uint64_t from) { to = from; }
inline void mov_u32(uint32_t& to, uint32_t from) { to = from; }
inline void mov_b32(uint32_t& to, uint32_t from) { to = from; }
inline void mov_b16(uint8_t& low, uint8_t& high, uint16_t from) {
  low = static_cast<uint8_t>(from);
  high = static_cast<uint8_t>(from >> 8);
}
inline void mov_b16(uint16_t& to, uint8_t low, uint8_t high) { to = static_cast<uint16_t>(high << 8 | low); }
inline void mov_b64(uint32_t& low, uint32_t& high, uint64_t from) {
  low = static_cast<uint32_t>(from);
  high = static_cast<uint32_t>(from >> 32);
}
inline void mov_b64(uint64_t& to, uint32_t low, uint32_t high) { to = (static_cast<uint64_t>(high) << 32) | low; }
inline void and_b32(uint32_t& to, uint32_t a, uint32_t b) { to = a & b; }
// Each of four digits picks one byte of the eight. Copied sign bits are not needed.
inline void prmt_b32(uint32_t& to, uint32_t a, uint32_t b, uint32_t digits) {
  const uint64_t bytes = (static_cast<uint64_t>(b) << 32) | a;
  uint32_t picked = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t digit = (digits >> (4 * i)) & 0xf;
    assert(digit < 8);
    picked |= static_cast<uint32_t>(bytes >> (8 * digit) & 0xff) << (8 * i);
  }
  to = picked;
}

template <mscclpp::MemoryScope Scope>
inline void acquire() {
  mscclpp::memory::fence<Scope>(mscclpp::memoryOrderAcquire);
}
template <mscclpp::MemoryScope Scope>
inline void release() {
  mscclpp::memory::fence<Scope>(mscclpp::memoryOrderRelease);
}
inline void fence_acquire_cta() { acquire<mscclpp::scopeBlock>(); }
inline void fence_acquire_gpu() { acquire<mscclpp::scopeDevice>(); }
inline void fence_acquire_sys() { acquire<mscclpp::scopeSystem>(); }
inline void fence_release_cta() { release<mscclpp::scopeBlock>(); }
inline void fence_release_gpu() { release<mscclpp::scopeDevice>(); }
inline void fence_release_sys() { release<mscclpp::scopeSystem>(); }
// Without such fences the library accesses a word of its stack, for the order alone.
inline void ld_acquire_cta_b32(uint32_t&, const uint32_t*) { acquire<mscclpp::scopeBlock>(); }
inline void ld_acquire_gpu_b32(uint32_t&, const uint32_t*) { acquire<mscclpp::scopeDevice>(); }
inline void ld_acquire_sys_b32(uint32_t&, const uint32_t*) { acquire<mscclpp::scopeSystem>(); }
inline void st_release_cta_u32(uint32_t*, uint32_t) { release<mscclpp::scopeBlock>(); }
inline void st_release_gpu_u32(uint32_t*, uint32_t) { release<mscclpp::scopeDevice>(); }
inline void st_release_sys_u32(uint32_t*, uint32_t) { release<mscclpp::scopeSystem>(); }

inline void st_weak_cs_v2_b64(uint64_t* at, uint64_t first, uint64_t second) {
  mscclpp::memory::storePair(at, first, second);
}
inline void st_mmio_relaxed_sys_global_b64(uint64_t* at, uint64_t value) { mscclpp::memory::storeMmio(at, value); }

inline void ld_relaxed_sys_global_L1__no_allocate_b8(uint16_t& to, const uint8_t* at) {
  to = __atomic_load_n(at, __ATOMIC_RELAXED);
}
inline void ld_relaxed_sys_global_L1__no_allocate_b32(uint32_t& to, const uint32_t* at) {
  to = mscclpp::memory::load<mscclpp::scopeSystem>(at, mscclpp::memoryOrderRelaxed);
}
inline void ld_relaxed_sys_global_L1__no_allocate_b64(uint64_t& to, const uint64_t* at) {
  to = mscclpp::memory::load<mscclpp::scopeSystem>(at, mscclpp::memoryOrderRelaxed);
}
inline void ld_relaxed_cta_b64(uint64_t& to, const uint64_t* at) {
  to = mscclpp::memory::load<mscclpp::scopeBlock>(at, mscclpp::memoryOrderRelaxed);
}
inline void ld_relaxed_gpu_b64(uint64_t& to, const uint64_t* at) {
  to = mscclpp::memory::load<mscclpp::scopeDevice>(at, mscclpp::memoryOrderRelaxed);
}

// Of functions that nobody calls here: using them would not link.
void st_release_gpu_global_L1__no_allocate_b32(uint32_t* at, uint32_t value);
void cp_async_bulk_global_shared__cta_bulk_group(void* to, const uint64_t* from, uint32_t bytes);

}  // namespace ptx
