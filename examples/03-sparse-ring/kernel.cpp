// SPDX-License-Identifier: MIT
#include <mscclpp/kernel.hpp>
#include <mscclpp/port_channel.hpp>

struct RingArgs {
  mscclpp::DeviceHandle<mscclpp::PortChannel> left, right;
  // Put by the left neighbour into this rank's, and from there to the right one's.
  uint64_t* word;
  // How the first call that failed did; 0 if none did.
  uint64_t* status;
  uint64_t rank;
};

// A word goes once around the ring, and each rank adds its number to it. One thread.
MSCCLPP_KERNEL(pass_around, RingArgs) {
  using mscclpp::Status;
  auto left = args.left, right = args.right;
  Status status = args.rank == 0 ? Status::Ok : left.wait();
  if (status == Status::Ok) {
    *args.word += args.rank;
    status = right.putWithSignalAndFlush(0, sizeof(uint64_t));
  }
  if (args.rank == 0 && status == Status::Ok) status = left.wait();
  *args.status = static_cast<uint64_t>(status);
}
