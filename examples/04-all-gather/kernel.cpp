// SPDX-License-Identifier: MIT
#include <mscclpp/kernel.hpp>
#include <mscclpp/port_channel.hpp>

struct AllGatherArgs {
  // One to each other rank, from the whole buffer here to the whole buffer there.
  mscclpp::DeviceHandle<mscclpp::PortChannel>* channels;
  // This rank's slice of the buffer, in bytes.
  uint64_t offset, size;
  // Of each thread: how the first call that failed did; 0 if none did.
  uint64_t* statuses;
};

// Sends the own slice to all, and waits for theirs. A thread a peer.
MSCCLPP_KERNEL(all_gather, AllGatherArgs) {
  using mscclpp::Status;
  auto channel = args.channels[threadIdx.x];
  Status status = channel.putWithSignal(args.offset, args.size);
  if (status == Status::Ok) status = channel.wait();
  if (status == Status::Ok) status = channel.flush();
  args.statuses[threadIdx.x] = static_cast<uint64_t>(status);
}
