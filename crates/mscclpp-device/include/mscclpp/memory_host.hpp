// SPDX-License-Identifier: MIT
// The memory layer on a CPU. Included by memory_device.hpp.
#ifndef MSCCLPP_MEMORY_HOST_HPP_
#define MSCCLPP_MEMORY_HOST_HPP_

#include <sched.h>
#include <time.h>

// Builds with -fsanitize=thread; g++ and clang++ say so in different ways.
#if defined(__SANITIZE_THREAD__)
#define MSCCLPP_THREAD_SANITIZER
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MSCCLPP_THREAD_SANITIZER
#endif
#endif

#if defined(MSCCLPP_THREAD_SANITIZER)
#include <mscclpp/fence_sanitizer.hpp>
#else
namespace mscclpp {
inline namespace MSCCLPP_MODE {
/// Fences in direct mode, and what ThreadSanitizer is told of accesses.
namespace sanitizer {
inline void storing(const void*, MemoryOrder) {}
inline void loaded(const void*, MemoryOrder) {}
inline void fence(MemoryOrder order) { __atomic_thread_fence(static_cast<int>(order)); }
}  // namespace sanitizer
}  // namespace MSCCLPP_MODE
}  // namespace mscclpp
#endif

namespace mscclpp {
inline namespace MSCCLPP_MODE {
namespace memory {

/// The executor's thread whose accesses are modelled, or null: access memory itself.
inline const host::ThreadContext* model() {
#if defined(MSCCLPP_MODELLED_MEMORY)
  return host::current;
#else
  return nullptr;
#endif
}

template <typename T>
constexpr uint32_t bytesOf() {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "one machine word, as on the GPU");
  return sizeof(T);
}

template <MemoryScope Scope, typename T>
inline T load(const T* address, MemoryOrder order) {
  if (const host::ThreadContext* thread = model()) {
    return static_cast<T>(thread->hooks->load(thread->self, address, bytesOf<T>(), order, Scope));
  }
  const T value = __atomic_load_n(address, static_cast<int>(order));
  sanitizer::loaded(address, order);
  return value;
}

template <MemoryScope Scope, typename T>
inline void store(T* address, T value, MemoryOrder order) {
  if (const host::ThreadContext* thread = model()) {
    thread->hooks->store(thread->self, address, static_cast<uint64_t>(value), bytesOf<T>(), order, Scope);
  } else {
    sanitizer::storing(address, order);
    __atomic_store_n(address, value, static_cast<int>(order));
  }
}

template <MemoryScope Scope, typename T>
inline T fetchAdd(T* address, T operand, MemoryOrder order) {
  if (const host::ThreadContext* thread = model()) {
    return static_cast<T>(thread->hooks->fetchAdd(thread->self, address, static_cast<uint64_t>(operand), bytesOf<T>(),
                                                  order, Scope));
  }
  sanitizer::storing(address, order);
  const T found = __atomic_fetch_add(address, operand, static_cast<int>(order));
  sanitizer::loaded(address, order);
  return found;
}

/// Returns the value found; it was replaced if it equals `expected`.
template <MemoryScope Scope, typename T>
inline T compareExchange(T* address, T expected, T desired, MemoryOrder order) {
  if (const host::ThreadContext* thread = model()) {
    return static_cast<T>(thread->hooks->compareExchange(thread->self, address, static_cast<uint64_t>(expected),
                                                         static_cast<uint64_t>(desired), bytesOf<T>(), order, Scope));
  }
  sanitizer::storing(address, order);
  const bool replaced =
      __atomic_compare_exchange_n(address, &expected, desired, false, static_cast<int>(order), __ATOMIC_RELAXED);
  sanitizer::loaded(address, replaced ? order : memoryOrderRelaxed);
  return expected;
}

template <MemoryScope Scope>
inline void fence(MemoryOrder order) {
  if (const host::ThreadContext* thread = model()) {
    thread->hooks->fence(thread->self, order, Scope);
  } else {
    sanitizer::fence(order);
  }
}

/// Publishes two words at a 16-byte aligned address, with all that the thread wrote before.
/// A reader that finds the second word finds the first: it is stored last.
inline void publishPair(uint64_t* address, uint64_t first, uint64_t second) {
  store<scopeSystem>(address, first, memoryOrderRelaxed);
  store<scopeSystem>(address + 1, second, memoryOrderRelease);
}

/// Two words at a 16-byte aligned address, each whole, in no order.
inline void storePair(uint64_t* address, uint64_t first, uint64_t second) {
  store<scopeSystem>(address, first, memoryOrderRelaxed);
  store<scopeSystem>(address + 1, second, memoryOrderRelaxed);
}

/// Two words from a 16-byte aligned address, each whole, in no order.
inline void loadPair(const uint64_t* address, uint64_t& first, uint64_t& second) {
  first = load<scopeSystem>(address, memoryOrderRelaxed);
  second = load<scopeSystem>(address + 1, memoryOrderRelaxed);
}

/// Stores to a register of a device. Ordered after nothing by itself.
inline void storeMmio(uint64_t* address, uint64_t value) {
  if (const host::ThreadContext* thread = model()) {
    thread->hooks->storeMmio(thread->self, address, value);
  } else {
    sanitizer::storing(address, memoryOrderRelaxed);
    __atomic_store_n(static_cast<volatile uint64_t*>(address), value, __ATOMIC_RELAXED);
  }
}

/// Nanoseconds of a clock that runs steadily; its zero is arbitrary.
inline uint64_t nowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

/// Pauses of a loop that waits: some spins, some yields, then naps that grow to 1 ms, so that a
/// thread that waits long costs a few percent of a core and one that waits briefly answers fast.
class Relax {
 public:
  inline void pause() {
    if (const host::ThreadContext* thread = model()) thread->hooks->relax(thread->self);
    if (turns_ < spins) {
      ++turns_;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
    } else if (turns_ < spins + yields) {
      ++turns_;
      sched_yield();
    } else {
      timespec nap{0, napNs_};
      nanosleep(&nap, nullptr);
      napNs_ = napNs_ * 2 < longestNapNs ? napNs_ * 2 : longestNapNs;
    }
  }

 private:
  static constexpr uint32_t spins = 16;
  static constexpr uint32_t yields = 1000;
  static constexpr long longestNapNs = 1000000;

  uint32_t turns_ = 0;
  long napNs_ = 10000;
};

}  // namespace memory
}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

inline void __threadfence_block() { mscclpp::memory::fence<mscclpp::scopeBlock>(mscclpp::memoryOrderSeqCst); }
inline void __threadfence() { mscclpp::memory::fence<mscclpp::scopeDevice>(mscclpp::memoryOrderSeqCst); }
inline void __threadfence_system() { mscclpp::memory::fence<mscclpp::scopeSystem>(mscclpp::memoryOrderSeqCst); }

#endif  // MSCCLPP_MEMORY_HOST_HPP_
