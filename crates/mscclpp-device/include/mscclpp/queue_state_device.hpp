// SPDX-License-Identifier: MIT
// The words of a send queue that move, the memory that its requests name, and how completions change
// the words.
#ifndef MSCCLPP_QUEUE_STATE_DEVICE_HPP_
#define MSCCLPP_QUEUE_STATE_DEVICE_HPP_

#include <mscclpp/status.hpp>
#include <mscclpp/work_request_device.hpp>

namespace mscclpp {
inline namespace MSCCLPP_MODE {

/// Who may post to a queue; twin of `abi::QueueForm`.
enum class QueueForm : uint32_t {
  Exclusive = 0,  ///< one thread at a time; the next takes over behind a barrier or a launch
  Shared = 1,     ///< any threads of the grid
};

/// How a signal reaches the peer's token; twin of `abi::SignalMode`.
enum class SignalMode : uint32_t {
  Atomic = 0,       ///< a fetch-and-add by the peer's NIC
  InlineWrite = 1,  ///< a write of the next count; exclusive queue, one writer a token
};

/// The part of a queue that moves, in device memory; twin of `abi::QueueState`. Indices count
/// requests in 64 bits.
struct alignas(64) QueueState {
  /// Requests handed out.
  uint64_t reserved;
  /// Exclusive form: requests for which the owner knows that there is room. Beside `reserved`, so that
  /// one load reads both.
  uint64_t limit;
  /// Requests known to be complete.
  uint64_t completed;
  /// Sticky; its detail is syndrome, vendor syndrome, opcode, cause, a byte each from the lowest.
  StatusWord error;
  /// The request that failed.
  uint64_t errorIndex;
  /// Exclusive form, debug builds: threads that are posting.
  uint64_t inUse;
  /// Completion entries consumed.
  uint64_t consumed;
};

/// Memory that requests can name; twin of `abi::QueueMemory`.
struct QueueMemory {
  static constexpr uint32_t local = 1;   ///< own memory: source of a put, destination of a get
  static constexpr uint32_t remote = 2;  ///< the peer's: destination of a put, source of a get

  uint64_t address;
  uint64_t size;
  /// Big-endian.
  uint32_t key;
  uint32_t access;

  /// Whether it is memory of that kind and holds these bytes.
  MSCCLPP_DEVICE_INLINE bool holds(uint32_t kind, uint64_t offset, uint64_t bytes) const {
    return (access & kind) != 0 && offset <= size && bytes <= size - offset;
  }
};

namespace detail {

MSCCLPP_DEVICE_INLINE void raiseCompleted(QueueState* state, uint64_t to) {
  uint64_t seen = memory::load<scopeDevice>(&state->completed, memoryOrderRelaxed);
  while (seen < to) {
    const uint64_t found = memory::compareExchange<scopeDevice>(&state->completed, seen, to, memoryOrderRelease);
    if (found == seen) return;
    seen = found;
  }
}

/// Sets the sticky error, unless there is one.
MSCCLPP_DEVICE_INLINE void failQueue(QueueState* state, uint32_t detail, uint64_t index) {
  uint64_t* error = reinterpret_cast<uint64_t*>(&state->error);
  if (memory::load<scopeDevice>(error, memoryOrderRelaxed) != 0) return;
  // The index first: who finds the error finds the index. Of an error, all who find it find the same.
  memory::store<scopeDevice>(&state->errorIndex, index, memoryOrderRelaxed);
  const uint64_t bits = static_cast<uint32_t>(Status::QueueError) | (static_cast<uint64_t>(detail) << 32);
  memory::compareExchange<scopeDevice>(error, uint64_t{0}, bits, memoryOrderRelease);
}

/// Consumes the completions that have arrived. Any number of threads may do so at once. The entry
/// of an error is never passed. A function of its own: it is called where threads wait, and would
/// make each post several times as long.
MSCCLPP_DEVICE_NOINLINE void consumeCompletions(const uint64_t* completions, uint32_t completionEntries,
                                                QueueState* state) {
  for (;;) {
    const uint64_t entry = memory::load<scopeDevice>(&state->consumed, memoryOrderRelaxed);
    const uint64_t* words = completions + (entry & (completionEntries - 1)) * (CompletionWord::bytes / 8);
    const CompletionWord last{memory::load<scopeSystem>(words + CompletionWord::offset / 8, memoryOrderAcquire)};
    const bool lap = (entry & completionEntries) != 0;
    if (last.opcode() == CompletionWord::unwritten || last.owner() != lap) return;
    // The NIC's 16 bits, counted on from what is complete: never 2^16 ahead of it.
    const uint64_t completed = memory::load<scopeDevice>(&state->completed, memoryOrderRelaxed);
    const uint64_t index = completed + static_cast<uint16_t>(last.position() - static_cast<uint16_t>(completed));
    if (last.opcode() != CompletionWord::success) {
      const uint64_t before = memory::load<scopeSystem>(words + CompletionWord::offset / 8 - 1, memoryOrderRelaxed);
      // Others may have consumed this entry long ago, and laps later the same slot may tell of a
      // request that was flushed after the one that failed.
      if (memory::load<scopeDevice>(&state->consumed, memoryOrderRelaxed) != entry) continue;
      // A connection completes in order: all before the request that failed succeeded.
      raiseCompleted(state, index);
      const uint32_t syndrome = static_cast<uint32_t>(before >> 56);
      const uint32_t vendor = static_cast<uint32_t>(before >> 48) & 0xff;
      failQueue(state, syndrome | (vendor << 8) | (last.requestOpcode() << 16), index);
      return;
    }
    if (memory::compareExchange<scopeDevice>(&state->consumed, entry, entry + 1, memoryOrderAcqRel) == entry) {
      raiseCompleted(state, index + 1);
    }
  }
}

}  // namespace detail

static_assert(sizeof(QueueState) == 64 && alignof(QueueState) == 64, "the mirror in Rust has this layout");
static_assert(sizeof(QueueMemory) == 24, "the mirror in Rust has this layout");

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_QUEUE_STATE_DEVICE_HPP_
