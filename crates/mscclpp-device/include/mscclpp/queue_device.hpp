// SPDX-License-Identifier: MIT
// A send queue that device threads post to themselves: reserve, write, publish, poll.
#ifndef MSCCLPP_QUEUE_DEVICE_HPP_
#define MSCCLPP_QUEUE_DEVICE_HPP_

#include <mscclpp/queue_state_device.hpp>
#include <mscclpp/trace_device.hpp>
#include <mscclpp/wait_device.hpp>

namespace mscclpp {
inline namespace MSCCLPP_MODE {

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
  /// Shared form: for each slot a word that says that the request at a position is ready, or that
  /// the post that begins there is to announce it; see publishShared(). Zero at first.
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

  /// Whether so many requests go in one piece: half of the ring at most.
  MSCCLPP_DEVICE_INLINE bool takesAtOnce(uint64_t count) const { return count <= blocks / 2; }

  /// Posts `count` requests, `make(i)` for each, in one piece; see takesAtOnce().
  ///
  /// Waits for room. A budget (`maxSpinCount`, negative for none) or an exclusive queue takes slots
  /// when there is room; until then the wait ends also by an error of the queue, by a status word of
  /// `watch`, or by the budget. Without a budget a shared queue hands out the slots first. A slot that
  /// was handed out is always filled, else nothing behind it would ever be announced: such a wait
  /// ends only by room or by what ends the whole of the queue, its error or that of its connection,
  /// never by the word of a service. An error means that nothing was posted.
  /// @param ticket then says when it is complete; see poll().
  template <typename Make, typename Probe = NoProbe>
  MSCCLPP_DEVICE_INLINE Status post(uint64_t count, Make make, uint64_t& ticket, int64_t maxSpinCount,
                                    QueueWatch watch, Probe probe = Probe()) {
    enter();
    const Status status = postPiece(count, 0, make, ticket, maxSpinCount, watch, probe);
    leave();
    return status;
  }

  /// The same for any count: in pieces, each published by itself, in order. After an error or Timeout
  /// whole pieces may have been posted, never the last. A function of its own, which gets copies:
  /// only what is out of the ordinary comes here. `make` refers to nothing that the caller has.
  template <typename Make>
  static MSCCLPP_DEVICE_NOINLINE Status postInPieces(QueueDeviceHandle queue, uint64_t count, Make make,
                                                     uint64_t* ticket, int64_t maxSpinCount, QueueWatch watch) {
    queue.enter();
    const uint64_t most = queue.blocks / 2;
    Status status = Status::Ok;
    for (uint64_t done = 0; status == Status::Ok && done < count;) {
      const uint64_t now = count - done < most ? count - done : most;
      status = queue.postPiece(now, done, make, *ticket, maxSpinCount, watch, NoProbe());
      done += now;
    }
    queue.leave();
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
    return MSCCLPP_TRACED_OK(Completed, number, ticket,
                             waitUntil([&] { return poll(ticket); }, maxSpinCount, watch));
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

  MSCCLPP_DEVICE_INLINE uint64_t* slot(uint64_t index) const {
    return sendRing + (index & (blocks - 1)) * (detail::blockBytes / 8);
  }

  /// Debug builds see a second thread in an exclusive queue.
  MSCCLPP_DEVICE_INLINE void enter() {
#if defined(MSCCLPP_DEBUG)
    if (form == QueueForm::Exclusive &&
        memory::fetchAdd<scopeDevice>(&state->inUse, uint64_t{1}, memoryOrderRelaxed) != 0) {
      detail::failQueue(state, causeNotExclusive << 24, ticket());
    }
#endif
  }

  MSCCLPP_DEVICE_INLINE void leave() {
#if defined(MSCCLPP_DEBUG)
    if (form == QueueForm::Exclusive) {
      memory::fetchAdd<scopeDevice>(&state->inUse, ~uint64_t{0}, memoryOrderRelaxed);
    }
#endif
  }

  /// Slots from `first` on, of which those before `limit` are free.
  struct Slots {
    Status failed;
    uint64_t first;
    uint64_t limit;
  };

  /// Requests `from`.. of a post, `count` of them.
  template <typename Make, typename Probe>
  MSCCLPP_DEVICE_INLINE Status postPiece(uint64_t count, uint64_t from, Make& make, uint64_t& ticket,
                                         int64_t maxSpinCount, QueueWatch watch, Probe probe) {
    const bool shared = form == QueueForm::Shared;
    const Slots slots = shared ? takeShared(count, maxSpinCount, watch) : lookExclusive();
    // Made while what was just loaded is on its way. Most posts have no more than two.
    const detail::WorkRequest one = make(from);
    const detail::WorkRequest two = count > 1 ? make(from + 1) : one;
    // A gap in a queue that has failed is in nobody's way.
    if (slots.failed != Status::Ok) return slots.failed;
    const uint64_t first = slots.first, end = first + count;
    if (end > slots.limit) {
      // Where slots are taken already, only what ends the whole of the queue ends the wait.
      const Status status = shared ? waitForRoom(*this, end, -1, {watch.connection, nullptr})
                                   : waitForRoom(*this, end, maxSpinCount, watch);
      if (status != Status::Ok) return status;
    }
    probe(PostPhase::Reserved);
    MSCCLPP_TRACE_POINT(Reserved, number, first)
    // Wanted when the requests are written: so nobody waits for it.
    const uint32_t found = shared ? loadReady(first) : 0;
    for (uint64_t i = 0; i < count; ++i) {
      const bool tells = signalEvery != 0 || i + 1 == count;
      const detail::WorkRequest request = i == 0 ? one : i == 1 ? two : make(from + i);
      request.store(slot(first + i), first + i, tells ? detail::completeAlways : 0);
    }
    probe(PostPhase::Written);
    if (shared) {
      publishShared(first, count, found, probe);
    } else {
      publishExclusive(end, probe);
    }
    ticket = end;
    return Status::Ok;
  }

  /// Whether the slots before `end` may be written: a completion covers what they held.
  MSCCLPP_DEVICE_INLINE bool hasRoom(uint64_t end) {
    uint64_t completed = loadCompleted();
    if (end - completed > blocks) {
      consume();
      completed = loadCompleted();
      if (end - completed > blocks) return false;
    }
    if (form == QueueForm::Exclusive) {
      memory::store<scopeDevice>(&state->limit, completed + blocks, memoryOrderRelaxed);
    }
    return true;
  }

  /// Functions of their own, with copies, as is postInPieces(): a post that finds room has nothing
  /// of them in its way.
  static MSCCLPP_DEVICE_NOINLINE Status waitForRoom(QueueDeviceHandle queue, uint64_t end, int64_t maxSpinCount,
                                                    QueueWatch watch) {
    return queue.waitUntil([&] { return queue.hasRoom(end); }, maxSpinCount, watch);
  }

  /// Slots of a shared queue, taken only when there is room.
  static MSCCLPP_DEVICE_NOINLINE Slots takeWithRoom(QueueDeviceHandle queue, uint64_t count, int64_t maxSpinCount,
                                                    QueueWatch watch) {
    Slots slots{queue.error(), 0, ~uint64_t{0}};
    if (slots.failed != Status::Ok) return slots;
    uint64_t* reserved = &queue.state->reserved;
    const auto take = [&] {
      slots.first = memory::load<scopeDevice>(reserved, memoryOrderRelaxed);
      const uint64_t end = slots.first + count;
      return queue.hasRoom(end) &&
             memory::compareExchange<scopeDevice>(reserved, slots.first, end, memoryOrderRelaxed) == slots.first;
    };
    slots.failed = queue.waitUntil(take, maxSpinCount, watch);
    return slots;
  }

  /// What is known to be free was acquired by the owner who looked, and from him by the next.
  MSCCLPP_DEVICE_INLINE Slots lookExclusive() {
    Slots slots;
    memory::loadPair(&state->reserved, slots.first, slots.limit);
    slots.failed = error();
    return slots;
  }

  MSCCLPP_DEVICE_INLINE Slots takeShared(uint64_t count, int64_t maxSpinCount, QueueWatch watch) {
    if (maxSpinCount >= 0) return takeWithRoom(*this, count, maxSpinCount, watch);
    Slots slots;
    // The loads do not wait for the slots.
    slots.first = memory::fetchAdd<scopeDevice>(&state->reserved, count, memoryOrderRelaxed);
    slots.failed = error();
    slots.limit = loadCompleted() + blocks;
    return slots;
  }

  template <typename Probe>
  MSCCLPP_DEVICE_INLINE void publishExclusive(uint64_t end, Probe probe) {
    ring(end, probe);
    memory::store<scopeDevice>(&state->reserved, end, memoryOrderRelaxed);
  }

  /// Says that the request at `index` is in its slot.
  static MSCCLPP_DEVICE_INLINE uint32_t readyAt(uint64_t index) { return (static_cast<uint32_t>(index) << 1) | 1; }

  /// Says that all before `index` is announced, and that who posts `index` announces what follows.
  static MSCCLPP_DEVICE_INLINE uint32_t batonAt(uint64_t index) { return static_cast<uint32_t>(index) << 1; }

  MSCCLPP_DEVICE_INLINE uint32_t* readyWord(uint64_t index) const { return ready + (index & (blocks - 1)); }

  MSCCLPP_DEVICE_INLINE uint32_t loadReady(uint64_t index) const {
    return memory::load<scopeDevice>(readyWord(index), memoryOrderRelaxed);
  }

  /// Requests are announced in the order of their slots, by one thread at a time: who has the baton,
  /// which lies in the ready word of the first request that is not announced, unless a thread has it.
  /// That request's poster takes it, announces its own post, then what others have made ready
  /// behind it, and leaves the baton in the next word. A post that finds no baton makes its first
  /// word ready and leaves the rest to whoever comes by. Both change that word by compare-and-swap,
  /// so one of them sees the other: no post is forgotten, and none announced twice.
  ///
  /// Each lap changes each word, so that a word tells of this lap or of the last one.
  template <typename Probe>
  MSCCLPP_DEVICE_INLINE void publishShared(uint64_t first, uint64_t count, uint32_t found, Probe probe) {
    for (uint64_t index = first + 1; index < first + count; ++index) {
      memory::store<scopeDevice>(readyWord(index), readyAt(index), memoryOrderRelaxed);
    }
    // A baton that is there already is nobody else's to take.
    if (found != batonAt(first)) {
      // Payload, requests and the words behind the first, for the thread that announces them.
      memory::fence<scopeDevice>(memoryOrderRelease);
      // Only a baton can have come since.
      if (memory::compareExchange<scopeDevice>(readyWord(first), found, readyAt(first), memoryOrderRelaxed) == found) {
        return;
      }
    }
    uint64_t end = first + count;
    for (;;) {
      uint32_t next = loadReady(end);  // read while the NIC is told
      ring(end, probe);
      // Behind the doorbell, so that the next one's comes after it. Who takes the baton acquires, by
      // the fence in ring(). The first look was in no order with others and may be too old: only what
      // the compare-and-swap finds tells of this lap.
      while (next != readyAt(end)) {
        const uint32_t was =
            memory::compareExchange<scopeDevice>(readyWord(end), next, batonAt(end), memoryOrderRelease);
        if (was == next) return;
        next = was;
      }
      // It is ready. The same is true where scan() ended inside of a post, because it had not seen
      // the post's later words yet: they were stored and released before the first one was made
      // ready, which scan() has seen; the fence in ring() has acquired it since, so that the
      // compare-and-swap finds them. The baton is never left inside of a post.
      end = scan(end + 1);
    }
  }

  /// The first index from `index` on that is not ready, as far as one sees at a glance: loads that are
  /// under way together, in no order. What they tell is acquired by the fence in ring().
  MSCCLPP_DEVICE_INLINE uint64_t scan(uint64_t index) const {
    constexpr uint32_t glance = 16;
    for (;;) {
      uint32_t words[glance];
      MSCCLPP_UNROLL
      for (uint32_t i = 0; i < glance; ++i) words[i] = loadReady(index + i);
      uint32_t seen = 0;
      MSCCLPP_UNROLL
      for (uint32_t i = 0; i < glance; ++i) {
        if (seen == i && words[i] == readyAt(index + i)) seen = i + 1;
      }
      index += seen;
      if (seen != glance) return index;
    }
  }

  /// Tells the NIC of all before `end`. The first fence releases at system scope what the thread
  /// itself wrote and, on a shared queue, what it acquires by the same fence from those who made
  /// requests ready.
  template <typename Probe>
  MSCCLPP_DEVICE_INLINE void ring(uint64_t end, Probe probe) {
    probe(PostPhase::Ready);
    memory::fence<scopeSystem>(memoryOrderAcqRel);
    probe(PostPhase::Fenced);
    MSCCLPP_TRACE_POINT(Rung, number, end)
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

static_assert(sizeof(QueueDeviceHandle) == 104, "the mirror in Rust has this layout");

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_QUEUE_DEVICE_HPP_
