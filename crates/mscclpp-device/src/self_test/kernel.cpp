// SPDX-License-Identifier: MIT
// Posts one request to a new queue and waits for its completion: see mod.rs.
#include <mscclpp/kernel.hpp>
#include <mscclpp/queue_device.hpp>

using namespace mscclpp;

namespace {

struct SelfTestArgs {
  QueueDeviceHandle queue;
  uint64_t timeoutNs;
  // Set when the test is not wanted any more.
  const StatusWord* over;
  uint64_t* status;
};

}  // namespace

MSCCLPP_KERNEL(mscclpp_queue_self_test, SelfTestArgs) {
  QueueDeviceHandle queue = args.queue;
  if (!queue.compatible()) {
    *args.status = static_cast<uint64_t>(Status::InvalidArgument);
    return;
  }
  const uint64_t deadline = memory::nowNs() + args.timeoutNs;
  const QueueWatch watch{args.over, nullptr};
  uint64_t ticket = 0;
  const auto make = [&](uint64_t) { return detail::WorkRequest::writeNothing(queue.number); };
  Status status = queue.post(1, make, ticket, 0, watch);
  if (status == Status::Ok) {
    bool complete = false;
    const auto ended = [&] {
      complete = queue.poll(ticket);
      return complete || memory::nowNs() > deadline;
    };
    status = queue.waitUntil(ended, -1, watch);
    if (status == Status::Ok && !complete) status = Status::Timeout;
  }
  *args.status = static_cast<uint64_t>(status);
}
