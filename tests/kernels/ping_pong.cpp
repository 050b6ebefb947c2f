// SPDX-License-Identifier: MIT
// Two ranks send a buffer back and forth and check every element of it.

#include "report.hpp"

struct PingPongArgs {
  mscclpp::PortChannelDeviceHandle channel;
  int32_t* buffer;
  conformance::Report* report;
  uint64_t elements;
  uint64_t iterations;
  // 0: wait; otherwise: poll, at most this often for one signal.
  uint64_t polls;
  uint32_t rank;
  uint32_t flush;
  // 0: do not look at the values (benchmark).
  uint32_t check;
  // 1: rank 1 answers the last message too, and rank 0 waits for it: whole round trips, to be
  // measured.
  uint32_t answersLast;
};

namespace {

// What rank 1 sends differs from what rank 0 sends in every element.
constexpr int32_t ReplyBase = 10000000;

MSCCLPP_DEVICE_INLINE int32_t pingPongValue(uint32_t sender, uint64_t iteration, uint64_t index) {
  return static_cast<int32_t>(iteration + index) + (sender == 0 ? 0 : ReplyBase);
}

MSCCLPP_DEVICE_INLINE bool pingPongReceive(const PingPongArgs& args,
                                           mscclpp::PortChannelDeviceHandle& channel,
                                           uint64_t iteration) {
  if (args.polls == 0) {
    return conformance::ok(args.report, 0, iteration, channel.wait());
  }
  for (uint64_t i = 0; i < args.polls; ++i) {
    if (channel.poll()) return true;
  }
  conformance::fail(args.report, conformance::Report{0, conformance::FailurePolls, 0, 0, iteration,
                                                     0, static_cast<int64_t>(args.polls), 0});
  return false;
}

MSCCLPP_DEVICE_INLINE void pingPongFill(const PingPongArgs& args, uint32_t thread,
                                        uint32_t threads, uint64_t iteration) {
  if (args.check == 0) return;
  volatile int32_t* buffer = args.buffer;
  for (uint64_t j = thread; j < args.elements; j += threads) {
    buffer[j] = pingPongValue(args.rank, iteration, j);
  }
}

MSCCLPP_DEVICE_INLINE void pingPongCheck(const PingPongArgs& args, uint32_t thread,
                                         uint32_t threads, uint64_t iteration) {
  if (args.check == 0) return;
  volatile int32_t* buffer = args.buffer;
  for (uint64_t j = thread; j < args.elements; j += threads) {
    const int32_t expected = pingPongValue(1 - args.rank, iteration, j);
    const int32_t found = buffer[j];
    if (found != expected) {
      conformance::failValue(args.report, thread, iteration, j, expected, found);
    }
  }
}

MSCCLPP_DEVICE_INLINE void pingPong(const PingPongArgs& args) {
  const uint32_t thread = threadIdx.x;
  const uint32_t threads = blockDim.x;
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  const uint64_t bytes = args.elements * sizeof(int32_t);
  for (uint64_t i = 0; i < args.iterations; ++i) {
    const bool receives = args.rank == 1 || i > 0;
    const bool sends = args.rank == 0 || args.answersLast != 0 || i + 1 < args.iterations;
    if (receives) {
      if (thread == 0 && !pingPongReceive(args, channel, i)) return;
      __syncthreads();
      pingPongCheck(args, thread, threads, args.rank == 0 ? i - 1 : i);
    }
    if (sends) {
      pingPongFill(args, thread, threads, i);
      __syncthreads();
      if (thread == 0 && !conformance::ok(args.report, thread, i, channel.putWithSignal(0, bytes))) {
        return;
      }
    }
    if (args.flush != 0 && thread == 0 &&
        !conformance::ok(args.report, thread, i, channel.flush())) {
      return;
    }
  }
  if (args.rank == 0 && args.answersLast != 0 && args.iterations != 0 && thread == 0) {
    pingPongReceive(args, channel, args.iterations);
  }
}

}  // namespace

MSCCLPP_KERNEL(conformance_ping_pong, PingPongArgs) { pingPong(args); }

struct PingPongsArgs {
  const PingPongArgs* ends;
};

// One a block, all at once.
MSCCLPP_KERNEL(conformance_ping_pongs, PingPongsArgs) { pingPong(args.ends[blockIdx.x]); }
