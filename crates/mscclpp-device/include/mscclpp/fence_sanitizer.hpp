// SPDX-License-Identifier: MIT
// Fences for ThreadSanitizer, which models the order of accesses but no fences. Included by
// memory_host.hpp in builds with -fsanitize=thread; the NIC in software and the host are threads
// like any other there. Scopes are not told apart, and a compare-exchange counts as a store before
// it is known whether it stores: for both there is weak memory.
//
// By the rules of C++ a relaxed store behind a releasing fence tells what was before the fence, and
// an acquiring fence takes over what relaxed loads before it have seen. So each thread has two
// clocks beside its own: what was before its last releasing fence, and what its loads have seen.
// ThreadSanitizer keeps them as the clocks of two fibers that run nothing: a switch to a fiber makes
// its clock the one that is released from and acquired into.
#ifndef MSCCLPP_FENCE_SANITIZER_HPP_
#define MSCCLPP_FENCE_SANITIZER_HPP_

#include <pthread.h>

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_atomic_thread_fence(int order);
}

namespace mscclpp {
inline namespace MSCCLPP_MODE {
namespace sanitizer {

/// A function that goes to a fiber comes back before it returns: where it was called from is kept
/// with the thread.
#define MSCCLPP_NOT_SANITIZED __attribute__((no_sanitize("thread"), noinline))
#define MSCCLPP_NOT_SANITIZED_INLINE __attribute__((no_sanitize("thread"), always_inline)) inline

class Fences {
 public:
  /// A store to `address` that orders nothing by itself comes next.
  MSCCLPP_NOT_SANITIZED void storing(const void* address) {
    if (!fenced_) return;
    void* const self = enter(before_);
    __tsan_release(const_cast<void*>(address));
    // Half of a word that others load as a whole, such as the doorbell record: to ThreadSanitizer that
    // is another address.
    void* const whole = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) & ~uintptr_t{7});
    if (whole != address) __tsan_release(whole);
    leave(self);
  }

  /// A load from `address` that orders nothing by itself came last.
  MSCCLPP_NOT_SANITIZED void loaded(const void* address) {
    begin();
    void* const self = enter(seen_);
    __tsan_acquire(const_cast<void*>(address));
    leave(self);
  }

  MSCCLPP_NOT_SANITIZED void acquire() {
    begin();
    void* const self = enter(seen_);
    __tsan_release(&seenToken_);
    leave(self);
    __tsan_acquire(&seenToken_);
  }

  MSCCLPP_NOT_SANITIZED void release() {
    begin();
    __tsan_release(&beforeToken_);
    void* const self = enter(before_);
    __tsan_acquire(&beforeToken_);
    leave(self);
    fenced_ = true;
  }

 private:
  /// A switch that orders nothing.
  static constexpr unsigned noSync = 1;

  MSCCLPP_NOT_SANITIZED_INLINE static void* enter(void* fiber) {
    void* const self = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber, noSync);
    return self;
  }

  MSCCLPP_NOT_SANITIZED_INLINE static void leave(void* self) { __tsan_switch_to_fiber(self, noSync); }

  MSCCLPP_NOT_SANITIZED void begin() {
    if (before_ != nullptr) return;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, makeKey);
    pthread_setspecific(key, this);
    before_ = __tsan_create_fiber(0);
    seen_ = __tsan_create_fiber(0);
  }

  MSCCLPP_NOT_SANITIZED static void makeKey() { pthread_key_create(&key, end); }

  /// The thread ends. No destructor: kernels need nothing of the C++ run-time library.
  MSCCLPP_NOT_SANITIZED static void end(void* of) {
    Fences* const fences = static_cast<Fences*>(of);
    __tsan_destroy_fiber(fences->before_);
    __tsan_destroy_fiber(fences->seen_);
    fences->before_ = nullptr;
    fences->fenced_ = false;
  }

  static inline pthread_key_t key;

  void* before_;
  void* seen_;
  bool fenced_;
  char beforeToken_;
  char seenToken_;
};

inline thread_local Fences fences;

inline bool acquires(MemoryOrder order) { return order != memoryOrderRelaxed && order != memoryOrderRelease; }
inline bool releases(MemoryOrder order) { return order != memoryOrderRelaxed && order != memoryOrderAcquire; }

inline void storing(const void* address, MemoryOrder order) {
  if (!releases(order)) fences.storing(address);
}
inline void loaded(const void* address, MemoryOrder order) {
  if (!acquires(order)) fences.loaded(address);
}
inline void fence(MemoryOrder order) {
  if (acquires(order)) fences.acquire();
  if (releases(order)) fences.release();
  // The fence itself.
  __tsan_atomic_thread_fence(static_cast<int>(order));
}

}  // namespace sanitizer
}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_FENCE_SANITIZER_HPP_
