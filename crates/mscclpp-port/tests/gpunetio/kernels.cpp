// SPDX-License-Identifier: MIT
// Kernels of the tests of GPU-initiated channels.
#include <mscclpp/kernel.hpp>
#include <mscclpp/port_channel_device.hpp>

using mscclpp::Status;

enum Call : uint64_t {
  CallPut,
  CallSignal,
  CallPutWithSignal,
  CallPutWithSignalAndFlush,
  CallFlush,
  CallWait,
  CallAccumulate,
  CallGet,
  CallPutForever,
  CallWaitBounded,
  CallFlushLooks,
  CallWaitLooks,
};

struct CallArgs {
  mscclpp::PortChannelDeviceHandle channel;
  uint64_t call;
  uint64_t count;
  uint64_t dstOffset;
  uint64_t srcOffset;
  uint64_t size;
  // A word for each thread; all ones until its calls have returned.
  uint64_t* status;
};

// Each thread makes the call until it has made it `count` times or it fails.
MSCCLPP_KERNEL(queue_call, CallArgs) {
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  Status status = Status::Ok;
  for (uint64_t i = 0; status == Status::Ok && i < args.count; ++i) {
    switch (args.call) {
      case CallPut: status = channel.put(args.dstOffset, args.srcOffset, args.size); break;
      case CallSignal: status = channel.signal(); break;
      case CallPutWithSignal: status = channel.putWithSignal(args.dstOffset, args.srcOffset, args.size); break;
      case CallPutWithSignalAndFlush:
        status = channel.putWithSignalAndFlush(args.dstOffset, args.srcOffset, args.size);
        break;
      case CallFlush: status = channel.flush(); break;
      case CallWait: status = channel.wait(); break;
      case CallAccumulate: status = channel.accumulate(args.dstOffset, static_cast<int64_t>(args.size)); break;
      case CallGet: status = channel.get(args.dstOffset, args.srcOffset, args.size); break;
      case CallPutForever:
        status = channel.put(args.dstOffset, args.srcOffset, args.size);
        if (status == Status::Ok && i % 16 == 15) status = channel.flush();
        break;
      case CallWaitBounded: status = channel.wait(1000); break;
      case CallFlushLooks:
        do status = channel.flush(0);
        while (status == Status::Timeout && ++i < args.count);
        break;
      case CallWaitLooks:
        do status = channel.wait(2);
        while (status == Status::Timeout && ++i < args.count);
        break;
    }
  }
  args.status[blockIdx.x * blockDim.x + threadIdx.x] = static_cast<uint64_t>(status);
}

struct ByIdArgs {
  mscclpp::BasePortChannelDeviceHandle channel;
  uint64_t dst;
  uint64_t src;
  uint64_t size;
  uint64_t* status;
};

// Puts by memory id and flushes; one word for each call.
MSCCLPP_KERNEL(queue_put_by_id, ByIdArgs) {
  mscclpp::BasePortChannelDeviceHandle channel = args.channel;
  const auto dst = static_cast<mscclpp::MemoryId>(args.dst);
  const auto src = static_cast<mscclpp::MemoryId>(args.src);
  args.status[0] = static_cast<uint64_t>(channel.put(dst, 0, src, 0, args.size));
  args.status[1] = static_cast<uint64_t>(channel.flush());
}

struct PingPongArgs {
  mscclpp::PortChannelDeviceHandle channel;
  uint64_t* words;
  uint64_t count;
  uint64_t iterations;
  uint64_t rank;
  uint64_t* status;
};

// Rank 0 writes numbers and signals; rank 1 checks them and answers with others.
MSCCLPP_KERNEL(queue_ping_pong, PingPongArgs) {
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  Status status = Status::Ok;
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < args.iterations && status == Status::Ok; ++i) {
    for (uint64_t turn = 0; turn < 2 && status == Status::Ok; ++turn) {
      const uint64_t base = i * 1000 + turn * 1000000007;
      if (turn == args.rank) {
        for (uint64_t j = 0; j < args.count; ++j) {
          mscclpp::memory::store<mscclpp::scopeSystem>(args.words + j, base + j, mscclpp::memoryOrderRelaxed);
        }
        status = channel.putWithSignal(0, args.count * 8);
        if (status == Status::Ok) status = channel.flush();
      } else {
        status = channel.wait();
        for (uint64_t j = 0; j < args.count && status == Status::Ok; ++j) {
          wrong += mscclpp::memory::load<mscclpp::scopeSystem>(args.words + j, mscclpp::memoryOrderRelaxed) != base + j;
        }
      }
    }
  }
  args.status[0] = wrong == 0 ? static_cast<uint64_t>(status) : 1000 + wrong;
}
