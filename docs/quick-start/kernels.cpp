// SPDX-License-Identifier: MIT
#include <mscclpp/kernel.hpp>
#include <mscclpp/port_channel_device.hpp>

struct WordArgs {
  mscclpp::PortChannelDeviceHandle channel;
  // Where the kernel leaves the status of its call.
  uint64_t* status;
};

MSCCLPP_KERNEL(send_word, WordArgs) {
  *args.status = uint64_t(args.channel.putWithSignalAndFlush(/*offset*/ 0, /*bytes*/ 8));
}

MSCCLPP_KERNEL(receive_word, WordArgs) {
  *args.status = uint64_t(args.channel.wait());
}
