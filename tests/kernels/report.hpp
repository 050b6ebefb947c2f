// SPDX-License-Identifier: MIT
// The first thing that went wrong in a kernel. Kernels go on after a wrong value, so that the
// other rank is not left waiting; after a failed call they end.

#ifndef CONFORMANCE_REPORT_HPP_
#define CONFORMANCE_REPORT_HPP_

#include <mscclpp/atomic_device.hpp>
#include <mscclpp/kernel.hpp>
#include <mscclpp/port_channel_device.hpp>

namespace conformance {

enum Failure : uint32_t {
  FailureNone = 0,
  // A value in memory is not the one that was sent.
  FailureValue = 1,
  // A call returned another status than Ok.
  FailureStatus = 2,
  // As many polls as were granted saw no signal.
  FailurePolls = 3,
};

// Read by `kernels::Report` in Rust. Zeroed by the host before each launch.
struct Report {
  uint32_t claimed;
  uint32_t failure;
  uint32_t status;
  uint32_t thread;
  uint64_t iteration;
  uint64_t index;
  int64_t expected;
  int64_t found;
};

static_assert(sizeof(Report) == 48, "read by hosts as bytes");

MSCCLPP_DEVICE_INLINE void fail(Report* report, const Report& what) {
  if (mscclpp::atomicFetchAdd<uint32_t, mscclpp::scopeSystem>(
          &report->claimed, 1, mscclpp::memoryOrderRelaxed) != 0) {
    return;
  }
  report->failure = what.failure;
  report->status = what.status;
  report->thread = what.thread;
  report->iteration = what.iteration;
  report->index = what.index;
  report->expected = what.expected;
  report->found = what.found;
}

MSCCLPP_DEVICE_INLINE void failValue(Report* report, uint32_t thread, uint64_t iteration,
                                     uint64_t index, int64_t expected, int64_t found) {
  fail(report, Report{0, FailureValue, 0, thread, iteration, index, expected, found});
}

// Whether the status is Ok; reports it if not.
MSCCLPP_DEVICE_INLINE bool ok(Report* report, uint32_t thread, uint64_t iteration,
                              mscclpp::Status status) {
  if (status == mscclpp::Status::Ok) return true;
  fail(report, Report{0, FailureStatus, static_cast<uint32_t>(status), thread, iteration, 0, 0, 0});
  return false;
}

}  // namespace conformance

#endif  // CONFORMANCE_REPORT_HPP_
