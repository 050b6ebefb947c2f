// SPDX-License-Identifier: MIT
#include <mscclpp/kernel.hpp>
#include <mscclpp/semaphore_device.hpp>

#include "data.hpp"

#if defined(MSCCLPP_DEVICE_HOST)
#include <time.h>
#endif

using namespace mscclpp;

struct WaitArgs {
  Host2DeviceSemaphoreDeviceHandle semaphore;
  int64_t budget;
  uint64_t* status;  // by thread
  uint64_t* cpuNs;   // by thread: time on a core while waiting
};

static uint64_t cpuTimeNs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

MSCCLPP_KERNEL(semaphore_wait, WaitArgs) {
  const uint64_t start = cpuTimeNs();
  args.status[threadIdx.x] = static_cast<uint64_t>(args.semaphore.wait(args.budget));
  args.cpuNs[threadIdx.x] = cpuTimeNs() - start;
}

struct PollArgs {
  Host2DeviceSemaphoreDeviceHandle semaphore;
  uint64_t tries;
  uint64_t* wins;  // by thread
};

MSCCLPP_KERNEL(semaphore_poll, PollArgs) {
  __syncthreads();
  uint64_t wins = 0;
  for (uint64_t i = 0; i < args.tries; ++i) wins += args.semaphore.poll();
  args.wins[threadIdx.x] = wins;
}

// Two blocks of one thread: block 0 consumes what block 1 signals after it stored a datum, and keeps
// what it saw, plus one. Block 1 stays until then: ThreadSanitizer soon forgets what a thread that has
// ended did.
struct PublishArgs {
  Host2DeviceSemaphoreDeviceHandle semaphore;
  uint64_t* datum;
  uint64_t* seen;
};

MSCCLPP_KERNEL(semaphore_publish, PublishArgs) {
  if (blockIdx.x == 0) {
    args.semaphore.wait();
    memory::store<scopeSystem>(args.seen, loadData(args.datum) + 1, memoryOrderRelaxed);
  } else {
    storeData(args.datum, 7);
    atomicFetchAdd<uint64_t, scopeSystem>(args.semaphore.inboundToken, 1, memoryOrderRelease);
    const auto seen = [&] { return memory::load<scopeSystem>(args.seen, memoryOrderRelaxed) != 0; };
    (void)detail::waitUntil(seen, nullptr, nullptr, -1);
  }
}
