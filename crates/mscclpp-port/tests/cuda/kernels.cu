// SPDX-License-Identifier: MIT
// Kernels of the tests that need GPUs.
#include <mscclpp/kernel.hpp>
#include <mscclpp/memory_device.hpp>
#include <mscclpp/port_channel_device.hpp>

struct PingPongArgs {
  mscclpp::PortChannelDeviceHandle channel;
  // What is sent, and behind it as much that is received.
  volatile unsigned long long* buffer;
  unsigned long long words;
  unsigned long long iterations;
  unsigned long long rank;
  // Whether to flush behind each put.
  unsigned long long flush;
  // Sticky or first bad status, words that were not the round's, nanoseconds.
  unsigned long long* report;
};

// Rank 0 puts a round's number, rank 1 answers with it, one block each.
MSCCLPP_KERNEL(ping_pong, PingPongArgs) {
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  const unsigned long long bytes = args.words * 8;
  const unsigned long long begun = mscclpp::memory::nowNs();
  for (unsigned long long round = 1; round <= 2 * args.iterations; ++round) {
    int bad = 0;
    if (round % 2 != args.rank) {
      for (unsigned long long i = threadIdx.x; i < args.words; i += blockDim.x) args.buffer[i] = round;
      __syncthreads();
      if (threadIdx.x == 0) {
        mscclpp::Status status = args.flush ? channel.putWithSignalAndFlush(bytes, 0, bytes)
                                            : channel.putWithSignal(bytes, 0, bytes);
        if (status != mscclpp::Status::Ok) {
          args.report[0] = static_cast<unsigned long long>(status);
          bad = 1;
        }
      }
    } else {
      if (threadIdx.x == 0) {
        mscclpp::Status status = channel.wait();
        if (status != mscclpp::Status::Ok) {
          args.report[0] = static_cast<unsigned long long>(status);
          bad = 1;
        }
      }
      bad = __syncthreads_or(bad);
      if (!bad) {
        for (unsigned long long i = threadIdx.x; i < args.words; i += blockDim.x) {
          if (args.buffer[args.words + i] != round) atomicAdd(args.report + 1, 1ull);
        }
      }
    }
    if (__syncthreads_or(bad)) return;
  }
  if (threadIdx.x == 0) args.report[2] = mscclpp::memory::nowNs() - begun;
}

struct StreamArgs {
  mscclpp::PortChannelDeviceHandle channel;
  unsigned long long offset;
  unsigned long long bytes;
  unsigned long long count;
  unsigned long long* report;
};

// Puts the same bytes again and again, then flushes.
MSCCLPP_KERNEL(put_stream, StreamArgs) {
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  const unsigned long long begun = mscclpp::memory::nowNs();
  mscclpp::Status status = mscclpp::Status::Ok;
  for (unsigned long long i = 0; i < args.count && status == mscclpp::Status::Ok; ++i) {
    status = channel.put(args.offset, 0, args.bytes);
  }
  if (status == mscclpp::Status::Ok) status = channel.flush();
  args.report[0] = static_cast<unsigned long long>(status);
  args.report[2] = mscclpp::memory::nowNs() - begun;
}

struct WaitArgs {
  mscclpp::PortChannelDeviceHandle channel;
  unsigned long long* report;
};

MSCCLPP_KERNEL(wait_once, WaitArgs) {
  mscclpp::PortChannelDeviceHandle channel = args.channel;
  args.report[0] = static_cast<unsigned long long>(channel.wait());
}

struct PushArgs {
  mscclpp::FifoDeviceHandle fifo;
  unsigned long long count;
  unsigned long long every;
  unsigned long long* report;
};

// Pushes triggers, and waits every now and then until they are executed.
MSCCLPP_KERNEL(push, PushArgs) {
  mscclpp::FifoDeviceHandle fifo = args.fifo;
  const unsigned long long begun = mscclpp::memory::nowNs();
  for (unsigned long long i = 1; i <= args.count; ++i) {
    mscclpp::ProxyTrigger trigger;
    trigger.fst = i;
    trigger.snd = i;
    const uint64_t position = fifo.push(trigger);
    if (i % args.every == 0 && fifo.sync(position) != mscclpp::Status::Ok) return;
  }
  args.report[0] = 0;
  args.report[2] = mscclpp::memory::nowNs() - begun;
}
