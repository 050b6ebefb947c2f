// SPDX-License-Identifier: MIT
// Kernels that do nothing but post: one value, as much as possible, and until it fails.

#include "report.hpp"

struct OneValueArgs {
  mscclpp::PortChannelDeviceHandle channel;
  // The first word of the channel's memory.
  uint32_t* value;
  conformance::Report* report;
  uint32_t rank;
  uint32_t reserved;
};

namespace {

constexpr uint32_t OneValue = 42;
// Looks at a completion or a token; each call ends long before.
constexpr int64_t OneValueBudget = 100000000;

}  // namespace

// Rank 0 stores a value and sends it, rank 1 sees it behind the signal.
MSCCLPP_KERNEL(conformance_one_value, OneValueArgs) {
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  volatile uint32_t* value = args.value;
  if (args.rank == 0) {
    *value = OneValue;
    if (!conformance::ok(args.report, 0, 0, channel.putWithSignal(0, sizeof(uint32_t)))) return;
    conformance::ok(args.report, 0, 1, channel.flush(OneValueBudget));
  } else {
    if (!conformance::ok(args.report, 0, 0, channel.wait(OneValueBudget))) return;
    const uint32_t found = *value;
    if (found != OneValue) conformance::failValue(args.report, 0, 0, 0, OneValue, found);
  }
}

struct PutsArgs {
  // A channel a thread.
  mscclpp::PortChannelDeviceHandle* channels;
  conformance::Report* report;
  uint64_t bytes;
  uint64_t count;
};

// Each thread puts again and again over its channel, and flushes at the end.
MSCCLPP_KERNEL(conformance_puts, PutsArgs) {
  const uint32_t thread = threadIdx.x;
  mscclpp::PortChannelDeviceHandle channel = args.channels[thread];
  for (uint64_t i = 0; i < args.count; ++i) {
    if (!conformance::ok(args.report, thread, i, channel.put(0, args.bytes))) return;
  }
  conformance::ok(args.report, thread, args.count, channel.flush());
}

// Written by one thread, read by the host at any time.
struct FloodProgress {
  uint64_t posts;
  uint32_t status;
  uint32_t reserved;
};

constexpr uint64_t FloodFlushInterval = 256;

struct FloodArgs {
  mscclpp::PortChannelDeviceHandle channel;
  FloodProgress* progress;
  // Not zero: end.
  uint64_t* stop;
  uint64_t bytes;
};

// Each thread puts and signals in turns until a call fails or the host says stop. It flushes at the
// end, and once in a while: a proxy's errors show in flushes only.
MSCCLPP_KERNEL(conformance_flood, FloodArgs) {
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  FloodProgress* progress = args.progress + threadIdx.x;
  mscclpp::Status status = mscclpp::Status::Ok;
  for (uint64_t i = 0; status == mscclpp::Status::Ok; ++i) {
    if (mscclpp::atomicLoad<uint64_t, mscclpp::scopeSystem>(args.stop,
                                                            mscclpp::memoryOrderRelaxed) != 0) {
      break;
    }
    status = i % 2 == 0 ? channel.putWithSignal(0, args.bytes) : channel.signal();
    if (status == mscclpp::Status::Ok && i % FloodFlushInterval == 0) status = channel.flush();
    mscclpp::atomicStore<uint64_t, mscclpp::scopeSystem>(&progress->posts, i + 1,
                                                         mscclpp::memoryOrderRelaxed);
  }
  if (status == mscclpp::Status::Ok) status = channel.flush();
  progress->status = static_cast<uint32_t>(status);
}
