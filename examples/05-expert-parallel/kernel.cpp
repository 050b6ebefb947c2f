// SPDX-License-Identifier: MIT
#include <mscclpp/kernel.hpp>
#include <mscclpp/port_channel.hpp>

// Words of a token.
constexpr uint64_t Width = 32;
constexpr uint64_t RowBytes = Width * sizeof(uint64_t);

// A token of some rank, and the place of its result there.
struct Route {
  uint32_t token, result;
};

// What one thread does: with expert `here` of this rank for one other rank, and with the expert of the
// same index there for this rank. For the own rank there is no channel.
struct Lane {
  // Between the whole memories of both ranks.
  mscclpp::DeviceHandle<mscclpp::PortChannel> channel;
  // Of this rank's tokens to the expert there, and of its tokens to the expert here.
  const Route *outgoing, *incoming;
  uint32_t outgoingCount, incomingCount;
  // Number of the expert here among all.
  uint32_t expert;
  uint32_t isOwn;
  // Where the tokens that come in are here, and where those that go out are there: rows.
  uint64_t inboxHere, inboxThere;
};

// The memory of each rank, in rows: its tokens, then results for them, then inboxes. Only the first two
// have a fixed place.
struct Args {
  Lane* lanes;
  uint64_t* memory;
  // Of each token and choice, a factor; and what comes out, of each token.
  const uint64_t* weights;
  uint64_t* combined;
  // Of each thread: how the first call that failed did; 0 if none did.
  uint64_t* statuses;
  uint32_t tokens, choices;
};

namespace {

// An expert, which is at the same time simple and unlike all others.
MSCCLPP_DEVICE_INLINE void apply(uint32_t expert, const uint64_t* in, uint64_t* out) {
  for (uint64_t word = 0; word < Width; ++word) out[word] = in[word] * (2 * expert + 3) + expert;
}

MSCCLPP_DEVICE_INLINE mscclpp::Status exchange(const Lane& lane, const Args& args) {
  using mscclpp::Status;
  auto channel = lane.channel;
  const uint64_t results = args.tokens;
  Status status = Status::Ok;
  // Dispatch: all rows, then one signal for them.
  for (uint32_t i = 0; i < lane.outgoingCount && status == Status::Ok; ++i) {
    status = channel.put((lane.inboxThere + i) * RowBytes, lane.outgoing[i].token * RowBytes, RowBytes);
  }
  if (status == Status::Ok) status = channel.signal();
  if (status == Status::Ok) status = channel.wait();
  if (status != Status::Ok) return status;
  // The expert, in place. Combine: results go where their tokens came from.
  for (uint32_t i = 0; i < lane.incomingCount && status == Status::Ok; ++i) {
    uint64_t* row = args.memory + (lane.inboxHere + i) * Width;
    apply(lane.expert, row, row);
    status = channel.put((results + lane.incoming[i].result) * RowBytes, (lane.inboxHere + i) * RowBytes, RowBytes);
  }
  if (status == Status::Ok) status = channel.signal();
  if (status == Status::Ok) status = channel.wait();
  return status == Status::Ok ? channel.flush() : status;
}

}  // namespace

// One block, a thread a lane.
MSCCLPP_KERNEL(dispatch_and_combine, Args) {
  using mscclpp::Status;
  const Lane& lane = args.lanes[threadIdx.x];
  uint64_t* results = args.memory + args.tokens * Width;
  Status status = Status::Ok;
  if (lane.isOwn) {
    for (uint32_t i = 0; i < lane.incomingCount; ++i) {
      const Route& route = lane.incoming[i];
      apply(lane.expert, args.memory + route.token * Width, results + route.result * Width);
    }
  } else {
    status = exchange(lane, args);
  }
  args.statuses[threadIdx.x] = static_cast<uint64_t>(status);
  // The results of all lanes are there: each token gets the weighted sum of its own.
  __syncthreads();
  for (uint32_t token = threadIdx.x; token < args.tokens; token += blockDim.x) {
    for (uint64_t word = 0; word < Width; ++word) {
      uint64_t sum = 0;
      for (uint32_t choice = 0; choice < args.choices; ++choice) {
        const uint64_t result = token * args.choices + choice;
        sum += args.weights[result] * results[result * Width + word];
      }
      args.combined[token * Width + word] = sum;
    }
  }
}
