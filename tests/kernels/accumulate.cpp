// SPDX-License-Identifier: MIT
// Remote additions: every block of two ranks at once, and many ranks into one.

#include <mscclpp/concurrency_device.hpp>

#include "report.hpp"

struct AccumulateArgs {
  mscclpp::PortChannelDeviceHandle channel;
  // The word of this rank that the peer adds to.
  uint64_t* target;
  mscclpp::DeviceSyncer* syncer;
  conformance::Report* report;
  uint64_t rounds;
};

namespace {

// Operands that need all 64 bits, carry across the middle, and are negative.
constexpr int64_t AccumulateUp = 3 * (int64_t{1} << 32) + 7;
constexpr int64_t AccumulateDown = -((int64_t{1} << 32) + 3);

}  // namespace

// One thread a block. Each block adds three operands a round; block 0 then tells the peer and waits
// for the same.
MSCCLPP_KERNEL(conformance_accumulate, AccumulateArgs) {
  const uint32_t block = blockIdx.x;
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  const uint64_t perRound = static_cast<uint64_t>(AccumulateUp + AccumulateDown) * gridDim.x;
  for (uint64_t i = 0; i < args.rounds; ++i) {
    // A failed call is reported and the round goes on: a block that left would hold the others at
    // the grid barrier.
    conformance::ok(args.report, block, i, channel.accumulate(0, 0));
    conformance::ok(args.report, block, i, channel.accumulate(0, AccumulateUp));
    conformance::ok(args.report, block, i, channel.accumulate(0, AccumulateDown));
    args.syncer->sync(gridDim.x);
    if (block == 0) {
      conformance::ok(args.report, block, i, channel.signal());
      conformance::ok(args.report, block, i, channel.flush());
      conformance::ok(args.report, block, i, channel.wait());
      // The peer may be in its next round already, and no block of it is ever below what it had:
      // at least this much, and exactly this much at the end.
      const uint64_t least = perRound * (i + 1);
      const uint64_t found = mscclpp::atomicLoad<uint64_t, mscclpp::scopeSystem>(
          args.target, mscclpp::memoryOrderAcquire);
      const bool right = i + 1 == args.rounds ? found == least : found >= least;
      if (!right) {
        conformance::failValue(args.report, block, i, 0, static_cast<int64_t>(least),
                               static_cast<int64_t>(found));
      }
    }
    args.syncer->sync(gridDim.x);
  }
}

struct FanInArgs {
  mscclpp::PortChannelDeviceHandle channel;
  conformance::Report* report;
  uint64_t offset;
  int64_t operand;
  uint64_t count;
};

MSCCLPP_KERNEL(conformance_fan_in, FanInArgs) {
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  for (uint64_t i = 0; i < args.count; ++i) {
    if (!conformance::ok(args.report, 0, i, channel.accumulate(args.offset, args.operand))) return;
  }
  conformance::ok(args.report, 0, args.count, channel.flush());
}
