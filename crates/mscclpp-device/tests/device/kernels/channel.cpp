// SPDX-License-Identifier: MIT
#include <mscclpp/kernel.hpp>
#include <mscclpp/port_channel.hpp>

using namespace mscclpp;

// One call of each form of each method, in this order; their status by call.
struct AllArgs {
  DeviceHandle<PortChannel> channel;
  uint64_t* status;
};

MSCCLPP_KERNEL(channel_all, AllArgs) {
  DeviceHandle<PortChannel>& bound = args.channel;
  DeviceHandle<BasePortChannel>& base = bound;
  const Status all[] = {
      bound.put(1, 2, 3),
      bound.put(4, 5),
      bound.signal(),
      bound.putWithSignal(6, 7, 8),
      bound.putWithSignal(9, 10),
      bound.putWithSignalAndFlush(11, 12, 13),
      bound.putWithSignalAndFlush(14, 15),
      bound.flush(),
      bound.accumulate(16, -17),
      base.put(MemoryId{21}, 22, MemoryId{23}, 24, 25),
      base.put(MemoryId{26}, MemoryId{27}, 28, 29),
      base.putWithSignal(MemoryId{30}, 31, MemoryId{32}, 33, 34),
      base.putWithSignal(MemoryId{35}, MemoryId{36}, 37, 38),
      base.putWithSignalAndFlush(MemoryId{39}, 40, MemoryId{41}, 42, 43),
      base.putWithSignalAndFlush(MemoryId{44}, MemoryId{45}, uint64_t{46}, uint64_t{47}),
      base.accumulate(MemoryId{48}, 49, 0x123456789abcdef0),
  };
  for (const Status status : all) *args.status++ = static_cast<uint64_t>(status);
}

// Calls whose ids, offsets or sizes do not fit a trigger.
MSCCLPP_KERNEL(channel_invalid, AllArgs) {
  constexpr uint64_t big = 1ull << 32;
  DeviceHandle<PortChannel>& bound = args.channel;
  DeviceHandle<BasePortChannel>& base = bound;
  const Status all[] = {
      bound.put(big, 0, 1),
      bound.put(0, big, 1),
      bound.put(0, 0, big),
      bound.putWithSignal(big, 1),
      bound.putWithSignalAndFlush(0, 0, ~0ull),
      bound.accumulate(big, 1),
      base.put(MemoryId{512}, 0, MemoryId{0}, 0, 1),
      base.put(MemoryId{0}, 0, MemoryId{512}, 0, 1),
      base.accumulate(MemoryId{512}, 0, 1),
  };
  for (const Status status : all) *args.status++ = static_cast<uint64_t>(status);
}

// Each thread flushes `rounds` times.
struct FlushArgs {
  PortChannelDeviceHandle channel;
  uint64_t rounds;
  int64_t budget;
  uint64_t* status;  // by thread, of the last flush
};

MSCCLPP_KERNEL(channel_flush, FlushArgs) {
  Status status = Status::Ok;
  for (uint64_t i = 0; i < args.rounds && status == Status::Ok; ++i) {
    status = args.channel.putWithSignalAndFlush(threadIdx.x * 4, threadIdx.x * 4, 4, args.budget);
  }
  args.status[threadIdx.x] = static_cast<uint64_t>(status);
}

// Each thread signals `rounds` times; their status by call.
MSCCLPP_KERNEL(channel_signals, FlushArgs) {
  for (uint64_t i = 0; i < args.rounds; ++i) {
    args.status[i] = static_cast<uint64_t>(args.channel.signal());
  }
}

// Each thread waits for a signal of the peer; FlushArgs without the rounds.
MSCCLPP_KERNEL(channel_wait, FlushArgs) {
  args.status[threadIdx.x] = static_cast<uint64_t>(args.channel.wait(args.budget));
}

// What a kernel finds in the handles that Rust made.
struct FieldsArgs {
  PortChannelDeviceHandle channel;
  uint64_t* fields;
};

MSCCLPP_KERNEL(channel_fields, FieldsArgs) {
  const PortChannelDeviceHandle& channel = args.channel;
  const auto address = [](const void* pointer) { return reinterpret_cast<uint64_t>(pointer); };
  const uint64_t all[] = {
      channel.compatible(),
      channel.semaphoreId_,
      address(channel.semaphore_.inboundToken),
      address(channel.semaphore_.expectedInboundToken),
      address(channel.semaphore_.status),
      address(channel.fifo_.triggers),
      address(channel.fifo_.head),
      address(channel.fifo_.tail),
      address(channel.fifo_.tailCache),
      static_cast<uint64_t>(channel.fifo_.size),
      channel.fifo_.sizeMask,
      channel.fifo_.sizeShift,
      address(channel.fifo_.status),
      address(channel.flushDonePos_),
      channel.dst_,
      channel.src_,
  };
  for (const uint64_t field : all) *args.fields++ = field;
  // The constructors of the headers make the same handle, and the same header of it.
  const PortChannelDeviceHandle made(channel.semaphoreId_, channel.semaphore_, channel.fifo_, channel.dst_,
                                     channel.src_, channel.flushDonePos_);
  const BasePortChannelDeviceHandle base(channel.semaphoreId_, channel.semaphore_, channel.fifo_,
                                         channel.flushDonePos_);
  *args.fields++ = made.compatible() && base.compatible() && !channel.BasePortChannelDeviceHandle::compatible();
}

// Payload, fence if asked, doorbell.
struct DoorbellArgs {
  uint64_t* payload;
  uint64_t* doorbell;
  uint64_t fence;
};

MSCCLPP_KERNEL(doorbell, DoorbellArgs) {
  memory::store<scopeSystem>(args.payload, uint64_t{7}, memoryOrderRelaxed);
  if (args.fence) __threadfence_system();
  memory::storeMmio(args.doorbell, 9);
}
