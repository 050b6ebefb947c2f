// SPDX-License-Identifier: MIT
// Atomics with a scope and an order, under MSCCL++'s names. T has 4 or 8 bytes.
#ifndef MSCCLPP_ATOMIC_DEVICE_HPP_
#define MSCCLPP_ATOMIC_DEVICE_HPP_

#include <mscclpp/memory_device.hpp>

namespace mscclpp {
inline namespace MSCCLPP_MODE {

template <typename T, MemoryScope Scope = scopeSystem>
MSCCLPP_DEVICE_INLINE T atomicLoad(const T* ptr, MemoryOrder memoryOrder) {
  return memory::load<Scope>(ptr, memoryOrder);
}

template <typename T, MemoryScope Scope = scopeSystem>
MSCCLPP_DEVICE_INLINE void atomicStore(T* ptr, const T& val, MemoryOrder memoryOrder) {
  memory::store<Scope>(ptr, val, memoryOrder);
}

/// Returns the value before.
template <typename T, MemoryScope Scope = scopeSystem>
MSCCLPP_DEVICE_INLINE T atomicFetchAdd(T* ptr, const T& val, MemoryOrder memoryOrder) {
  return memory::fetchAdd<Scope>(ptr, val, memoryOrder);
}

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_ATOMIC_DEVICE_HPP_
