// SPDX-License-Identifier: MIT
// The memory layer in PTX. Included by memory_device.hpp.
#ifndef MSCCLPP_MEMORY_CUDA_HPP_
#define MSCCLPP_MEMORY_CUDA_HPP_

namespace mscclpp {
inline namespace MSCCLPP_MODE {
namespace memory {
namespace ptx {

template <MemoryScope Scope>
struct Fence;

// One specialisation a scope and one a (scope, width): the instruction is a string literal. The
// order is a constant at each call, so that one instruction is left of each switch.
#define MSCCLPP_PTX_FENCE(Scope, SCOPE)                                            \
  template <>                                                                      \
  struct Fence<Scope> {                                                            \
    static MSCCLPP_DEVICE_INLINE void run(MemoryOrder order) {                     \
      if (order == memoryOrderSeqCst) {                                            \
        asm volatile("fence.sc." SCOPE ";" ::: "memory");                          \
      } else if (order != memoryOrderRelaxed) {                                    \
        asm volatile("fence.acq_rel." SCOPE ";" ::: "memory");                     \
      }                                                                            \
    }                                                                              \
  };

MSCCLPP_PTX_FENCE(scopeBlock, "cta")
MSCCLPP_PTX_FENCE(scopeDevice, "gpu")
MSCCLPP_PTX_FENCE(scopeSystem, "sys")
#undef MSCCLPP_PTX_FENCE

template <MemoryScope Scope, int Bytes>
struct Op;

#define MSCCLPP_PTX_ATOM(ORDER, SCOPE, BITS, C)                                                          \
  asm volatile("atom." ORDER "." SCOPE ".add.u" BITS " %0, [%1], %2;" : "=" C(old) : "l"(p), C(v) : "memory")
#define MSCCLPP_PTX_CAS(ORDER, SCOPE, BITS, C)                                  \
  asm volatile("atom." ORDER "." SCOPE ".cas.b" BITS " %0, [%1], %2, %3;"       \
               : "=" C(old)                                                     \
               : "l"(p), C(expected), C(v)                                      \
               : "memory")

#define MSCCLPP_PTX_OP(Scope, SCOPE, Bytes, Bits, BITS, C)                                                   \
  template <>                                                                                                \
  struct Op<Scope, Bytes> {                                                                                  \
    using U = uint##Bits##_t;                                                                                \
    static MSCCLPP_DEVICE_INLINE U load(const U* p, MemoryOrder order) {                                     \
      U v;                                                                                                   \
      if (order == memoryOrderSeqCst) Fence<Scope>::run(memoryOrderSeqCst);                                  \
      if (order == memoryOrderRelaxed) {                                                                     \
        asm volatile("ld.relaxed." SCOPE ".u" BITS " %0, [%1];" : "=" C(v) : "l"(p) : "memory");             \
      } else {                                                                                               \
        asm volatile("ld.acquire." SCOPE ".u" BITS " %0, [%1];" : "=" C(v) : "l"(p) : "memory");             \
      }                                                                                                      \
      return v;                                                                                              \
    }                                                                                                        \
    static MSCCLPP_DEVICE_INLINE void store(U* p, U v, MemoryOrder order) {                                  \
      if (order == memoryOrderSeqCst) Fence<Scope>::run(memoryOrderSeqCst);                                  \
      if (order == memoryOrderRelaxed) {                                                                     \
        asm volatile("st.relaxed." SCOPE ".u" BITS " [%0], %1;" ::"l"(p), C(v) : "memory");                  \
      } else {                                                                                               \
        asm volatile("st.release." SCOPE ".u" BITS " [%0], %1;" ::"l"(p), C(v) : "memory");                  \
      }                                                                                                      \
    }                                                                                                        \
    static MSCCLPP_DEVICE_INLINE U fetchAdd(U* p, U v, MemoryOrder order) {                                  \
      U old;                                                                                                 \
      if (order == memoryOrderSeqCst) Fence<Scope>::run(memoryOrderSeqCst);                                  \
      switch (order) {                                                                                       \
        case memoryOrderRelaxed:                                                                             \
          MSCCLPP_PTX_ATOM("relaxed", SCOPE, BITS, C);                                                       \
          break;                                                                                             \
        case memoryOrderAcquire:                                                                             \
          MSCCLPP_PTX_ATOM("acquire", SCOPE, BITS, C);                                                       \
          break;                                                                                             \
        case memoryOrderRelease:                                                                             \
          MSCCLPP_PTX_ATOM("release", SCOPE, BITS, C);                                                       \
          break;                                                                                             \
        default:                                                                                             \
          MSCCLPP_PTX_ATOM("acq_rel", SCOPE, BITS, C);                                                       \
      }                                                                                                      \
      return old;                                                                                            \
    }                                                                                                        \
    static MSCCLPP_DEVICE_INLINE U compareExchange(U* p, U expected, U v, MemoryOrder order) {               \
      U old;                                                                                                 \
      if (order == memoryOrderSeqCst) Fence<Scope>::run(memoryOrderSeqCst);                                  \
      switch (order) {                                                                                       \
        case memoryOrderRelaxed:                                                                             \
          MSCCLPP_PTX_CAS("relaxed", SCOPE, BITS, C);                                                        \
          break;                                                                                             \
        case memoryOrderAcquire:                                                                             \
          MSCCLPP_PTX_CAS("acquire", SCOPE, BITS, C);                                                        \
          break;                                                                                             \
        case memoryOrderRelease:                                                                             \
          MSCCLPP_PTX_CAS("release", SCOPE, BITS, C);                                                        \
          break;                                                                                             \
        default:                                                                                             \
          MSCCLPP_PTX_CAS("acq_rel", SCOPE, BITS, C);                                                        \
      }                                                                                                      \
      return old;                                                                                            \
    }                                                                                                        \
  };

MSCCLPP_PTX_OP(scopeBlock, "cta", 4, 32, "32", "r")
MSCCLPP_PTX_OP(scopeBlock, "cta", 8, 64, "64", "l")
MSCCLPP_PTX_OP(scopeDevice, "gpu", 4, 32, "32", "r")
MSCCLPP_PTX_OP(scopeDevice, "gpu", 8, 64, "64", "l")
MSCCLPP_PTX_OP(scopeSystem, "sys", 4, 32, "32", "r")
MSCCLPP_PTX_OP(scopeSystem, "sys", 8, 64, "64", "l")
#undef MSCCLPP_PTX_OP
#undef MSCCLPP_PTX_CAS
#undef MSCCLPP_PTX_ATOM

}  // namespace ptx

template <MemoryScope Scope, typename T>
MSCCLPP_DEVICE_INLINE T load(const T* address, MemoryOrder order) {
  using Op = ptx::Op<Scope, sizeof(T)>;
  return static_cast<T>(Op::load(reinterpret_cast<const typename Op::U*>(address), order));
}

template <MemoryScope Scope, typename T>
MSCCLPP_DEVICE_INLINE void store(T* address, T value, MemoryOrder order) {
  using Op = ptx::Op<Scope, sizeof(T)>;
  Op::store(reinterpret_cast<typename Op::U*>(address), static_cast<typename Op::U>(value), order);
}

template <MemoryScope Scope, typename T>
MSCCLPP_DEVICE_INLINE T fetchAdd(T* address, T operand, MemoryOrder order) {
  using Op = ptx::Op<Scope, sizeof(T)>;
  return static_cast<T>(
      Op::fetchAdd(reinterpret_cast<typename Op::U*>(address), static_cast<typename Op::U>(operand), order));
}

/// Returns the value found; it was replaced if it equals `expected`.
template <MemoryScope Scope, typename T>
MSCCLPP_DEVICE_INLINE T compareExchange(T* address, T expected, T desired, MemoryOrder order) {
  using Op = ptx::Op<Scope, sizeof(T)>;
  return static_cast<T>(Op::compareExchange(reinterpret_cast<typename Op::U*>(address),
                                            static_cast<typename Op::U>(expected),
                                            static_cast<typename Op::U>(desired), order));
}

template <MemoryScope Scope>
MSCCLPP_DEVICE_INLINE void fence(MemoryOrder order) {
  ptx::Fence<Scope>::run(order);
}

/// Publishes two words at a 16-byte aligned address, with all that the thread wrote before: one
/// 16-byte store, which reaches host memory whole.
MSCCLPP_DEVICE_INLINE void publishPair(uint64_t* address, uint64_t first, uint64_t second) {
  asm volatile("st.release.sys.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(first), "l"(second) : "memory");
}

/// Two words at a 16-byte aligned address, each whole, in no order.
MSCCLPP_DEVICE_INLINE void storePair(uint64_t* address, uint64_t first, uint64_t second) {
  asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(first), "l"(second) : "memory");
}

/// Two words from a 16-byte aligned address, each whole, in no order.
MSCCLPP_DEVICE_INLINE void loadPair(const uint64_t* address, uint64_t& first, uint64_t& second) {
  asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(address) : "memory");
}

/// Stores to a register of a device. Ordered after nothing by itself.
MSCCLPP_DEVICE_INLINE void storeMmio(uint64_t* address, uint64_t value) {
  asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(address)), "l"(value)
               : "memory");
}

/// Nanoseconds of a clock that runs steadily; its zero is arbitrary.
MSCCLPP_DEVICE_INLINE uint64_t nowNs() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

/// Pauses of a loop that waits. A GPU thread has nothing better to do than to look again.
class Relax {
 public:
  MSCCLPP_DEVICE_INLINE void pause() {}
};

}  // namespace memory
}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_MEMORY_CUDA_HPP_
