// SPDX-License-Identifier: MIT
// MSCCLPP_KERNEL: one definition of a kernel for CUDA and for the CPU executor.
//
//   struct AddArgs { uint64_t* sums; };
//   MSCCLPP_KERNEL(add, AddArgs) { args.sums[threadIdx.x] += 1; }
//
// On CUDA it is `extern "C" __global__ void add(AddArgs args)`. On the host it is the entry
// `extern "C" void add(const void*)` that the executor calls, once a thread; where memory is
// modelled the entry is `add_modelled`, and `add_traced` where MSCCLPP_DEVICE_TRACE is defined, so that
// all link into one program.
//
// Functions of your own that several translation units compile in different modes should be
// static or in an unnamed namespace, as for any code compiled twice.
#ifndef MSCCLPP_KERNEL_HPP_
#define MSCCLPP_KERNEL_HPP_

#include <mscclpp/device.hpp>

#if defined(MSCCLPP_DEVICE_CUDA)

#define MSCCLPP_KERNEL(name, Args) extern "C" __global__ void name([[maybe_unused]] Args args)

#else

namespace mscclpp {
inline namespace MSCCLPP_MODE {
namespace detail {

template <typename Args>
inline void enter(const void* context, void (*body)(Args)) {
  const host::ThreadContext* thread = static_cast<const host::ThreadContext*>(context);
  if (thread->version != host::contextVersion) return;
  if (thread->args == nullptr) {
#if defined(MSCCLPP_MODELLED_MEMORY)
    constexpr uint32_t isModelled = 1;
#else
    constexpr uint32_t isModelled = 0;
#endif
    thread->hooks->describe(thread->self, sizeof(Args), isModelled);
    return;
  }
  host::current = thread;
  ::threadIdx = {thread->threadIdx, 0, 0};
  ::blockIdx = {thread->blockIdx, 0, 0};
  ::blockDim.x = thread->blockDim;
  ::gridDim.x = thread->gridDim;
  body(*static_cast<const Args*>(thread->args));
  host::current = nullptr;
}

}  // namespace detail
}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#if defined(MSCCLPP_MODELLED_MEMORY)
#define MSCCLPP_KERNEL_ENTRY(name) name##_modelled
#elif defined(MSCCLPP_DEVICE_TRACE)
#define MSCCLPP_KERNEL_ENTRY(name) name##_traced
#else
#define MSCCLPP_KERNEL_ENTRY(name) name
#endif

#define MSCCLPP_KERNEL(name, Args)                                        \
  static void name##_body(Args args);                                     \
  extern "C" void MSCCLPP_KERNEL_ENTRY(name)(const void* context);        \
  extern "C" void MSCCLPP_KERNEL_ENTRY(name)(const void* context) {       \
    static_assert(__is_trivially_copyable(Args), "arguments are copied"); \
    ::mscclpp::detail::enter<Args>(context, name##_body);                 \
  }                                                                       \
  static void name##_body([[maybe_unused]] Args args)

#endif

#endif  // MSCCLPP_KERNEL_HPP_
