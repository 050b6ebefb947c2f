// SPDX-License-Identifier: MIT
#include <mscclpp/concurrency_device.hpp>
#include <mscclpp/kernel.hpp>
#include <mscclpp/port_channel.hpp>

#include "data.hpp"

using namespace mscclpp;

// A call, as data: twin of `Op` in support/script.rs.
struct Op {
  uint32_t kind;
  uint32_t form;  // 0 by ids, 1 bound with two offsets, 2 bound with one, 3 by ids with one
  uint32_t dst, src;
  uint64_t dstOffset, srcOffset, size;
  int64_t value;  // budget, operand, or what is stored
};

static uint64_t call(PortChannelDeviceHandle& bound, const Op& op) {
  BasePortChannelDeviceHandle& base = bound;
  const auto number = [](Status status) { return static_cast<uint64_t>(status); };
  uint64_t* word = reinterpret_cast<uint64_t*>(op.dstOffset);
  switch (op.kind) {
    case 1:
      switch (op.form) {
        case 1: return number(bound.put(op.dstOffset, op.srcOffset, op.size));
        case 2: return number(bound.put(op.dstOffset, op.size));
        case 3: return number(base.put(op.dst, op.src, op.dstOffset, op.size));
        default: return number(base.put(op.dst, op.dstOffset, op.src, op.srcOffset, op.size));
      }
    case 2: return number(bound.signal());
    case 3:
      switch (op.form) {
        case 1: return number(bound.putWithSignal(op.dstOffset, op.srcOffset, op.size));
        case 2: return number(bound.putWithSignal(op.dstOffset, op.size));
        case 3: return number(base.putWithSignal(op.dst, op.src, op.dstOffset, op.size));
        default: return number(base.putWithSignal(op.dst, op.dstOffset, op.src, op.srcOffset, op.size));
      }
    case 4:
      switch (op.form) {
        case 1: return number(bound.putWithSignalAndFlush(op.dstOffset, op.srcOffset, op.size, op.value));
        case 2: return number(bound.putWithSignalAndFlush(op.dstOffset, op.size));
        case 3: return number(base.putWithSignalAndFlush(op.dst, op.src, op.dstOffset, op.size, op.value));
        default:
          return number(base.putWithSignalAndFlush(op.dst, op.dstOffset, op.src, op.srcOffset, op.size, op.value));
      }
    case 5: return number(bound.flush(op.value));
    case 6: return bound.poll();
    case 7: return number(bound.wait(op.value));
    case 8:
      return number(op.form == 1 ? bound.accumulate(op.dstOffset, op.value)
                                 : base.accumulate(op.dst, op.dstOffset, op.value));
    case 9:
      switch (op.form) {
        case 1: return number(bound.get(op.dstOffset, op.srcOffset, op.size));
        case 2: return number(bound.get(op.dstOffset, op.size));
        default: return number(base.get(op.dst, op.dstOffset, op.src, op.srcOffset, op.size));
      }
    case 10: storeData(word, static_cast<uint64_t>(op.value)); return 0;
    case 11: return memory::load<scopeDevice>(word, memoryOrderRelaxed);
    case 12: return bound.compatible();
    case 13: return number(reinterpret_cast<DeviceSyncer*>(word)->sync(static_cast<int>(gridDim.x), op.value));
    case 14: return number(bound.queue_.queue.sync(op.dstOffset, op.value, {nullptr, nullptr}));
    case 15: memory::fence<scopeDevice>(memoryOrderRelease); return 0;
    case 16:
      memory::store<scopeDevice>(reinterpret_cast<uint32_t*>(word), static_cast<uint32_t>(op.value), memoryOrderRelaxed);
      return 0;
    case 17: {
      const uint32_t* half = reinterpret_cast<const uint32_t*>(word);
      const auto there = [&] { return memory::load<scopeDevice>(half, memoryOrderRelaxed) == op.size; };
      return number(detail::waitUntil(there, nullptr, nullptr, op.value));
    }
    default: return 0;
  }
}

