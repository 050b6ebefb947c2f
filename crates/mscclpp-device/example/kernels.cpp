// SPDX-License-Identifier: MIT
#include <mscclpp/kernel.hpp>
#include <mscclpp/port_channel.hpp>

using namespace mscclpp;

// Two of these play ping-pong; `serve` is 1 for the one that begins.
struct PingPongArgs {
  DeviceHandle<Host2DeviceSemaphore> mine;
  uint64_t* peerInbound;
  uint64_t rounds;
  uint64_t serve;
  uint64_t* status;
};

MSCCLPP_KERNEL(ping_pong, PingPongArgs) {
  Status status = Status::Ok;
  for (uint64_t round = 0; round < args.rounds && status == Status::Ok; ++round) {
    if (args.serve) atomicFetchAdd(args.peerInbound, uint64_t{1}, memoryOrderRelease);
    status = args.mine.wait();
    if (!args.serve) atomicFetchAdd(args.peerInbound, uint64_t{1}, memoryOrderRelease);
  }
  *args.status = static_cast<uint64_t>(status);
}

struct PushArgs {
  FifoDeviceHandle fifo;
  uint64_t count;
};

MSCCLPP_KERNEL(push, PushArgs) {
  for (uint64_t i = 0; i < args.count; ++i) args.fifo.push({TriggerPutWithSignal, 1, i & 0xffff, 2, 0, 8, 3});
}
