// SPDX-License-Identifier: MIT
// What a user of MSCCL++ writes: a CUDA file that knows MSCCL++'s names, and nothing that is this
// project's own. Statuses are ignored, as MSCCL++'s calls return none. It compiles unchanged with
// nvcc and with NVRTC, and a row of the suite runs it on two ranks, each with two blocks.
//
// Both ranks do the same steps at the same time. Step s sends a value of its own and waits for the
// peer's, which comes to a slot of its own, so that nothing is overwritten before it was looked at.

#include <mscclpp/concurrency_device.hpp>
#include <mscclpp/copy_device.hpp>
#include <mscclpp/fifo_device.hpp>
#include <mscclpp/packet_device.hpp>
#include <mscclpp/port_channel.hpp>
#include <mscclpp/port_channel_device.hpp>
#include <mscclpp/semaphore_device.hpp>

struct UserArgs {
  mscclpp::DeviceHandle<mscclpp::PortChannel> channel;
  mscclpp::DeviceHandle<mscclpp::BasePortChannel> base;
  // The channel's source and destination; the peer writes to `incoming` here.
  unsigned long long* outgoing;
  unsigned long long* incoming;
  // 0, or the first step that went wrong.
  unsigned int* failed;
  mscclpp::MemoryId dst;
  mscclpp::MemoryId src;
  unsigned int rank;
  // Whether a proxy's FIFO is behind the channel, and whether peers can add.
  unsigned int hasFifo;
  unsigned int accumulates;
  unsigned int reserved;
};

// Slots of 8 bytes for values, then an area for packets.
constexpr unsigned int packetSlots = 64;
constexpr unsigned int packetValues = 64;

// By rank: two ranks may be threads of one process that share a GPU, and so the module.
__device__ mscclpp::DeviceSyncer deviceSyncers[2];
__device__ mscclpp::DeviceSemaphore deviceSemaphores[2];
__device__ volatile unsigned int visitors[2];

__device__ unsigned long long valueOf(unsigned int rank, unsigned int step) {
  return (rank + 1ull) * 1000ull + step;
}

__device__ void check(const UserArgs& args, unsigned int step, bool right) {
  if (!right) atomicCAS(args.failed, 0u, step);
}

__device__ void fill(const UserArgs& args, unsigned int step, unsigned int slot) {
  volatile unsigned long long* out = args.outgoing;
  out[slot] = valueOf(args.rank, step);
}

__device__ void expect(const UserArgs& args, unsigned int step, unsigned int slot) {
  volatile unsigned long long* in = args.incoming;
  check(args, step, in[slot] == valueOf(1 - args.rank, step));
}

// A channel bound to its memories.
__device__ void boundChannel(const UserArgs& args) {
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  const uint64_t size = sizeof(unsigned long long);

  fill(args, 1, 1);
  channel.put(1 * size, size);
  channel.signal();
  channel.wait();
  expect(args, 1, 1);
  channel.flush();

  // From one place to another.
  fill(args, 2, 2);
  channel.put(3 * size, 2 * size, size);
  channel.signal();
  while (!channel.poll()) {
  }
  expect(args, 2, 3);
  channel.flush(-1);

  fill(args, 3, 4);
  channel.putWithSignal(4 * size, size);
  channel.wait(-1);
  expect(args, 3, 4);

  fill(args, 4, 5);
  channel.putWithSignal(6 * size, 5 * size, size);
  channel.wait();
  expect(args, 4, 6);

  fill(args, 5, 7);
  channel.putWithSignalAndFlush(7 * size, size);
  channel.wait();
  expect(args, 5, 7);

  fill(args, 6, 8);
  channel.putWithSignalAndFlush(9 * size, 8 * size, size, -1);
  channel.wait();
  expect(args, 6, 9);

  check(args, 7, channel.dst_ == args.dst && channel.src_ == args.src);
}

