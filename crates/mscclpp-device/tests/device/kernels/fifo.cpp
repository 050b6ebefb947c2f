// SPDX-License-Identifier: MIT
#include <mscclpp/fifo_device.hpp>
#include <mscclpp/kernel.hpp>

#include "data.hpp"

using namespace mscclpp;

// Each thread pushes `count` triggers. Thread t's i-th has fst = t * count + i + first and
// snd = fst, or its complement, less the commit bit. Before each push the thread stores that value
// in its word of `payload` (if there is one), as a kernel does with the data that a put is to move.
struct PushArgs {
  FifoDeviceHandle fifo;
  uint64_t count;
  uint64_t first;
  uint64_t complement;
  uint64_t syncEvery;
  int64_t budget;
  uint64_t* payload;
  uint64_t* pushed;  // by thread
  uint64_t* status;  // by thread, of the last post
};

MSCCLPP_KERNEL(fifo_push, PushArgs) {
  const uint64_t id = blockIdx.x * blockDim.x + threadIdx.x;
  uint64_t pushed = 0;
  Status status = Status::Ok;
  for (uint64_t i = 0; i < args.count && status == Status::Ok; ++i) {
    const uint64_t value = id * args.count + i + args.first;
    if (args.payload != nullptr) {
      storeData(&args.payload[id * args.count + i], value);
    }
    ProxyTrigger trigger;
    trigger.fst = value;
    trigger.snd = (args.complement ? ~value : value) & (~0ull >> 1);
    uint64_t position;
    status = args.fifo.post(trigger, position, args.budget);
    if (status != Status::Ok) break;
    ++pushed;
    if (args.syncEvery != 0 && pushed % args.syncEvery == 0) status = args.fifo.sync(position, args.budget);
  }
  args.pushed[id] = pushed;
  args.status[id] = static_cast<uint64_t>(status);
}

// One push() and what it returns.
struct PositionArgs {
  FifoDeviceHandle fifo;
  int64_t budget;
  uint64_t* position;
  uint64_t* executed;
};

MSCCLPP_KERNEL(fifo_position, PositionArgs) {
  ProxyTrigger trigger;
  trigger.fst = 0;
  trigger.snd = 0;
  *args.position = args.fifo.push(trigger, args.budget);
  *args.executed = args.fifo.poll(*args.position);
}

// Encodes `count` triggers. Each input is seven words: type, dstId, dstOffset, srcId, srcOffset,
// bytes, semaphoreId.
struct EncodeArgs {
  const uint64_t* inputs;
  uint64_t count;
  uint64_t* words;
  uint64_t* fields;
};

MSCCLPP_KERNEL(trigger_encode, EncodeArgs) {
  for (uint64_t i = 0; i < args.count; ++i) {
    const uint64_t* in = args.inputs + 7 * i;
    const ProxyTrigger trigger(in[0], static_cast<uint32_t>(in[1]), in[2], static_cast<uint32_t>(in[3]), in[4],
                               in[5], static_cast<uint32_t>(in[6]));
    args.words[2 * i] = trigger.fst;
    args.words[2 * i + 1] = trigger.snd;
    uint64_t* out = args.fields + 7 * i;
    out[0] = trigger.fields.type;
    out[1] = trigger.fields.dstMemoryId;
    out[2] = trigger.fields.dstOffset;
    out[3] = trigger.fields.srcMemoryId;
    out[4] = trigger.fields.srcOffset;
    out[5] = trigger.fields.size;
    out[6] = trigger.fields.semaphoreId;
  }
}
