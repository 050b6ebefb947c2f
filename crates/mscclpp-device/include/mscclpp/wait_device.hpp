// SPDX-License-Identifier: MIT
// The one loop in which device code waits.
#ifndef MSCCLPP_WAIT_DEVICE_HPP_
#define MSCCLPP_WAIT_DEVICE_HPP_

#include <mscclpp/memory_device.hpp>
#include <mscclpp/status.hpp>

namespace mscclpp {
inline namespace MSCCLPP_MODE {
namespace detail {

/// The status words lie in host memory: a look at them costs more than the thing waited for.
constexpr uint64_t statusIntervalNs = 10000;

/// The error in `word`, or Ok; Ok if there is no word.
MSCCLPP_DEVICE_INLINE Status stickyError(const StatusWord* word) {
  if (word == nullptr) return Status::Ok;
  const uint64_t bits = memory::load<scopeSystem>(reinterpret_cast<const uint64_t*>(word), memoryOrderAcquire);
  return static_cast<Status>(static_cast<uint32_t>(bits));
}

/// Calls `done` until it returns true. Ends by that, by an error that `failed` returns, or by
/// `maxSpinCount` failed looks; negative is no limit. `done` is called at least once, and once more
/// after an error was seen: what arrived wins. `failed` is called every statusIntervalNs at most, and
/// before Timeout if it was not called yet.
template <typename Done, typename Failed>
MSCCLPP_DEVICE_INLINE Status waitUntil(Done done, Failed failed, int64_t maxSpinCount) {
  memory::Relax relax;
  uint64_t nextLook = 0;
  bool looked = false;
  for (int64_t looks = 0;; ++looks) {
    if (done()) return Status::Ok;
    const bool last = maxSpinCount >= 0 && looks >= maxSpinCount;
    const uint64_t now = memory::nowNs();
    if (nextLook == 0) nextLook = now + statusIntervalNs;
    // Who calls again and again with a small budget learns of an error, too.
    if (now >= nextLook || (last && !looked)) {
      nextLook = now + statusIntervalNs;
      looked = true;
      const Status error = failed();
      if (error != Status::Ok) return done() ? Status::Ok : error;
    }
    if (last) return Status::Timeout;
    relax.pause();
  }
}

/// The same, ended by an error in one of two status words, each of which may be null.
template <typename Done>
MSCCLPP_DEVICE_INLINE Status waitUntil(Done done, const StatusWord* first, const StatusWord* second,
                                       int64_t maxSpinCount) {
  const auto failed = [&] {
    const Status error = stickyError(first);
    return error != Status::Ok ? error : stickyError(second);
  };
  return waitUntil(done, failed, maxSpinCount);
}

}  // namespace detail
}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_WAIT_DEVICE_HPP_
