// SPDX-License-Identifier: MIT
// Two ranks add up their vectors: each sends its own to the other, in parts, and adds what comes.

#include <cstdio>
#include <vector>

#include <mscclpp/kernel.hpp>

#include "peer.h"

namespace {

constexpr uint64_t Elements = 1024;
constexpr uint32_t Threads = 4;

struct Work {
  mscclpp::DeviceHandle<mscclpp::PortChannel> channel;
  // Its first half is sent, to the second half at the peer.
  double* memory;
  double* sum;
  mscclpp::Status status;
};

struct AddUpArgs {
  Work* work;
};

double element(uint32_t rank, uint64_t index) { return (rank + 1) * 1000.0 + index; }

}  // namespace

// One block. A single thread sends and waits; all of them add.
MSCCLPP_KERNEL(add_up, AddUpArgs) {
  using mscclpp::Status;
  Work& work = *args.work;
  if (threadIdx.x == 0) {
    const uint64_t bytes = Elements * sizeof(double);
    work.status = work.channel.putWithSignal(bytes, 0, bytes);
    if (work.status == Status::Ok) work.status = work.channel.wait();
    if (work.status == Status::Ok) work.status = work.channel.flush();
  }
  __syncthreads();
  for (uint64_t i = threadIdx.x; i < Elements; i += blockDim.x) {
    work.sum[i] = work.memory[i] + work.memory[Elements + i];
  }
}

int main(int argc, char**) {
  if (argc > 1) {
    std::puts("Two ranks add up their vectors. Takes no options; start 2 ranks.");
    return 0;
  }
  Peer* peer = peer_open(2 * Elements * sizeof(double));
  if (peer == nullptr) return 1;
  const uint32_t rank = peer_rank(peer);
  std::vector<double> sum(Elements);
  Work work{{}, static_cast<double*>(peer_memory(peer)), sum.data(), mscclpp::Status::Ok};
  peer_channel(peer, &work.channel);
  for (uint64_t i = 0; i < Elements; ++i) work.memory[i] = element(rank, i);

  if (peer_run(peer, add_up, &work, Threads) != 0) return 1;
  if (work.status != mscclpp::Status::Ok) {
    std::fprintf(stderr, "a call of the kernel ended with status %u\n", static_cast<unsigned>(work.status));
    return 1;
  }
  for (uint64_t i = 0; i < Elements; ++i) {
    if (sum[i] != element(0, i) + element(1, i)) {
      std::fprintf(stderr, "element %lu is %g\n", static_cast<unsigned long>(i), sum[i]);
      return 1;
    }
  }
  std::printf("added up %lu elements\n", static_cast<unsigned long>(Elements));
  return peer_close(peer);
}
