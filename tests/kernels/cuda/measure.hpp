// SPDX-License-Identifier: MIT
// How posts are measured, for every library's alike. CUDA only; includes nothing, so that it compiles
// beside any headers.
#ifndef CONFORMANCE_CUDA_MEASURE_HPP_
#define CONFORMANCE_CUDA_MEASURE_HPP_

namespace posting {

using Word = unsigned long long;

// How one thread posts; twin of `kernels::Plan` in Rust.
struct Plan {
  // Host memory: how many posts a CPU thread has seen.
  const Word* answer;
  // Cycles of each post; with phases, of each phase of each post.
  Word* times;
  // Cycles and nanoseconds of the whole, calls that failed or were not answered, a sink.
  Word* summary;
  Word posts;
  Word pauseNs;
  // Not zero: a load from host memory is under way during the call, as in a kernel that waits for a
  // signal there.
  unsigned loading;
  // Not zero: until a CPU thread has answered; else until the call returns.
  unsigned answered;
};

// How many threads post as fast as they can.
struct Rush {
  // Counts threads that are there, and then nothing.
  Word* arrived;
  // When each thread began and ended, in nanoseconds; calls that failed.
  Word* spans;
  Word posts;
  // Not zero: each block has a queue of its own; else all threads share the first.
  Word queuePerBlock;
};

__device__ __forceinline__ Word cycles() {
  Word now;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
  return now;
}

__device__ __forceinline__ Word nanoseconds() {
  Word now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}

__device__ __forceinline__ Word loadHost(const Word* at) {
  Word value;
  asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

// An answer that takes longer is none.
constexpr Word patienceNs = 100000000;

template <bool Loading, bool Answered, typename Post>
__device__ __forceinline__ void measure(const Plan& plan, Post post) {
  const Word firstCycle = cycles();
  const Word firstNs = nanoseconds();
  Word failed = 0;
  Word sink = 0;
  for (Word i = 0; i < plan.posts && failed == 0; ++i) {
    const Word until = nanoseconds() + plan.pauseNs;
    while (nanoseconds() < until) {
    }
    Word loaded = 0;
    // Its value is needed after the end of the time only.
    if (Loading) loaded = loadHost(plan.answer);
    const Word start = cycles();
    const bool ok = post(i);
    if (Answered) {
      const Word give = nanoseconds() + patienceNs;
      while (loadHost(plan.answer) <= i) {
        if (nanoseconds() > give) {
          ++failed;
          break;
        }
      }
    }
    plan.times[i] = cycles() - start;
    if (!ok) ++failed;
    sink += loaded;
  }
  plan.summary[0] = cycles() - firstCycle;
  plan.summary[1] = nanoseconds() - firstNs;
  plan.summary[2] = failed;
  plan.summary[3] = sink;
}

// Conditions are constants of the loop: a branch around the load would wait for it.
template <typename Post>
__device__ __forceinline__ void measure(const Plan& plan, Post post) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  if (plan.loading != 0) {
    plan.answered != 0 ? measure<true, true>(plan, post) : measure<true, false>(plan, post);
  } else {
    plan.answered != 0 ? measure<false, true>(plan, post) : measure<false, false>(plan, post);
  }
}

template <typename Post>
__device__ __forceinline__ void rush(const Rush& rush, Post post) {
  const Word threads = static_cast<Word>(gridDim.x) * blockDim.x;
  const Word self = static_cast<Word>(blockIdx.x) * blockDim.x + threadIdx.x;
  atomicAdd(rush.arrived, 1ull);
  while (*static_cast<volatile Word*>(rush.arrived) < threads) {
  }
  Word failed = 0;
  const Word start = nanoseconds();
  for (Word i = 0; i < rush.posts; ++i) {
    if (!post()) ++failed;
  }
  const Word end = nanoseconds();
  rush.spans[3 * self] = start;
  rush.spans[3 * self + 1] = end;
  rush.spans[3 * self + 2] = failed;
}

}  // namespace posting

#endif  // CONFORMANCE_CUDA_MEASURE_HPP_
