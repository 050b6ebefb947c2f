// SPDX-License-Identifier: MIT
// Two ranks take turns in sending a buffer as LL packets: no signal, the flags inside the packets
// tell that they arrived.

#include <mscclpp/copy_device.hpp>
#include <mscclpp/packet_device.hpp>

#include "report.hpp"

struct PacketPingPongArgs {
  mscclpp::PortChannelDeviceHandle channel;
  // The values, and the two packet buffers that the channel's memories name.
  int32_t* buffer;
  void* outgoing;
  void* incoming;
  conformance::Report* report;
  uint64_t elements;
  uint64_t iterations;
  // The flag of iteration i is this plus i; a flag is never 0 and never used twice.
  uint32_t firstFlag;
  uint32_t rank;
  uint32_t check;
  uint32_t reserved;
};

namespace {

constexpr uint64_t PacketFlushInterval = 64;

MSCCLPP_DEVICE_INLINE int32_t packetValue(uint64_t iteration, uint64_t index) {
  return static_cast<int32_t>(iteration * 7 + index);
}

}  // namespace

// Iteration i goes from rank i % 2 to the other: half a round trip.
MSCCLPP_KERNEL(conformance_packet_ping_pong, PacketPingPongArgs) {
  const uint32_t thread = threadIdx.x;
  const uint32_t threads = blockDim.x;
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  const uint64_t bytes = args.elements * sizeof(int32_t);
  uint64_t sent = 0;
  for (uint64_t i = 0; i < args.iterations; ++i) {
    const uint32_t flag = args.firstFlag + static_cast<uint32_t>(i);
    if (i % 2 == args.rank) {
      if (args.check != 0) {
        for (uint64_t j = thread; j < args.elements; j += threads) {
          args.buffer[j] = packetValue(i, j);
        }
        // A packet holds the values of more than one thread.
        __syncthreads();
      }
      mscclpp::copyToPackets(args.outgoing, args.buffer, bytes, thread, threads, flag);
      __syncthreads();
      if (thread == 0) {
        if (!conformance::ok(args.report, thread, i, channel.put(0, 2 * bytes))) return;
        if (++sent % PacketFlushInterval == 0 &&
            !conformance::ok(args.report, thread, i, channel.flush())) {
          return;
        }
      }
    } else {
      // Packets bring no signal: only the connection's status tells that none will come any more.
      const mscclpp::Status got =
          mscclpp::copyFromPackets(args.buffer, args.incoming, bytes, thread, threads, flag, -1,
                                   channel.semaphore_.status);
      if (!conformance::ok(args.report, thread, i, got)) return;
      if (args.check != 0) {
        __syncthreads();
        for (uint64_t j = thread; j < args.elements; j += threads) {
          const int32_t expected = packetValue(i, j);
          const int32_t found = args.buffer[j];
          if (found != expected) {
            conformance::failValue(args.report, thread, i, j, expected, found);
          }
        }
      }
      __syncthreads();
    }
  }
  if (thread == 0) conformance::ok(args.report, thread, args.iterations, channel.flush());
}
