// SPDX-License-Identifier: MIT
// Nanoseconds of a clock that all threads of a device share.

#ifndef CONFORMANCE_CLOCK_HPP_
#define CONFORMANCE_CLOCK_HPP_

#include <mscclpp/device.hpp>

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include <time.h>
#endif

namespace conformance {

MSCCLPP_DEVICE_INLINE uint64_t nanoseconds() {
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
#else
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
#endif
}

}  // namespace conformance

#endif  // CONFORMANCE_CLOCK_HPP_
