// SPDX-License-Identifier: MIT
// A launch that knows nothing of the launches before it but what they left in device memory.

#include "report.hpp"

struct ReplayArgs {
  mscclpp::PortChannelDeviceHandle channel;
  // Of the channel: a word for even and one for odd launches.
  uint64_t* outgoing;
  uint64_t* incoming;
  // Launches so far.
  uint64_t* count;
  conformance::Report* report;
  uint32_t rank;
  uint32_t reserved;
};

namespace {

constexpr uint64_t ReplayFlushInterval = 16;

MSCCLPP_DEVICE_INLINE uint64_t replayValue(uint32_t rank, uint64_t launch) {
  return (static_cast<uint64_t>(rank) + 1) << 56 | (launch + 1);
}

}  // namespace

// Puts a word, signals, waits for the peer's and looks at it. The peer's word of two launches later
// comes after it has this rank's of the next, so that no word is overwritten before it was seen.
MSCCLPP_KERNEL(conformance_replay, ReplayArgs) {
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  const uint64_t launch = *args.count;
  const uint64_t place = launch % 2;
  *static_cast<volatile uint64_t*>(args.outgoing + place) = replayValue(args.rank, launch);
  bool well = conformance::ok(args.report, 0, launch, channel.put(place * sizeof(uint64_t), sizeof(uint64_t)));
  well = well && conformance::ok(args.report, 0, launch, channel.signal());
  well = well && conformance::ok(args.report, 0, launch, channel.wait());
  if (well) {
    const uint64_t expected = replayValue(1 - args.rank, launch);
    const uint64_t found = *static_cast<volatile uint64_t*>(args.incoming + place);
    if (found != expected) {
      conformance::failValue(args.report, 0, launch, place, static_cast<int64_t>(expected),
                             static_cast<int64_t>(found));
    }
    if (launch % ReplayFlushInterval == 0) conformance::ok(args.report, 0, launch, channel.flush());
  }
  *args.count = launch + 1;
}
