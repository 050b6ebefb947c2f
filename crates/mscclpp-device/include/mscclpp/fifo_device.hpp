// SPDX-License-Identifier: MIT
// The queue of triggers from device threads to the proxy.
#ifndef MSCCLPP_FIFO_DEVICE_HPP_
#define MSCCLPP_FIFO_DEVICE_HPP_

#include <mscclpp/atomic_device.hpp>
#include <mscclpp/status.hpp>
#include <mscclpp/trace_device.hpp>
#include <mscclpp/trigger.hpp>
#include <mscclpp/wait_device.hpp>

namespace mscclpp {
inline namespace MSCCLPP_MODE {

/// Device side of a FIFO; twin of `abi::FifoDeviceHandle`. Any number of threads may push. One
/// host thread consumes, in the order of positions; `tail` counts what it has executed.
///
/// A slot that was taken is filled: a push without a budget waits until there is room. Only when
/// the status word says that nobody consumes any more does it give up, and its slot stays empty;
/// the host does not start such a FIFO again. A push with a budget takes a slot only when there is
/// room.
struct FifoDeviceHandle {
  /// Pushes a trigger, with all that the thread wrote before it and all that the thread knows
  /// others to have written (a release at system scope).
  /// @param maxSpinCount how often to look for room; negative is for ever.
  /// @return the trigger's position, or UINT64_MAX if it was not pushed: the FIFO is dead or the
  /// budget is used up.
  MSCCLPP_DEVICE_INLINE uint64_t push(ProxyTrigger trigger, int64_t maxSpinCount = -1) {
    uint64_t position;
    (void)post(trigger, position, maxSpinCount);
    return position;
  }

  /// Like push(), and says why not: the FIFO's sticky error, or Timeout. Who had to wait for room also
  /// learns of the error of the `connection` that the trigger is for, if its status word is given: then
  /// the trigger is pushed, and will not be executed. There is no such look while there is room, because
  /// the word lies in host memory: it would cost more than the push.
  MSCCLPP_DEVICE_INLINE Status post(ProxyTrigger trigger, uint64_t& position, int64_t maxSpinCount = -1,
                                    const StatusWord* connection = nullptr) {
    bool waited = false;
    const Status reserved =
        maxSpinCount < 0 ? reserve(position, waited) : reserveIfRoom(position, maxSpinCount, waited);
    if (reserved != Status::Ok) {
      position = UINT64_MAX;
      return reserved;
    }
    // Commit bit: set in lap 0, clear in lap 1, and so on, so that what the slot holds from the lap
    // before (or from the start, zero) reads as empty.
    trigger.fields.reserved = ((position >> sizeShift) & 1) ^ 1;
    MSCCLPP_TRACE_POINT(Pushed, MSCCLPP_TRACE_OBJECT(triggers), position)
    memory::publishPair(&triggers[position & sizeMask].fst, trigger.fst, trigger.snd);
    return waited ? detail::stickyError(connection) : Status::Ok;
  }

  /// Whether the trigger at a position has been executed.
  MSCCLPP_DEVICE_INLINE bool poll(uint64_t fifoHead) { return fifoHead < loadTail(); }

  /// Waits until the trigger at a position has been executed.
  MSCCLPP_DEVICE_INLINE Status sync(uint64_t fifoHead, int64_t maxSpinCount = -1) {
    return detail::waitUntil([&] { return poll(fifoHead); }, status, nullptr, maxSpinCount);
  }

  /// Whether host and device were built with the same layout.
  MSCCLPP_HOST_DEVICE_INLINE bool compatible() const { return abi.is<FifoDeviceHandle>(); }

  AbiHeader abi;
  /// Ring of slots, host memory.
  ProxyTrigger* triggers;
  /// Next position to hand out, device memory.
  uint64_t* head;
  /// Count of executed triggers, host memory.
  uint64_t* tail;
  /// A tail seen lately, device memory. May lag: it only spares looks at the tail.
  uint64_t* tailCache;
  /// Slots, a power of two.
  int size;
  uint32_t reserved;
  /// size - 1
  uint64_t sizeMask;
  /// log2(size)
  uint64_t sizeShift;
  /// Set when nobody consumes any more.
  const StatusWord* status;

 private:
  /// Acquires, so that the consumer's reads of a slot are over before the slot is written again.
  MSCCLPP_DEVICE_INLINE uint64_t loadTail() {
    const uint64_t seen = atomicLoad<uint64_t, scopeSystem>(tail, memoryOrderAcquire);
    atomicStore<uint64_t, scopeDevice>(tailCache, seen, memoryOrderRelaxed);
    return seen;
  }

  MSCCLPP_DEVICE_INLINE bool hasRoom(uint64_t position) {
    const uint64_t slots = static_cast<uint64_t>(size);
    return position < atomicLoad<uint64_t, scopeDevice>(tailCache, memoryOrderRelaxed) + slots ||
           position < loadTail() + slots;
  }

  MSCCLPP_DEVICE_INLINE Status reserve(uint64_t& position, bool& waited) {
    const uint64_t taken = atomicFetchAdd<uint64_t, scopeDevice>(head, 1, memoryOrderRelaxed);
    position = taken;
    if (hasRoom(taken)) return Status::Ok;
    waited = true;
    return detail::waitUntil([&] { return hasRoom(taken); }, status, nullptr, -1);
  }

  MSCCLPP_DEVICE_INLINE Status reserveIfRoom(uint64_t& position, int64_t maxSpinCount, bool& waited) {
    const auto take = [&] {
      position = atomicLoad<uint64_t, scopeDevice>(head, memoryOrderRelaxed);
      if (!hasRoom(position)) {
        waited = true;
        return false;
      }
      return memory::compareExchange<scopeDevice>(head, position, position + 1,
                                                                       memoryOrderRelaxed) == position;
    };
    return detail::waitUntil(take, status, nullptr, maxSpinCount);
  }
};

static_assert(sizeof(FifoDeviceHandle) == 72, "the mirror in Rust has this layout");

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_FIFO_DEVICE_HPP_
