// SPDX-License-Identifier: MIT
// Calls of a channel on a send queue that no other test makes on a GPU.
#include <mscclpp/kernel.hpp>
#include <mscclpp/port_channel_device.hpp>

struct QueueCallsArgs {
  mscclpp::PortChannelDeviceHandle channel;
  // Bytes of a put and of a get, which lies behind.
  unsigned long long bytes;
  unsigned long long* report;
};

// Puts the first bytes, adds 5 and 7 to the word behind twice as many, flushes, and gets what the
// peer has in the second ones.
MSCCLPP_KERNEL(queue_calls, QueueCallsArgs) {
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  const unsigned long long bytes = args.bytes;
  mscclpp::Status status = channel.put(0, bytes);
  if (status == mscclpp::Status::Ok) status = channel.accumulate(2 * bytes, 5);
  if (status == mscclpp::Status::Ok) status = channel.accumulate(2 * bytes, 7);
  if (status == mscclpp::Status::Ok) status = channel.flush();
  if (status == mscclpp::Status::Ok) status = channel.get(bytes, bytes);
  if (status == mscclpp::Status::Ok) status = channel.flush();
  args.report[0] = static_cast<unsigned long long>(status);
}

struct QueueCrowdArgs {
  mscclpp::PortChannelDeviceHandle channel;
  unsigned long long count;
  unsigned long long* report;
};

// Many threads signal over one shared queue, and flush; the first status that is not Ok is told.
MSCCLPP_KERNEL(queue_crowd, QueueCrowdArgs) {
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  mscclpp::Status status = mscclpp::Status::Ok;
  for (unsigned long long i = 0; i < args.count && status == mscclpp::Status::Ok; ++i) status = channel.signal();
  if (status == mscclpp::Status::Ok) status = channel.flush();
  if (status != mscclpp::Status::Ok) args.report[1] = static_cast<unsigned long long>(status);
  if (__syncthreads_or(status != mscclpp::Status::Ok) == 0 && threadIdx.x == 0) args.report[0] = 0;
}
