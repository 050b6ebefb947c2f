// SPDX-License-Identifier: MIT
// Kernels of this crate's own tests.
#include <time.h>

#include <mscclpp/kernel.hpp>
#include <mscclpp/port_channel_device.hpp>

struct PushArgs {
  mscclpp::FifoDeviceHandle fifo;
  uint64_t count;
  // How many were pushed, a word for each thread.
  uint64_t* pushed;
  // What ended the pushing, a word for each thread.
  uint64_t* status;
};

// Each thread pushes until it has pushed enough or the FIFO is dead.
MSCCLPP_KERNEL(port_push, PushArgs) {
  mscclpp::FifoDeviceHandle fifo = args.fifo;
  mscclpp::Status status = mscclpp::Status::Ok;
  uint64_t pushed = 0;
  while (pushed < args.count && status == mscclpp::Status::Ok) {
    mscclpp::ProxyTrigger trigger;
    trigger.fst = pushed;
    trigger.snd = pushed;
    uint64_t position;
    status = fifo.post(trigger, position);
    if (status == mscclpp::Status::Ok) ++pushed;
  }
  args.pushed[threadIdx.x] = pushed;
  args.status[threadIdx.x] = static_cast<uint64_t>(status);
}

static uint64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

struct SyncArgs {
  mscclpp::FifoDeviceHandle fifo;
  uint64_t count;
  // Sleep before each push.
  uint64_t pause;
  // Nanoseconds from each push until its trigger was executed.
  uint64_t* times;
};

MSCCLPP_KERNEL(port_push_and_sync, SyncArgs) {
  mscclpp::FifoDeviceHandle fifo = args.fifo;
  for (uint64_t i = 0; i < args.count; ++i) {
    timespec pause{0, static_cast<long>(args.pause)};
    if (args.pause != 0) nanosleep(&pause, nullptr);
    mscclpp::ProxyTrigger trigger;
    trigger.fst = i;
    trigger.snd = i;
    const uint64_t begin = nanoseconds();
    const uint64_t position = fifo.push(trigger);
    if (fifo.sync(position) != mscclpp::Status::Ok) return;
    args.times[i] = nanoseconds() - begin;
  }
}

// What a thread of port_call does.
enum Call : uint64_t {
  CallPutWithSignal,
  CallFlush,
  CallWait,
  CallPutForever,
  CallPutWithSignalAndFlush,
  CallAccumulate,
  CallPutUnknownMemory,
};

struct CallArgs {
  mscclpp::PortChannelDeviceHandle channel;
  uint64_t call;
  uint64_t offset;
  uint64_t size;
  // A word for each thread; all ones until the call has returned.
  uint64_t* status;
};

MSCCLPP_KERNEL(port_call, CallArgs) {
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  mscclpp::Status status = mscclpp::Status::Ok;
  switch (args.call) {
    case CallPutWithSignal: status = channel.putWithSignal(args.offset, args.size); break;
    case CallFlush: status = channel.flush(); break;
    case CallWait: status = channel.wait(); break;
    case CallPutForever:
      // A put asks for work and learns nothing of it; a flush tells how it went.
      for (uint64_t i = 1; status == mscclpp::Status::Ok; ++i) {
        status = channel.put(args.offset, args.size);
        if (status == mscclpp::Status::Ok && i % 16 == 0) status = channel.flush();
      }
      break;
    case CallPutWithSignalAndFlush: status = channel.putWithSignalAndFlush(args.offset, args.size); break;
    case CallAccumulate: status = channel.accumulate(args.offset, static_cast<int64_t>(args.size)); break;
    case CallPutUnknownMemory:
      status = channel.mscclpp::BasePortChannelDeviceHandle::put(511, 0, channel.src_, 0, args.size);
      break;
  }
  args.status[blockIdx.x * blockDim.x + threadIdx.x] = static_cast<uint64_t>(status);
}

struct PingPongArgs {
  mscclpp::PortChannelDeviceHandle channel;
  uint64_t bytes;
  uint64_t iterations;
  uint64_t rank;
  uint64_t flush;
  uint64_t* status;
  // Nanoseconds of each iteration.
  uint64_t* times;
};

MSCCLPP_KERNEL(port_ping_pong, PingPongArgs) {
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  mscclpp::Status status = mscclpp::Status::Ok;
  for (uint64_t i = 0; i < args.iterations && status == mscclpp::Status::Ok; ++i) {
    const uint64_t begin = nanoseconds();
    if (args.rank == 1) status = channel.wait();
    if (status == mscclpp::Status::Ok) status = channel.putWithSignal(0, args.bytes);
    if (status == mscclpp::Status::Ok && args.rank == 0) status = channel.wait();
    if (status == mscclpp::Status::Ok && args.flush != 0) status = channel.flush();
    args.times[i] = nanoseconds() - begin;
  }
  args.status[0] = static_cast<uint64_t>(status);
}
