// SPDX-License-Identifier: MIT
// Kernels of the benchmark that no test uses.

#include <mscclpp/fifo_device.hpp>

#include "clock.hpp"
#include "report.hpp"

struct BidirectionalArgs {
  mscclpp::PortChannelDeviceHandle channel;
  conformance::Report* report;
  uint64_t bytes;
  uint64_t iterations;
  uint32_t rank;
  uint32_t reserved;
};

// Both ranks send at once, each its own half of the buffer; they meet before each iteration.
MSCCLPP_KERNEL(conformance_bidirectional, BidirectionalArgs) {
  if (threadIdx.x != 0) return;
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  const uint64_t half = args.rank * args.bytes;
  for (uint64_t i = 0; i < args.iterations; ++i) {
    if (!conformance::ok(args.report, 0, i, channel.signal())) return;
    if (!conformance::ok(args.report, 0, i, channel.wait())) return;
    if (!conformance::ok(args.report, 0, i, channel.putWithSignal(half, half, args.bytes))) return;
    if (!conformance::ok(args.report, 0, i, channel.wait())) return;
  }
}

struct StreamArgs {
  // Thread t uses channel t modulo their number.
  mscclpp::PortChannelDeviceHandle* channels;
  conformance::Report* report;
  uint64_t bytes;
  // Of a thread.
  uint64_t iterations;
  uint32_t queues;
  uint32_t rank;
};

// Rank 0's threads send without waiting and flush at the end; rank 1's count the signals.
MSCCLPP_KERNEL(conformance_stream, StreamArgs) {
  const uint32_t thread = threadIdx.x;
  mscclpp::PortChannelDeviceHandle channel = args.channels[thread % args.queues];
  for (uint64_t i = 0; i < args.iterations; ++i) {
    const mscclpp::Status status =
        args.rank == 0 ? channel.putWithSignal(0, args.bytes) : channel.wait();
    if (!conformance::ok(args.report, thread, i, status)) return;
  }
  if (args.rank == 0) conformance::ok(args.report, thread, args.iterations, channel.flush());
}

struct SplitArgs {
  mscclpp::PortChannelDeviceHandle channel;
  conformance::Report* report;
  // Three times an iteration, in nanoseconds: until the put returned, until the reply was there,
  // until the flush returned.
  uint64_t* times;
  uint64_t bytes;
  uint64_t iterations;
  uint32_t rank;
  uint32_t reserved;
};

// A ping-pong with a flush in each iteration, taken apart by a clock.
MSCCLPP_KERNEL(conformance_split, SplitArgs) {
  if (threadIdx.x != 0) return;
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  for (uint64_t i = 0; i < args.iterations; ++i) {
    if (args.rank != 0 && !conformance::ok(args.report, 0, i, channel.wait())) return;
    const uint64_t start = conformance::nanoseconds();
    if (!conformance::ok(args.report, 0, i, channel.putWithSignal(0, args.bytes))) return;
    const uint64_t put = conformance::nanoseconds();
    if (args.rank == 0 && !conformance::ok(args.report, 0, i, channel.wait())) return;
    const uint64_t wait = conformance::nanoseconds();
    if (!conformance::ok(args.report, 0, i, channel.flush())) return;
    const uint64_t flush = conformance::nanoseconds();
    args.times[3 * i] = put - start;
    args.times[3 * i + 1] = wait - put;
    args.times[3 * i + 2] = flush - wait;
  }
}

// A ping-pong whose ranks both note, instead of durations, when they called the put, when it had
// returned, and when they saw the peer's signal. Where their clock is the same, the way of a message
// can be taken apart.
MSCCLPP_KERNEL(conformance_one_way, SplitArgs) {
  if (threadIdx.x != 0) return;
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  for (uint64_t i = 0; i < args.iterations; ++i) {
    uint64_t* times = args.times + 3 * i;
    if (args.rank != 0) {
      if (!conformance::ok(args.report, 0, i, channel.wait())) return;
      times[2] = conformance::nanoseconds();
    }
    times[0] = conformance::nanoseconds();
    if (!conformance::ok(args.report, 0, i, channel.putWithSignal(0, args.bytes))) return;
    times[1] = conformance::nanoseconds();
    if (args.rank == 0) {
      if (!conformance::ok(args.report, 0, i, channel.wait())) return;
      times[2] = conformance::nanoseconds();
    }
  }
}

struct PostArgs {
  mscclpp::PortChannelDeviceHandle channel;
  conformance::Report* report;
  // Six times a post, in nanoseconds: one a phase.
  uint64_t* times;
  uint64_t bytes;
  uint64_t iterations;
};

// putWithSignal on a send queue, taken apart by a clock. The queue is emptied now and then, outside
// of the times, so that no post waits for room.
MSCCLPP_KERNEL(conformance_post, PostArgs) {
  if (threadIdx.x != 0) return;
  constexpr uint64_t phases = 6;
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  const mscclpp::QueueWatch watch{channel.semaphore_.status, channel.fifo_.status};
  for (uint64_t i = 0; i < args.iterations; ++i) {
    uint64_t* times = args.times + phases * i;
    uint64_t before = conformance::nanoseconds();
    const auto probe = [&](mscclpp::PostPhase phase) {
      const uint64_t now = conformance::nanoseconds();
      times[static_cast<uint32_t>(phase)] = now - before;
      before = now;
    };
    uint64_t ticket;
    const mscclpp::Status status = channel.queue_.put(channel.dstMemory_, 0, channel.srcMemory_, 0, args.bytes,
                                                      true, ticket, -1, watch, probe);
    if (!conformance::ok(args.report, 0, i, status)) return;
    if (i % 64 == 63 && !conformance::ok(args.report, 0, i, channel.flush())) return;
  }
  conformance::ok(args.report, 0, args.iterations, channel.flush());
}

struct FifoPushArgs {
  mscclpp::FifoDeviceHandle fifo;
  uint64_t count;
};

// Each thread pushes triggers and waits at the end until the last one was handled.
MSCCLPP_KERNEL(conformance_fifo_push, FifoPushArgs) {
  mscclpp::FifoDeviceHandle fifo = args.fifo;
  uint64_t last = 0;
  for (uint64_t i = 0; i < args.count; ++i) {
    mscclpp::ProxyTrigger trigger;
    trigger.fst = i;
    trigger.snd = threadIdx.x;
    last = fifo.push(trigger);
  }
  fifo.sync(last);
}
