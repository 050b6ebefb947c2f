// SPDX-License-Identifier: MIT
#include <mscclpp/concurrency_device.hpp>
#include <mscclpp/kernel.hpp>

using namespace mscclpp;

// In each round each thread stores the round in its slot, and behind the grid's barrier looks at
// the slots of all; `wrong` counts what it finds wrong.
struct SyncArgs {
  DeviceSyncer* syncer;
  uint64_t* slots;
  uint64_t rounds;
  int64_t budget;
  uint64_t blocks;   // to wait for
  uint64_t* wrong;   // by thread of the grid
  uint64_t* status;  // by thread of the grid
};

MSCCLPP_KERNEL(grid_sync, SyncArgs) {
  const uint64_t id = blockIdx.x * blockDim.x + threadIdx.x;
  const uint64_t all = gridDim.x * blockDim.x;
  const int blocks = static_cast<int>(args.blocks);
  Status status = Status::Ok;
  for (uint64_t round = 1; round <= args.rounds && status == Status::Ok; ++round) {
    memory::store<scopeDevice>(&args.slots[id], round, memoryOrderRelaxed);
    status = args.syncer->sync(blocks, args.budget);
    if (status != Status::Ok) break;
    for (uint64_t i = 0; i < all; ++i) {
      args.wrong[id] += memory::load<scopeDevice>(&args.slots[i], memoryOrderRelaxed) != round;
    }
    status = args.syncer->sync(blocks, args.budget);
  }
  args.status[id] = static_cast<uint64_t>(status);
}

// Each thread enters `rounds` times; `most` is how many were in at once.
struct HoldArgs {
  DeviceSemaphore* semaphore;
  uint64_t rounds;
  uint64_t budget;
  uint64_t* inside;
  uint64_t* tooMany;  // by thread
  uint64_t permits;
  uint64_t* status;  // by thread
};

MSCCLPP_KERNEL(grid_hold, HoldArgs) {
  if (threadIdx.x == 0) args.semaphore->set(static_cast<int>(args.permits));
  __syncthreads();
  Status status = Status::Ok;
  for (uint64_t i = 0; i < args.rounds; ++i) {
    status = args.semaphore->acquire(static_cast<int>(args.budget));
    if (status != Status::Ok) break;
    const uint64_t before = atomicFetchAdd<uint64_t, scopeDevice>(args.inside, 1, memoryOrderRelaxed);
    args.tooMany[threadIdx.x] += before >= args.permits;
    atomicFetchAdd<uint64_t, scopeDevice>(args.inside, ~0ull, memoryOrderRelaxed);
    args.semaphore->release();
  }
  args.status[threadIdx.x] = static_cast<uint64_t>(status);
}

// For the executor: where each thread is, barriers that some threads never reach.
struct PlaceArgs {
  uint64_t* places;
};

MSCCLPP_KERNEL(place, PlaceArgs) {
  if (threadIdx.x % 2 == 1) __syncthreads();  // the even ones return
  const uint64_t id = blockIdx.x * blockDim.x + threadIdx.x;
  args.places[id] = blockIdx.x * 1000000 + threadIdx.x * 10000 + gridDim.x * 100 + blockDim.x;
}
