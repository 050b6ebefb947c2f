// SPDX-License-Identifier: MIT
// How a blocking call ended, the sticky word that tells it, and the header of each handle.
#ifndef MSCCLPP_STATUS_HPP_
#define MSCCLPP_STATUS_HPP_

#include <mscclpp/device.hpp>

namespace mscclpp {

/// Version of all layouts that host and device share; twin of `abi::VERSION`.
constexpr uint32_t abiVersion = 3;

inline namespace MSCCLPP_MODE {

/// What a device call returns. Only these numbers are shared with the host.
enum class Status : uint32_t {
  Ok = 0,
  Timeout = 1,          ///< the caller's spin budget was used up; the call may be repeated
  QueueError = 2,       ///< the connection, its queue or the proxy failed; sticky
  PeerDown = 3,         ///< the peer process is dead; sticky
  Aborted = 4,          ///< the host stopped the service or ended the wait; sticky
  InvalidArgument = 5,  ///< an id, offset or size is outside of what the channel can name; nothing was posted
  Unsupported = 6,      ///< the backend or the signal mode has no such operation; nothing was posted
};

/// Sticky error of a connection or a FIFO, in host memory: zero, then written once by the host
/// as one 64-bit word.
struct alignas(8) StatusWord {
  uint32_t code;
  uint32_t detail;
};

/// First 8 bytes of each handle.
struct AbiHeader {
  uint32_t version;
  uint32_t size;

  template <typename Handle>
  static MSCCLPP_HOST_DEVICE_INLINE AbiHeader of() {
    return {abiVersion, static_cast<uint32_t>(sizeof(Handle))};
  }

  template <typename Handle>
  MSCCLPP_HOST_DEVICE_INLINE bool is() const {
    return version == abiVersion && size == sizeof(Handle);
  }
};

static_assert(sizeof(StatusWord) == 8 && alignof(StatusWord) == 8, "one 64-bit word");
static_assert(sizeof(AbiHeader) == 8, "one 64-bit word");

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_STATUS_HPP_
