// SPDX-License-Identifier: MIT
// Kernels of the tests that need a GPU.
#include <mscclpp/kernel.hpp>
#include <mscclpp/memory_device.hpp>

struct AddArgs {
  unsigned long long* sum;
  unsigned long long value;
};

MSCCLPP_KERNEL(add, AddArgs) { atomicAdd(args.sum, args.value); }

struct SpinArgs {
  // Ends when the word is not zero, or after some seconds.
  const volatile unsigned long long* until;
  unsigned long long* running;
};

MSCCLPP_KERNEL(spin, SpinArgs) {
  if (threadIdx.x == 0) *args.running = 1;
  __threadfence_system();
  const uint64_t started = mscclpp::memory::nowNs();
  while (*args.until == 0 && mscclpp::memory::nowNs() - started < 20000000000ull) {
  }
}

struct WaitArgs {
  const unsigned long long* payload;
  const volatile unsigned long long* signal;
  unsigned long long count;
  unsigned long long words;
  unsigned long long* stale;
};

// For each count: once the signal shows it, every word of the payload has it.
MSCCLPP_KERNEL(expect, WaitArgs) {
  const uint64_t started = mscclpp::memory::nowNs();
  for (unsigned long long n = 1; n <= args.count; ++n) {
    while (*args.signal < n) {
      if (mscclpp::memory::nowNs() - started > 20000000000ull) {
        *args.stale = ~0ull;
        return;
      }
    }
    __threadfence_system();
    for (unsigned long long i = threadIdx.x; i < args.words; i += blockDim.x) {
      if (reinterpret_cast<const volatile unsigned long long*>(args.payload)[i] < n) atomicAdd(args.stale, 1);
    }
  }
}
