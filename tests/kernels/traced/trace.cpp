// SPDX-License-Identifier: MIT
// A ping-pong whose calls leave a trace; compiled with MSCCLPP_DEVICE_TRACE.
#include <mscclpp/kernel.hpp>
#include <mscclpp/port_channel_device.hpp>

struct TraceArgs {
  mscclpp::PortChannelDeviceHandle channel;
  uint64_t bytes;
  uint64_t iterations;
  uint64_t rank;
  // How it ended.
  uint64_t* status;
};

MSCCLPP_KERNEL(conformance_trace, TraceArgs) {
  if (threadIdx.x != 0) return;
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  mscclpp::Status status = mscclpp::Status::Ok;
  const auto go = [&](mscclpp::Status next) {
    status = next;
    return status == mscclpp::Status::Ok;
  };
  for (uint64_t i = 0; i < args.iterations; ++i) {
    if (args.rank == 1 && !go(channel.wait())) break;
    if (!go(channel.putWithSignal(0, args.bytes))) break;
    if (args.rank == 0 && !go(channel.wait())) break;
  }
  if (status == mscclpp::Status::Ok) status = channel.flush();
  *args.status = static_cast<uint64_t>(status);
}
