// SPDX-License-Identifier: MIT
// The memory layer: every access to memory that another thread, the host or a NIC shares.
//
// Each function is one PTX instruction on CUDA, one __atomic builtin in direct mode, and one
// call of the executor's memory model in modelled mode. T has 4 or 8 bytes.
#ifndef MSCCLPP_MEMORY_DEVICE_HPP_
#define MSCCLPP_MEMORY_DEVICE_HPP_

#include <mscclpp/device.hpp>

namespace mscclpp {
inline namespace MSCCLPP_MODE {

/// Numbers as the host compilers' __ATOMIC_ constants.
enum MemoryOrder : int {
  memoryOrderRelaxed = 0,
  memoryOrderAcquire = 2,
  memoryOrderRelease = 3,
  memoryOrderAcqRel = 4,
  memoryOrderSeqCst = 5,
};

/// Who has to see it: the block, the GPU, or everybody (host, NIC, other GPUs).
enum MemoryScope : int {
  scopeBlock = 0,
  scopeDevice = 1,
  scopeSystem = 2,
};

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#if defined(MSCCLPP_DEVICE_CUDA)
#include <mscclpp/memory_cuda.hpp>
#else
#include <mscclpp/memory_host.hpp>
#endif

#endif  // MSCCLPP_MEMORY_DEVICE_HPP_
