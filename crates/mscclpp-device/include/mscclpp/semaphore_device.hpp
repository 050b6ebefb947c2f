// SPDX-License-Identifier: MIT
// The semaphore that a peer raises and device threads consume.
#ifndef MSCCLPP_SEMAPHORE_DEVICE_HPP_
#define MSCCLPP_SEMAPHORE_DEVICE_HPP_

#include <mscclpp/atomic_device.hpp>
#include <mscclpp/status.hpp>
#include <mscclpp/trace_device.hpp>
#include <mscclpp/wait_device.hpp>

namespace mscclpp {
inline namespace MSCCLPP_MODE {

/// Device side of a Host2DeviceSemaphore; twin of `abi::Host2DeviceSemaphoreDeviceHandle`.
///
/// Two counts that only grow: signals received and signals consumed. Any number of threads may
/// poll and wait: each success consumes exactly one signal, and a failure consumes none. A success
/// acquires at system scope what the signal's sender released.
struct Host2DeviceSemaphoreDeviceHandle {
  /// Consumes a signal if one is there.
  MSCCLPP_DEVICE_INLINE bool poll() {
    for (;;) {
      const uint64_t expected = loadExpectedInbound();
      if (loadInbound() <= expected) return false;
      if (memory::compareExchange<scopeDevice>(expectedInboundToken, expected, expected + 1, memoryOrderRelaxed) ==
          expected) {
        MSCCLPP_TRACE_POINT(Took, MSCCLPP_TRACE_OBJECT(inboundToken), expected + 1)
        return true;
      }
      // Another thread took that signal; there may be more.
    }
  }

  /// Waits for a signal and consumes it.
  /// @param maxSpinCount failed looks after which it returns Timeout; negative is for ever.
  /// @return Ok, Timeout, or the connection's sticky error if no signal is there.
  MSCCLPP_DEVICE_INLINE Status wait(int64_t maxSpinCount = -1) {
    return detail::waitUntil([&] { return poll(); }, status, nullptr, maxSpinCount);
  }

  /// Signals consumed.
  MSCCLPP_DEVICE_INLINE uint64_t loadExpectedInbound() {
    return atomicLoad<uint64_t, scopeDevice>(expectedInboundToken, memoryOrderRelaxed);
  }

  /// Signals received.
  MSCCLPP_DEVICE_INLINE uint64_t loadInbound() {
    return atomicLoad<uint64_t, scopeSystem>(inboundToken, memoryOrderAcquire);
  }

  /// Whether host and device were built with the same layout.
  MSCCLPP_HOST_DEVICE_INLINE bool compatible() const { return abi.is<Host2DeviceSemaphoreDeviceHandle>(); }

  AbiHeader abi;
  /// Written by the peer.
  uint64_t* inboundToken;
  /// Device memory.
  uint64_t* expectedInboundToken;
  /// The connection's, or null.
  const StatusWord* status;
};

static_assert(sizeof(Host2DeviceSemaphoreDeviceHandle) == 32, "the mirror in Rust has this layout");

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_SEMAPHORE_DEVICE_HPP_
