// SPDX-License-Identifier: MIT
// Every rank sends to every other one at once: a block a peer.

#include <mscclpp/concurrency_device.hpp>

#include "report.hpp"

struct AllPairsArgs {
  // By block; block b serves peer b, or b + 1 from this rank on.
  mscclpp::PortChannelDeviceHandle* channels;
  // Two halves, for even and odd rounds; each has a slice a rank.
  int32_t* buffer;
  mscclpp::DeviceSyncer* syncer;
  conformance::Report* report;
  // Of a slice.
  uint64_t elements;
  uint64_t rounds;
  uint32_t rank;
  uint32_t ranks;
};

namespace {

MSCCLPP_DEVICE_INLINE int32_t allPairsValue(uint32_t sender, uint64_t round, uint64_t index) {
  return static_cast<int32_t>(sender * 1000003 + round * 31 + index);
}

}  // namespace

MSCCLPP_KERNEL(conformance_all_pairs, AllPairsArgs) {
  const uint32_t thread = threadIdx.x;
  const uint32_t threads = blockDim.x;
  const uint32_t peer = blockIdx.x < args.rank ? blockIdx.x : blockIdx.x + 1;
  mscclpp::PortChannelDeviceHandle channel = args.channels[blockIdx.x];
  for (uint64_t i = 0; i < args.rounds; ++i) {
    // A peer that is a round ahead writes the other half: it can not be two ahead, because that
    // takes this rank's signal of the round between, which follows the grid barrier below.
    const uint64_t half = (i % 2) * args.ranks * args.elements;
    volatile int32_t* mine = args.buffer + half + args.rank * args.elements;
    volatile int32_t* theirs = args.buffer + half + peer * args.elements;
    if (blockIdx.x == 0) {
      for (uint64_t j = thread; j < args.elements; j += threads) {
        mine[j] = allPairsValue(args.rank, i, j);
      }
    }
    args.syncer->sync(gridDim.x);
    if (thread == 0) {
      const uint64_t offset = (half + args.rank * args.elements) * sizeof(int32_t);
      const uint64_t bytes = args.elements * sizeof(int32_t);
      conformance::ok(args.report, thread, i, channel.putWithSignal(offset, bytes));
      conformance::ok(args.report, thread, i, channel.wait());
    }
    __syncthreads();
    for (uint64_t j = thread; j < args.elements; j += threads) {
      const int32_t expected = allPairsValue(peer, i, j);
      const int32_t found = theirs[j];
      if (found != expected) {
        conformance::failValue(args.report, thread, i, peer * args.elements + j, expected, found);
      }
    }
    // The flush lets block 0 write this half again two rounds later.
    if (thread == 0) conformance::ok(args.report, thread, i, channel.flush());
    args.syncer->sync(gridDim.x);
  }
}