// A channel whose calls name memories.
__device__ void baseChannel(const UserArgs& args) {
  mscclpp::BasePortChannelDeviceHandle channel = args.base;
  const mscclpp::MemoryId dst = args.dst;
  const mscclpp::MemoryId src = args.src;
  const uint64_t size = sizeof(unsigned long long);

  fill(args, 11, 11);
  channel.put(dst, src, 11 * size, size);
  channel.signal();
  channel.wait();
  expect(args, 11, 11);
  channel.flush();

  fill(args, 12, 12);
  channel.put(dst, 13 * size, src, 12 * size, size);
  channel.signal();
  while (!channel.poll()) {
  }
  expect(args, 12, 13);

  fill(args, 13, 14);
  channel.putWithSignal(dst, src, 14 * size, size);
  channel.wait();
  expect(args, 13, 14);

  fill(args, 14, 15);
  channel.putWithSignal(dst, 16 * size, src, 15 * size, size);
  channel.wait(-1);
  expect(args, 14, 16);

  fill(args, 15, 17);
  channel.putWithSignalAndFlush(dst, src, 17 * size, size);
  channel.wait();
  expect(args, 15, 17);

  // The semaphore by itself.
  fill(args, 16, 18);
  channel.putWithSignalAndFlush(dst, 19 * size, src, 18 * size, size, -1);
  mscclpp::DeviceHandle<mscclpp::Host2DeviceSemaphore> semaphore = channel.semaphore_;
  semaphore.wait();
  expect(args, 16, 19);
  channel.signal();
  while (!semaphore.poll()) {
  }
  check(args, 17, *semaphore.expectedInboundToken <= *semaphore.inboundToken);
}

__device__ void accumulate(const UserArgs& args) {
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  mscclpp::BasePortChannelDeviceHandle base = args.base;
  const uint64_t offset = 20 * sizeof(unsigned long long);
  channel.accumulate(offset, 5);
  base.accumulate(args.dst, offset, -2);
  channel.signal();
  channel.wait();
  channel.flush();
  check(args, 20, *static_cast<volatile unsigned long long*>(args.incoming + 20) == 3);
}

// Triggers by hand.
__device__ void fifo(const UserArgs& args) {
  mscclpp::FifoDeviceHandle fifo = args.base.fifo_;
  const mscclpp::SemaphoreId id = args.base.semaphoreId_;
  const uint64_t size = sizeof(unsigned long long);
  fill(args, 21, 21);
  const mscclpp::TriggerType type = mscclpp::TriggerData | mscclpp::TriggerFlag;
  mscclpp::ProxyTrigger trigger(type, args.dst, 21 * size, args.src, 21 * size, size, id);
  check(args, 22, trigger.fields.size == size && trigger.fields.srcOffset == 21 * size);
  check(args, 22, trigger.fields.dstOffset == 21 * size && trigger.fields.type == type);
  check(args, 22, trigger.fields.srcMemoryId == args.src && trigger.fields.dstMemoryId == args.dst);
  check(args, 22, trigger.fields.semaphoreId == id && trigger.fst == (21 * size << 32 | size));
  const uint64_t position = fifo.push(trigger);
  fifo.sync(position);
  check(args, 23, fifo.poll(position));
  mscclpp::BasePortChannelDeviceHandle base = args.base;
  base.wait();
  expect(args, 21, 21);
  // The same without a signal, then a signal and a flush, each by its own name.
  fill(args, 24, 22);
  fifo.push(mscclpp::ProxyTrigger(mscclpp::TriggerPut, args.dst, 22 * size, args.src, 22 * size, size, id));
  fifo.push(mscclpp::ProxyTrigger(mscclpp::TriggerSignal, 0, 0, 0, 0, 0, id), -1);
  fifo.sync(fifo.push(mscclpp::ProxyTrigger(mscclpp::TriggerSync, 0, 0, 0, 0, 0, id)), -1);
  base.wait();
  expect(args, 24, 22);
  check(args, 25, uint64_t(fifo.size) == fifo.sizeMask + 1 && (1ull << fifo.sizeShift) == uint64_t(fifo.size));
  check(args, 25, *fifo.head > position && fifo.tail != nullptr && fifo.tailCache != nullptr);
  check(args, 25, fifo.triggers != nullptr);
}

