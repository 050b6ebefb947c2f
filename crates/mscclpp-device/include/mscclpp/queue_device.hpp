// SPDX-License-Identifier: MIT
// A send queue that device threads post to themselves: reserve, write, publish, poll.
#ifndef MSCCLPP_QUEUE_DEVICE_HPP_
#define MSCCLPP_QUEUE_DEVICE_HPP_

#include <mscclpp/status.hpp>
#include <mscclpp/wait_device.hpp>
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
  /// Shared form: requests announced to the NIC.
  uint64_t published;
  /// Shared form: posts that the publishing thread has to look at.
  uint64_t pending;
  uint64_t reservedForLater[8];
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

/// What ends a wait from outside: the status words of a connection and of a service, host memory,
/// each or null.
struct QueueWatch {
  const StatusWord* connection;
  const StatusWord* service;
};

/// What a post has done, in this order; see QueueDeviceHandle::post. On a shared queue the last two
/// are done by the thread that announces requests, for all of them.
enum class PostPhase : uint32_t {
  Checked,   ///< arguments are inside of what they name
  Reserved,  ///< slots are taken, and free
  Written,   ///< requests are in their slots
  Ready,     ///< they are handed to whoever announces them
  Fenced,    ///< payload and requests are visible to the NIC
  Rung,      ///< the NIC has been told
};

/// Looks on while a thread posts; this one does not.
struct NoProbe {
  MSCCLPP_DEVICE_INLINE void operator()(PostPhase) const {}
};

/// Twin of `abi::QueueDeviceHandle`. Every request is one block of the ring, so that positions
/// count requests.
///
/// Order inside a post: the requests; a release at system scope, which covers them and the payload;
/// a doorbell, so that the NIC starts early; the record; a release that covers the record; the
/// doorbell again, for a NIC that missed the first or recovers by the record.
struct QueueDeviceHandle {
  AbiHeader abi;
  /// `blocks` blocks of 64 bytes.
  uint64_t* sendRing;
  /// The send word of the doorbell record.
  uint32_t* record;
  uint64_t* doorbell;
  /// `completionEntries` entries of 64 bytes.
  const uint64_t* completions;
  QueueState* state;
  /// Shared form: for each slot the position after the last request written there, 32 bits.
  uint32_t* ready;
  /// Where results of atomics land; nobody reads them.
  uint64_t* scratch;
  uint32_t scratchKey;
  uint32_t number;
  uint32_t blocks;
  uint32_t completionEntries;
  QueueForm form;
  SignalMode signalMode;
  uint32_t recordInHostMemory;
  /// Whether every request asks for a completion, or the last of a post only.
  uint32_t signalEvery;
  uint64_t maxMessage;

  /// Posts `count` requests, calling `write(request, i)` for each. More than half of the ring at
  /// once goes in pieces, each published by itself, in order.
  ///
  /// Waits for room: until there is some, the queue has failed, a status word of `watch` says so, or
  /// `maxSpinCount` looks were in vain (negative: for ever). Slots are taken only when there is
  /// room, and those that were taken are always published. After an error or Timeout whole pieces
  /// may have been posted, never the last.
  /// @param ticket then says when it is complete; see poll().
  template <typename Write, typename Probe = NoProbe>
  MSCCLPP_DEVICE_INLINE Status post(uint64_t count, Write write, uint64_t& ticket, int64_t maxSpinCount,
                                    QueueWatch watch, Probe probe = Probe()) {
    Status status = enter();
    const uint64_t most = blocks / 2;
    for (uint64_t done = 0; status == Status::Ok && done < count;) {
      uint64_t now = count - done < most ? count - done : most;
      uint64_t first;
      status = form == QueueForm::Shared ? reserveShared(now, first, maxSpinCount, watch)
                                         : reserveExclusive(now, first, maxSpinCount, watch);
      if (status != Status::Ok) break;
      probe(PostPhase::Reserved);
      for (uint64_t i = 0; i < now; ++i) {
        const bool tells = signalEvery != 0 || i + 1 == now;
        write(request(first + i, tells), done + i);
      }
      probe(PostPhase::Written);
      if (form == QueueForm::Shared) {
        publishShared(first, now, probe);
      } else {
        publishExclusive(first + now, probe);
      }
      ticket = first + now;
      done += now;
    }
    leave();
    return status;
  }

