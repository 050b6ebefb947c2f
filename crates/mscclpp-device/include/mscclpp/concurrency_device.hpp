// SPDX-License-Identifier: MIT
// Barrier and counting semaphore of the threads of one grid.
#ifndef MSCCLPP_CONCURRENCY_DEVICE_HPP_
#define MSCCLPP_CONCURRENCY_DEVICE_HPP_

#include <mscclpp/atomic_device.hpp>
#include <mscclpp/status.hpp>
#include <mscclpp/wait_device.hpp>

namespace mscclpp {
inline namespace MSCCLPP_MODE {

/// Barrier of the blocks of one grid, in device memory, zeroed before first use. All blocks must
/// run at the same time. Several grids may use it one after the other.
struct DeviceSyncer {
 public:
  MSCCLPP_INLINE DeviceSyncer() = default;
  MSCCLPP_INLINE ~DeviceSyncer() = default;

  static const unsigned int NumCounters = 3U;

  /// Waits until all threads of `blockNum` blocks are here. What each wrote before is visible to
  /// all after. Every thread of every block calls it.
  /// @param maxSpinCount failed looks; negative is for ever.
  /// @return Ok or Timeout, the same for all threads of a block. After a Timeout the barrier is
  /// spoilt: zero it before it is used again.
  MSCCLPP_DEVICE_INLINE Status sync(int blockNum, int64_t maxSpinCount = -1) {
    __syncthreads();
    if (blockNum == 1) return Status::Ok;
    int late = 0;
    if (threadIdx.x == 0) {
      const unsigned int all = static_cast<unsigned int>(blockNum);
      const unsigned int now =
          (atomicLoad<unsigned int, scopeDevice>(&currentCountIdx_, memoryOrderRelaxed) + 1) % NumCounters;
      unsigned int* count = &count_[now];
      // The counter of the next round: all have left it (they are in this round or about to be), and
      // nobody enters the next round before this block has arrived below.
      atomicStore<unsigned int, scopeDevice>(&count_[(now + 1) % NumCounters], 0U, memoryOrderRelaxed);
      atomicFetchAdd<unsigned int, scopeDevice>(count, 1U, memoryOrderRelease);
      const auto complete = [&] {
        return atomicLoad<unsigned int, scopeDevice>(count, memoryOrderAcquire) == all;
      };
      late = detail::waitUntil(complete, nullptr, nullptr, maxSpinCount) != Status::Ok;
      atomicStore<unsigned int, scopeDevice>(&currentCountIdx_, now, memoryOrderRelaxed);
    }
    return __syncthreads_or(late) ? Status::Timeout : Status::Ok;
  }

 private:
  unsigned int count_[NumCounters];
  unsigned int currentCountIdx_;
};

/// Counting semaphore among the threads of one GPU, in device memory.
struct DeviceSemaphore {
 public:
  MSCCLPP_INLINE DeviceSemaphore() = default;
  MSCCLPP_HOST_DEVICE_INLINE DeviceSemaphore(int initialValue) : semaphore_(initialValue) {}
  MSCCLPP_INLINE ~DeviceSemaphore() = default;

  /// Sets how many may hold it; for the start, when nobody does.
  MSCCLPP_DEVICE_INLINE void set(int value) { atomicStore<int, scopeDevice>(&semaphore_, value, memoryOrderRelease); }

  /// Takes one, waiting until there is one.
  /// @param maxSpinCount failed looks; negative is for ever.
  /// @return Ok, or Timeout: nothing was taken.
  MSCCLPP_DEVICE_INLINE Status acquire(int maxSpinCount = -1) {
    const auto take = [&] {
      const int value = atomicLoad<int, scopeDevice>(&semaphore_, memoryOrderRelaxed);
      return value > 0 &&
             memory::compareExchange<scopeDevice>(&semaphore_, value, value - 1, memoryOrderAcquire) == value;
    };
    return detail::waitUntil(take, nullptr, nullptr, maxSpinCount);
  }

  /// Gives one back, with all that the thread wrote before.
  MSCCLPP_DEVICE_INLINE void release() { atomicFetchAdd<int, scopeDevice>(&semaphore_, 1, memoryOrderRelease); }

 private:
  int semaphore_;
};

static_assert(sizeof(DeviceSyncer) == 16 && sizeof(DeviceSemaphore) == 4, "zeroed by hosts as plain words");

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_CONCURRENCY_DEVICE_HPP_