// Each thread makes `count` calls of its own, in order, and keeps what each returned.
struct ScriptArgs {
  PortChannelDeviceHandle channel;
  const Op* ops;
  uint64_t count;
  uint64_t* results;
};

MSCCLPP_KERNEL(queue_script, ScriptArgs) {
  const uint64_t first = (blockIdx.x * blockDim.x + threadIdx.x) * args.count;
  for (uint64_t i = first; i < first + args.count; ++i) args.results[i] = call(args.channel, args.ops[i]);
}

// Each thread posts `rounds` times; twin of `Stream`.
struct StreamArgs {
  PortChannelDeviceHandle channel;
  uint64_t kind;    // as in Op
  uint64_t rounds;
  uint64_t bytes;   // of each put
  uint64_t source;  // address of the source memory, or 0: nothing is stored there
  uint64_t slots;   // a poster's pieces of the memory, `bytes` each, taken in turn
  uint64_t flushEvery;
  uint64_t together;  // 1: all threads of a block store a piece, and the first posts it
  uint64_t* done;     // by thread: rounds that returned Ok
  uint64_t* status;   // by thread: the last
};

// What a word of the piece of a round holds: never 0, never all ones.
static uint64_t payload(uint64_t piece, uint64_t round) { return (piece << 32) + round + 1; }

MSCCLPP_KERNEL(queue_stream, StreamArgs) {
  const uint64_t id = args.together ? blockIdx.x : blockIdx.x * blockDim.x + threadIdx.x;
  const bool posts = args.together == 0 || threadIdx.x == 0;
  uint64_t done = 0;
  Status status = Status::Ok;
  for (uint64_t round = 0; round < args.rounds && status == Status::Ok; ++round) {
    const uint64_t piece = id * args.slots + round % args.slots;
    const uint64_t offset = piece * args.bytes;
    if (args.source != 0) {
      uint64_t* words = reinterpret_cast<uint64_t*>(args.source + offset);
      const uint64_t first = args.together ? threadIdx.x : 0;
      const uint64_t step = args.together ? blockDim.x : 1;
      for (uint64_t i = first; i < args.bytes / 8; i += step) {
        storeData(words + i, payload(piece, round));
      }
    }
    if (args.together) __syncthreads();
    if (posts) {
      switch (args.kind) {
        case 1: status = args.channel.put(offset, args.bytes); break;
        case 2: status = args.channel.signal(); break;
        case 3: status = args.channel.putWithSignal(offset, args.bytes); break;
        case 4: status = args.channel.putWithSignalAndFlush(offset, args.bytes); break;
        default: status = args.channel.accumulate(0, 1);
      }
      done += status == Status::Ok;
      const bool last = (round + 1) % args.flushEvery == 0 || round + 1 == args.rounds;
      if (status == Status::Ok && last) status = args.channel.flush();
    }
    if (args.together && __syncthreads_or(status != Status::Ok) && status == Status::Ok) status = Status::Aborted;
  }
  if (!posts) return;
  args.done[id] = done;
  args.status[id] = static_cast<uint64_t>(status);
}

// One thread: signal n announces piece n of a stream of one poster. Counts words that are not as
// they were stored.
struct ReceiveArgs {
  PortChannelDeviceHandle channel;
  uint64_t rounds;
  uint64_t bytes;
  uint64_t target;
  uint64_t* wrong;
  uint64_t* status;
};

MSCCLPP_KERNEL(queue_receive, ReceiveArgs) {
  Status status = Status::Ok;
  uint64_t wrong = 0;
  for (uint64_t round = 0; round < args.rounds && status == Status::Ok; ++round) {
    status = args.channel.wait();
    const uint64_t* words = reinterpret_cast<const uint64_t*>(args.target + round * args.bytes);
    for (uint64_t i = 0; i < args.bytes / 8; ++i) {
      wrong += loadData(words + i) != payload(round, round);
    }
  }
  *args.wrong = wrong;
  *args.status = static_cast<uint64_t>(status);
}