  /// Whether everything before `ticket` is complete. Consumes completions that have arrived.
  MSCCLPP_DEVICE_INLINE bool poll(uint64_t ticket) {
    consume();
    return loadCompleted() >= ticket;
  }

  /// Waits until everything before `ticket` is complete. What was complete before the queue failed
  /// stays so.
  MSCCLPP_DEVICE_INLINE Status sync(uint64_t ticket, int64_t maxSpinCount, QueueWatch watch) {
    return waitUntil([&] { return poll(ticket); }, maxSpinCount, watch);
  }

  /// The ticket of all that has been posted or begun by now.
  MSCCLPP_DEVICE_INLINE uint64_t ticket() {
    return memory::load<scopeDevice>(&state->reserved, memoryOrderRelaxed);
  }

  /// The queue's sticky error, or Ok. Does not look at completions.
  MSCCLPP_DEVICE_INLINE Status error() {
    const uint64_t* bits = reinterpret_cast<const uint64_t*>(&state->error);
    return static_cast<Status>(static_cast<uint32_t>(memory::load<scopeDevice>(bits, memoryOrderRelaxed)));
  }

  /// Calls `done` until it returns true; ends also by an error of the queue, which completions tell,
  /// by `watch`, or by the budget.
  template <typename Done>
  MSCCLPP_DEVICE_INLINE Status waitUntil(Done done, int64_t maxSpinCount, QueueWatch watch) {
    const auto failed = [&] {
      Status status = detail::stickyError(watch.connection);
      if (status == Status::Ok) status = detail::stickyError(watch.service);
      if (status == Status::Ok) {
        consume();
        status = error();
      }
      return status;
    };
    return detail::waitUntil(done, failed, maxSpinCount);
  }

  /// Whether host and device were built with the same layout.
  MSCCLPP_HOST_DEVICE_INLINE bool compatible() const { return abi.is<QueueDeviceHandle>(); }

 private:
  static constexpr uint32_t causeNotExclusive = 1;

  MSCCLPP_DEVICE_INLINE uint64_t loadCompleted() {
    return memory::load<scopeDevice>(&state->completed, memoryOrderAcquire);
  }

  MSCCLPP_DEVICE_INLINE detail::WorkRequest request(uint64_t index, bool tells) const {
    const uint64_t slot = index & (blocks - 1);
    return {sendRing + slot * (detail::blockBytes / 8), number, index, tells ? detail::completeAlways : 0};
  }

  /// Fails at once on a queue that has failed. Debug builds see a second thread in an exclusive
  /// queue.
  MSCCLPP_DEVICE_INLINE Status enter() {
#if defined(MSCCLPP_DEBUG)
    if (form == QueueForm::Exclusive &&
        memory::fetchAdd<scopeDevice>(&state->inUse, uint64_t{1}, memoryOrderRelaxed) != 0) {
      detail::failQueue(state, causeNotExclusive << 24, ticket());
    }
#endif
    return error();
  }

  MSCCLPP_DEVICE_INLINE void leave() {
#if defined(MSCCLPP_DEBUG)
    if (form == QueueForm::Exclusive) {
      memory::fetchAdd<scopeDevice>(&state->inUse, ~uint64_t{0}, memoryOrderRelaxed);
    }
#endif
  }

  /// Whether the slots before `end` may be written: a completion covers what they held.
  MSCCLPP_DEVICE_INLINE bool hasRoom(uint64_t end) {
    if (end - loadCompleted() <= blocks) return true;
    consume();
    return end - loadCompleted() <= blocks;
  }

  MSCCLPP_DEVICE_INLINE Status reserveExclusive(uint64_t count, uint64_t& first, int64_t maxSpinCount,
                                                QueueWatch watch) {
    first = memory::load<scopeDevice>(&state->reserved, memoryOrderRelaxed);
    const uint64_t end = first + count;
    if (hasRoom(end)) return Status::Ok;
    return waitUntil([&] { return hasRoom(end); }, maxSpinCount, watch);
  }