// Packets: the flag inside tells that the data is there. All threads of one block.
template <typename PacketType>
__device__ void packets(const UserArgs& args, unsigned int step, unsigned int flag) {
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  const uint64_t bytes = packetValues * sizeof(unsigned int);
  // Packets at the start of the area, values behind them.
  const uint64_t packetBytes = packetValues * 2 * sizeof(unsigned int);
  const uint64_t offset = packetSlots * sizeof(unsigned long long);
  char* outgoing = reinterpret_cast<char*>(args.outgoing) + offset;
  char* incoming = reinterpret_cast<char*>(args.incoming) + offset;
  unsigned int* values = reinterpret_cast<unsigned int*>(outgoing + packetBytes);
  for (unsigned int i = threadIdx.x; i < packetValues; i += blockDim.x) values[i] = args.rank * 1000 + flag * 100 + i;
  __syncthreads();
  mscclpp::copyToPackets<PacketType>(outgoing, values, bytes, threadIdx.x, blockDim.x, flag);
  __syncthreads();
  if (threadIdx.x == 0) channel.put(offset, packetBytes);
  unsigned int* arrived = reinterpret_cast<unsigned int*>(incoming + packetBytes);
  mscclpp::copyFromPackets<PacketType>(arrived, incoming, bytes, threadIdx.x, blockDim.x, flag);
  __syncthreads();
  for (unsigned int i = threadIdx.x; i < packetValues; i += blockDim.x) {
    check(args, step, arrived[i] == (1 - args.rank) * 1000 + flag * 100 + i);
  }
  __syncthreads();
  // Nobody overwrites packets that the peer still reads.
  if (threadIdx.x == 0) {
    channel.signal();
    channel.wait();
    channel.flush();
  }
  __syncthreads();
}

// Packets one by one, in this rank's memory.
__device__ void onePacket(const UserArgs& args) {
  mscclpp::LLPacket* packet =
      reinterpret_cast<mscclpp::LLPacket*>(args.outgoing + packetSlots);
  packet->clear();
  uint2 data;
  check(args, 33, packet->readOnce(7, data));
  packet->write(5, 6, 7);
  data = packet->read(7);
  check(args, 34, data.x == 5 && data.y == 6 && !packet->readOnce(7, data));
  mscclpp::LL8Packet* small = reinterpret_cast<mscclpp::LL8Packet*>(packet + 1);
  small->clear();
  small->write(8, 9);
  check(args, 35, small->read(9) == 8);
}

// Blocks that wait for each other, and take turns.
__device__ void blocks(const UserArgs& args) {
  mscclpp::DeviceSyncer& syncer = deviceSyncers[args.rank];
  mscclpp::DeviceSemaphore& semaphore = deviceSemaphores[args.rank];
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    visitors[args.rank] = 0;
    semaphore.set(1);
  }
  syncer.sync(gridDim.x);
  if (threadIdx.x == 0) {
    semaphore.acquire();
    visitors[args.rank] = visitors[args.rank] + 1;
    semaphore.release();
  }
  syncer.sync(gridDim.x, -1);
  check(args, 40, visitors[args.rank] == gridDim.x);
}

extern "C" __global__ void port_channel_user(UserArgs args) {
  blocks(args);
  if (blockIdx.x != 0) return;
  if (threadIdx.x == 0) {
    boundChannel(args);
    baseChannel(args);
    if (args.accumulates != 0) accumulate(args);
    if (args.hasFifo != 0) fifo(args);
  }
  __syncthreads();
  packets<mscclpp::LL16Packet>(args, 31, 1);
  packets<mscclpp::LL8Packet>(args, 32, 2);
  if (threadIdx.x == 0) onePacket(args);
}
