// SPDX-License-Identifier: MIT
// What the calling thread pays for a post: of a proxy's channel, and of one on a send queue in either
// form. Which it is stands in the handle.

#include <mscclpp/kernel.hpp>
#include <mscclpp/port_channel_device.hpp>

#include "measure.hpp"

using mscclpp::PortChannelDeviceHandle;
using mscclpp::Status;

namespace {

struct PostArgs {
  PortChannelDeviceHandle channel;
  posting::Plan plan;
};

struct RushArgs {
  const PortChannelDeviceHandle* channels;
  posting::Rush rush;
};

constexpr uint64_t bytes = 8;

}  // namespace

MSCCLPP_KERNEL(post_put_with_signal, PostArgs) {
  PortChannelDeviceHandle channel = args.channel;
  posting::measure(args.plan, [&](posting::Word) { return channel.putWithSignal(0, bytes) == Status::Ok; });
}

MSCCLPP_KERNEL(post_put, PostArgs) {
  PortChannelDeviceHandle channel = args.channel;
  posting::measure(args.plan, [&](posting::Word) { return channel.put(0, bytes) == Status::Ok; });
}

MSCCLPP_KERNEL(post_signal, PostArgs) {
  PortChannelDeviceHandle channel = args.channel;
  posting::measure(args.plan, [&](posting::Word) { return channel.signal() == Status::Ok; });
}

// putWithSignal on a send queue, taken apart: a look at the clock behind each phase.
MSCCLPP_KERNEL(post_phases, PostArgs) {
  PortChannelDeviceHandle channel = args.channel;
  const mscclpp::QueueWatch watch{nullptr, nullptr};
  constexpr posting::Word phases = 6;
  posting::Plan plan = args.plan;
  posting::Word* times = plan.times;
  // The whole of each post goes behind the phases of all.
  plan.times += phases * plan.posts;
  posting::measure(plan, [&](posting::Word i) {
    posting::Word before = posting::cycles();
    const auto probe = [&](mscclpp::PostPhase phase) {
      const posting::Word now = posting::cycles();
      times[phases * i + static_cast<uint32_t>(phase)] = now - before;
      before = now;
    };
    uint64_t ticket;
    return channel.queue_.put(channel.dstMemory_, 0, channel.srcMemory_, 0, bytes, true, ticket, -1, watch, probe) ==
           Status::Ok;
  });
}

MSCCLPP_KERNEL(post_rush, RushArgs) {
  PortChannelDeviceHandle channel = args.channels[args.rush.queuePerBlock != 0 ? blockIdx.x : 0];
  posting::rush(args.rush, [&] { return channel.putWithSignal(0, bytes) == Status::Ok; });
}
