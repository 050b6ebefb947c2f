// SPDX-License-Identifier: MIT
// Kernels that look for what must not happen: lost and doubled signals, flushes that return early,
// and payload older or newer than the signal that announced it.

#include "report.hpp"

struct CountArgs {
  mscclpp::PortChannelDeviceHandle channel;
  conformance::Report* report;
  uint64_t count;
  uint32_t sends;
  uint32_t reserved;
};

// Each thread sends a word of its own so often, with a signal each; or waits for so many signals.
MSCCLPP_KERNEL(conformance_count, CountArgs) {
  const uint32_t thread = threadIdx.x;
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  const uint64_t offset = thread * sizeof(uint64_t);
  for (uint64_t i = 0; i < args.count; ++i) {
    const mscclpp::Status status =
        args.sends != 0 ? channel.putWithSignal(offset, sizeof(uint64_t)) : channel.wait();
    if (!conformance::ok(args.report, thread, i, status)) return;
  }
  if (args.sends != 0) conformance::ok(args.report, thread, args.count, channel.flush());
}

struct OwnFlushArgs {
  mscclpp::PortChannelDeviceHandle channel;
  // The channel's source: a word a thread.
  uint64_t* words;
  conformance::Report* report;
  uint64_t iterations;
};

// Each thread sends its word to another place each time and changes it as soon as its own flush has
// returned. A flush that returns before the word was read shows at the peer.
MSCCLPP_KERNEL(conformance_own_flush, OwnFlushArgs) {
  const uint32_t thread = threadIdx.x;
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  volatile uint64_t* word = args.words + thread;
  for (uint64_t i = 0; i < args.iterations; ++i) {
    const uint64_t place = thread * args.iterations + i;
    *word = place + 1;
    const mscclpp::Status status = channel.putWithSignalAndFlush(
        place * sizeof(uint64_t), thread * sizeof(uint64_t), sizeof(uint64_t));
    *word = ~uint64_t{0};
    if (!conformance::ok(args.report, thread, i, status)) return;
  }
}

struct GenerationsArgs {
  mscclpp::PortChannelDeviceHandle channel;
  // Of the channel: two halves, for even and odd rounds; each has a chunk a message.
  uint64_t* outgoing;
  uint64_t* incoming;
  conformance::Report* report;
  // Number of the first round: launches on the same memory go on with it.
  uint64_t first;
  uint64_t rounds;
  // Of a round.
  uint64_t messages;
  // 64-bit words of a chunk.
  uint64_t words;
  uint32_t rank;
  // 1: the last message is signalled and never sent, which the peer must find.
  uint32_t planted;
};

namespace {

MSCCLPP_DEVICE_INLINE uint64_t generation(uint32_t sender, uint64_t round, uint64_t message,
                                          uint64_t word) {
  return (static_cast<uint64_t>(sender) + 1) << 56 | round << 24 | message << 16 | (word & 0xffff);
}

// Every second message as two calls.
MSCCLPP_DEVICE_INLINE mscclpp::Status generationsSend(mscclpp::PortChannelDeviceHandle& channel,
                                                      uint64_t message, uint64_t offset,
                                                      uint64_t bytes) {
  if (message % 2 == 0) return channel.putWithSignal(offset, bytes);
  const mscclpp::Status status = channel.put(offset, bytes);
  return status == mscclpp::Status::Ok ? channel.signal() : status;
}

}  // namespace

// Both ranks send a round of messages, then take the peer's: signal k says that message k is there
// and no other one of its place. All threads fill and check, one sends and waits: another one each
// round, so that a queue for one thread at a time is handed over behind a barrier.
//
// A half is written again two rounds later: the peer's messages of the round between say that this
// rank's of the first have arrived and were checked.
MSCCLPP_KERNEL(conformance_generations, GenerationsArgs) {
  const uint32_t thread = threadIdx.x;
  const uint32_t threads = blockDim.x;
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  const uint64_t bytes = args.words * sizeof(uint64_t);
  for (uint64_t i = args.first; i < args.first + args.rounds; ++i) {
    const bool plants = args.planted != 0 && i + 1 == args.first + args.rounds;
    const uint64_t half = (i % 2) * args.messages;
    const bool leads = thread == i % threads;
    volatile uint64_t* out = args.outgoing + half * args.words;
    volatile uint64_t* in = args.incoming + half * args.words;
    for (uint64_t j = thread; j < args.messages * args.words; j += threads) {
      out[j] = generation(args.rank, i, j / args.words, j % args.words);
    }
    __syncthreads();
    for (uint64_t k = 0; leads && k < args.messages; ++k) {
      const uint64_t offset = (half + k) * bytes;
      // What must be found, however late the peer looks: there is no payload behind the last signal.
      const mscclpp::Status status = plants && k + 1 == args.messages
                                         ? channel.signal()
                                         : generationsSend(channel, k, offset, bytes);
      if (!conformance::ok(args.report, thread, i, status)) return;
    }
    for (uint64_t k = 0; k < args.messages; ++k) {
      if (leads && !conformance::ok(args.report, thread, i, channel.wait())) return;
      __syncthreads();
      for (uint64_t j = thread; j < args.words; j += threads) {
        const uint64_t expected = generation(1 - args.rank, i, k, j);
        const uint64_t found = in[k * args.words + j];
        if (found != expected) {
          conformance::failValue(args.report, thread, i, k * args.words + j,
                                 static_cast<int64_t>(expected), static_cast<int64_t>(found));
        }
      }
    }
    __syncthreads();
  }
  if (thread == 0) conformance::ok(args.report, thread, args.rounds, channel.flush());
}