  /// Slots are taken only when there is room: a thread that gave up while it waited for room of its
  /// own would leave a gap, behind which nothing is ever announced. Without a budget a piece may
  /// become smaller; else a large one would wait for as long as others post small ones.
  MSCCLPP_DEVICE_INLINE Status reserveShared(uint64_t& count, uint64_t& first, int64_t maxSpinCount,
                                             QueueWatch watch) {
    const auto take = [&] {
      first = memory::load<scopeDevice>(&state->reserved, memoryOrderRelaxed);
      if (maxSpinCount < 0 && count > 1 && !hasRoom(first + count)) count = 1;
      return hasRoom(first + count) && memory::compareExchange<scopeDevice>(&state->reserved, first, first + count,
                                                                            memoryOrderRelaxed) == first;
    };
    if (maxSpinCount < 0 && take()) return Status::Ok;
    return waitUntil(take, maxSpinCount, watch);
  }

  template <typename Probe>
  MSCCLPP_DEVICE_INLINE void publishExclusive(uint64_t end, Probe probe) {
    ring(end, probe);
    memory::store<scopeDevice>(&state->reserved, end, memoryOrderRelaxed);
  }

  /// Requests are announced in the order of their slots, by one thread at a time: whoever raises
  /// `pending` from zero. It announces what is ready without a gap and goes on until it has looked
  /// after every other thread's post was counted; the others return at once.
  template <typename Probe>
  MSCCLPP_DEVICE_INLINE void publishShared(uint64_t first, uint64_t count, Probe probe) {
    // Payload and requests, for the thread that announces them.
    memory::fence<scopeDevice>(memoryOrderRelease);
    for (uint64_t index = first; index < first + count; ++index) {
      memory::store<scopeDevice>(readyWord(index), static_cast<uint32_t>(index + 1), memoryOrderRelaxed);
    }
    if (memory::fetchAdd<scopeDevice>(&state->pending, uint64_t{1}, memoryOrderAcqRel) != 0) return;
    uint64_t published = memory::load<scopeDevice>(&state->published, memoryOrderRelaxed);
    for (;;) {
      const uint64_t seen = memory::load<scopeDevice>(&state->pending, memoryOrderAcquire);
      uint64_t end = published;
      while (memory::load<scopeDevice>(readyWord(end), memoryOrderAcquire) == static_cast<uint32_t>(end + 1)) ++end;
      if (end != published) {
        ring(end, probe);
        published = end;
        memory::store<scopeDevice>(&state->published, end, memoryOrderRelaxed);
      }
      if (memory::fetchAdd<scopeDevice>(&state->pending, uint64_t{0} - seen, memoryOrderAcqRel) == seen) return;
    }
  }

  MSCCLPP_DEVICE_INLINE uint32_t* readyWord(uint64_t index) const { return ready + (index & (blocks - 1)); }

  template <typename Probe>
  MSCCLPP_DEVICE_INLINE void ring(uint64_t end, Probe probe) {
    probe(PostPhase::Ready);
    memory::fence<scopeSystem>(memoryOrderRelease);
    probe(PostPhase::Fenced);
    const uint64_t value = detail::doorbellValue(number, end);
    memory::storeMmio(doorbell, value);
    memory::store<scopeSystem>(record, detail::recordValue(end), memoryOrderRelaxed);
    if (recordInHostMemory != 0) {
      memory::fence<scopeSystem>(memoryOrderRelease);
    } else {
      memory::fence<scopeDevice>(memoryOrderRelease);
    }
    memory::storeMmio(doorbell, value);
    probe(PostPhase::Rung);
  }

  /// Consumes the completions that have arrived.
  MSCCLPP_DEVICE_INLINE void consume() { detail::consumeCompletions(completions, completionEntries, state); }
};

static_assert(sizeof(QueueState) == 128 && alignof(QueueState) == 64, "the mirror in Rust has this layout");
static_assert(sizeof(QueueMemory) == 24, "the mirror in Rust has this layout");
static_assert(sizeof(QueueDeviceHandle) == 104, "the mirror in Rust has this layout");

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_QUEUE_DEVICE_HPP_
