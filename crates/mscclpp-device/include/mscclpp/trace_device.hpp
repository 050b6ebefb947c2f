// SPDX-License-Identifier: MIT
// What device code writes into a trace. Without MSCCLPP_DEVICE_TRACE the macros are nothing.
//
// With it, a kernel's calls leave records in the ring that the host has given to the launch (CPU
// threads) or to the module (GPUs); without a ring they leave none. On memory models there is no
// trace: its records are no part of what is modelled.
#ifndef MSCCLPP_TRACE_DEVICE_HPP_
#define MSCCLPP_TRACE_DEVICE_HPP_

#include <mscclpp/memory_device.hpp>

#if defined(MSCCLPP_DEVICE_TRACE) && !defined(MSCCLPP_MODELLED_MEMORY)

namespace mscclpp {
inline namespace MSCCLPP_MODE {
namespace trace {

/// What happened; twin of `trace::Kind`. The first eight are calls, with a begin and an end, and have
/// the numbers of triggers.
enum Kind : uint64_t {
  Refused = 0,
  Put = 1,
  Signal = 2,
  PutWithSignal = 3,
  Flush = 4,
  Get = 5,
  Accumulate = 6,
  PutWithSignalAndFlush = 7,
  Wait = 8,
  Pushed = 9,
  Reserved = 10,
  Rung = 11,
  Completed = 12,
  Took = 13,
  Flushed = 14,
};

enum Phase : uint64_t { Point = 0, Begin = 1, End = 2 };

/// Twin of `trace::RingHandle`. `words`: the count of records ever written, a word that is not used,
/// then `mask + 1` records of two words.
struct Ring {
  uint64_t* words;
  uint64_t mask;
};

#if defined(__CUDACC_RTC__)
/// The ring of this module's kernels, which the host sets.
extern "C" __device__ Ring mscclppTraceRing;
__device__ Ring mscclppTraceRing;
#elif defined(MSCCLPP_DEVICE_CUDA)
/// The ring of this translation unit's kernels: set it by cudaMemcpyToSymbol.
static __device__ Ring mscclppTraceRing;
#endif

MSCCLPP_DEVICE_INLINE Ring ring() {
#if defined(MSCCLPP_DEVICE_CUDA)
  return mscclppTraceRing;
#else
  const host::ThreadContext* thread = host::current;
  if (thread == nullptr || thread->trace == nullptr) return {nullptr, 0};
  return *static_cast<const Ring*>(thread->trace);
#endif
}

/// 16 bits that tell things in memory apart, mostly; as `trace::object_of`.
MSCCLPP_DEVICE_INLINE uint64_t objectOf(const void* address) {
  const uint64_t line = reinterpret_cast<uint64_t>(address) >> 3;
  return (line ^ (line >> 16) ^ (line >> 32)) & 0xffff;
}

/// Writes a record: the time, then from the top kind (8 bits), phase (2), the lap's bit, block (11),
/// thread (10), object (16), sequence (16). The lap's bit tells a record from what its slot held
/// before, as a trigger's does.
MSCCLPP_DEVICE_INLINE void record(uint64_t kind, Phase phase, uint64_t object, uint64_t sequence) {
  const Ring into = ring();
  if (into.words == nullptr) return;
  const uint64_t now = memory::nowNs();
  const uint64_t index = memory::fetchAdd<scopeDevice>(into.words, uint64_t{1}, memoryOrderRelaxed);
  const uint64_t lap = (index & (into.mask + 1)) == 0 ? 1 : 0;
  const uint64_t track = (uint64_t{blockIdx.x} & 0x7ff) << 10 | (threadIdx.x & 0x3ff);
  const uint64_t what = kind << 56 | phase << 54 | lap << 53 | track << 32 | (object & 0xffff) << 16 |
                        (sequence & 0xffff);
  uint64_t* const slot = into.words + 2 + 2 * (index & into.mask);
#if defined(MSCCLPP_DEVICE_CUDA)
  // One store of 16 bytes. Nobody reads before the kernel has ended.
  memory::storePair(slot, now, what);
#else
  memory::publishPair(slot, now, what);
#endif
}

/// A call, from its begin to its end.
class Span {
 public:
  MSCCLPP_DEVICE_INLINE Span(uint64_t kind, uint64_t object) : kind_(kind), object_(object) {
    record(kind_, Begin, object_, 0);
  }
  MSCCLPP_DEVICE_INLINE ~Span() { record(kind_, End, object_, 0); }

 private:
  uint64_t kind_, object_;
};

}  // namespace trace
}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#define MSCCLPP_TRACE_SPAN(kind, object) const trace::Span traceSpan(kind, object);
#define MSCCLPP_TRACE_POINT(kind, object, sequence) trace::record(trace::kind, trace::Point, object, sequence);
/// A call that returns a Status, as a span; and one that leaves a point behind if it returns Ok.
#define MSCCLPP_TRACED_SPAN(kind, object, ...)     \
  [&] {                                            \
    const trace::Span traceSpan(trace::kind, object); \
    return __VA_ARGS__;                            \
  }()
#define MSCCLPP_TRACED_OK(kind, object, sequence, ...)                                       \
  [&] {                                                                                      \
    const Status status = __VA_ARGS__;                                                       \
    if (status == Status::Ok) trace::record(trace::kind, trace::Point, object, sequence);    \
    return status;                                                                           \
  }()
#define MSCCLPP_TRACE_OBJECT(address) trace::objectOf(address)

#else

#define MSCCLPP_TRACE_SPAN(kind, object)
#define MSCCLPP_TRACE_POINT(kind, object, sequence)
#define MSCCLPP_TRACED_SPAN(kind, object, ...) __VA_ARGS__
#define MSCCLPP_TRACED_OK(kind, object, sequence, ...) __VA_ARGS__

#endif

#endif  // MSCCLPP_TRACE_DEVICE_HPP_
