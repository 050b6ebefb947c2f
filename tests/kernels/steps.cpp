// SPDX-License-Identifier: MIT
// One thread a list of steps, each one call of the device API; the status of every call is kept.
// Tests of single calls (bounds, ids, placeholders, blocked waits) are lists of steps.

#include "report.hpp"

namespace conformance {

enum Operation : uint32_t {
  OperationPut = 1,
  OperationSignal = 2,
  OperationPutWithSignal = 3,
  OperationFlush = 4,
  OperationWait = 5,
  OperationAccumulate = 6,
  OperationPutWithSignalAndFlush = 7,
  // Polls as often as the operand says, or until a signal is there.
  OperationPoll = 8,
  // From the destination, which is the peer's, to the source.
  OperationGet = 9,
};

// Encoded by `kernels::Steps` in Rust.
struct Step {
  uint32_t operation;
  // Index into the channels.
  uint32_t channel;
  // Memory ids.
  uint32_t dst;
  uint32_t src;
  uint64_t dstOffset;
  uint64_t srcOffset;
  uint64_t size;
  // Of an accumulate; the budget of a wait or flush; the number of polls.
  int64_t operand;
  // Written by the kernel: the status of the call, or whether the poll saw a signal.
  uint32_t result;
  // Written by the kernel: 1 once the call has returned.
  uint32_t done;
};

static_assert(sizeof(Step) == 56, "written and read by hosts as bytes");

}  // namespace conformance

struct StepsArgs {
  mscclpp::BasePortChannelDeviceHandle* channels;
  conformance::Step* steps;
  // Steps of a thread: those of thread t follow those of thread t - 1.
  uint64_t count;
};

namespace {

MSCCLPP_DEVICE_INLINE uint32_t stepRun(const StepsArgs& args, const conformance::Step& step) {
  mscclpp::BasePortChannelDeviceHandle channel = args.channels[step.channel];
  switch (step.operation) {
    case conformance::OperationPut:
      return static_cast<uint32_t>(
          channel.put(step.dst, step.dstOffset, step.src, step.srcOffset, step.size));
    case conformance::OperationSignal:
      return static_cast<uint32_t>(channel.signal());
    case conformance::OperationPutWithSignal:
      return static_cast<uint32_t>(
          channel.putWithSignal(step.dst, step.dstOffset, step.src, step.srcOffset, step.size));
    case conformance::OperationFlush:
      return static_cast<uint32_t>(channel.flush(step.operand));
    case conformance::OperationWait:
      return static_cast<uint32_t>(channel.wait(step.operand));
    case conformance::OperationAccumulate:
      return static_cast<uint32_t>(channel.accumulate(step.dst, step.dstOffset, step.operand));
    case conformance::OperationPutWithSignalAndFlush:
      return static_cast<uint32_t>(channel.putWithSignalAndFlush(
          step.dst, step.dstOffset, step.src, step.srcOffset, step.size, step.operand));
    case conformance::OperationGet:
      return static_cast<uint32_t>(
          channel.get(step.dst, step.dstOffset, step.src, step.srcOffset, step.size));
    default:
      for (int64_t i = 0; i < step.operand; ++i) {
        if (channel.poll()) return 1;
      }
      return 0;
  }
}

}  // namespace

MSCCLPP_KERNEL(conformance_steps, StepsArgs) {
  const uint64_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  conformance::Step* steps = args.steps + thread * args.count;
  for (uint64_t i = 0; i < args.count; ++i) {
    if (steps[i].operation == 0) continue;
    steps[i].result = stepRun(args, steps[i]);
    mscclpp::atomicStore<uint32_t, mscclpp::scopeSystem>(&steps[i].done, 1,
                                                         mscclpp::memoryOrderRelease);
  }
}
