// SPDX-License-Identifier: MIT
// Several threads flush at once: on one channel, and on a channel each.

#include "report.hpp"

struct ConcurrentFlushArgs {
  mscclpp::PortChannelDeviceHandle channel;
  conformance::Report* report;
  uint64_t iterations;
};

// Each thread sends an element of its own and waits for its own flush; signals are counted, so any
// of the peer's serves any waiting thread.
MSCCLPP_KERNEL(conformance_concurrent_flush, ConcurrentFlushArgs) {
  const uint32_t thread = threadIdx.x;
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  const uint64_t offset = thread * sizeof(int32_t);
  for (uint64_t i = 0; i < args.iterations; ++i) {
    if (!conformance::ok(args.report, thread, i,
                         channel.putWithSignalAndFlush(offset, offset, sizeof(int32_t)))) {
      return;
    }
    if (!conformance::ok(args.report, thread, i, channel.wait())) return;
  }
}

struct QueuesArgs {
  // A channel a thread.
  mscclpp::PortChannelDeviceHandle* channels;
  conformance::Report* report;
  uint64_t bytes;
  uint64_t iterations;
  uint32_t flush;
  uint32_t reserved;
};

// Per iteration: thread 0 meets the peer on channel 0, then each thread sends its channel's buffer
// and waits for the peer's.
MSCCLPP_KERNEL(conformance_queues, QueuesArgs) {
  const uint32_t thread = threadIdx.x;
  mscclpp::PortChannelDeviceHandle channel = args.channels[thread];
  for (uint64_t i = 0; i < args.iterations; ++i) {
    if (thread == 0) {
      if (!conformance::ok(args.report, thread, i, channel.signal())) return;
      if (!conformance::ok(args.report, thread, i, channel.wait())) return;
    }
    __syncthreads();
    const mscclpp::Status sent = args.flush != 0 ? channel.putWithSignalAndFlush(0, args.bytes)
                                                 : channel.putWithSignal(0, args.bytes);
    if (!conformance::ok(args.report, thread, i, sent)) return;
    if (!conformance::ok(args.report, thread, i, channel.wait())) return;
    __syncthreads();
  }
}
