// SPDX-License-Identifier: MIT
#include <mscclpp/kernel.hpp>
#include <mscclpp/port_channel.hpp>

struct PingPongArgs {
  // From `word` here to `word` at the peer.
  mscclpp::DeviceHandle<mscclpp::PortChannel> channel;
  uint64_t* word;
  // How the first call that failed did; 0 if none did.
  uint64_t* status;
  uint64_t rounds;
  // 1 on the rank that begins, else 0.
  uint64_t begins;
};

// The word goes back and forth; each rank adds one to it and sends it on. One thread.
MSCCLPP_KERNEL(ping_pong, PingPongArgs) {
  using mscclpp::Status;
  auto channel = args.channel;
  Status status = Status::Ok;
  for (uint64_t round = 0; round < args.rounds && status == Status::Ok; ++round) {
    if (!args.begins) status = channel.wait();
    if (status != Status::Ok) break;
    *args.word += 1;
    status = channel.putWithSignal(0, sizeof(uint64_t));
    if (args.begins && status == Status::Ok) status = channel.wait();
  }
  if (status == Status::Ok) status = channel.flush();
  *args.status = static_cast<uint64_t>(status);
}
