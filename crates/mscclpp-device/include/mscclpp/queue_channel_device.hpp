// SPDX-License-Identifier: MIT
// A channel's operations as work requests: the calling thread posts them to the NIC's queue itself.
#ifndef MSCCLPP_QUEUE_CHANNEL_DEVICE_HPP_
#define MSCCLPP_QUEUE_CHANNEL_DEVICE_HPP_

#include <mscclpp/queue_device.hpp>

namespace mscclpp {
inline namespace MSCCLPP_MODE {

/// Twin of `abi::QueueChannel`. Arguments are checked before anything is reserved: after
/// InvalidArgument or Unsupported nothing was posted.
struct QueueChannel {
  /// Entries of `memories`.
  static constexpr uint32_t maxMemories = 512;

  QueueDeviceHandle queue;
  /// By memory id; what is not there is zero.
  const QueueMemory* memories;
  /// The peer's token.
  QueueMemory token;
  /// Signals sent, where signals are writes of the next count.
  uint64_t* outbound;

  /// The memory with an id, or one that holds nothing.
  MSCCLPP_DEVICE_INLINE QueueMemory find(uint32_t id) const {
    if (id >= maxMemories) return {0, 0, 0, 0};
    const uint64_t* words = reinterpret_cast<const uint64_t*>(memories + id);
    // The host may be filling the entry: its last word comes last.
    const uint64_t last = memory::load<scopeSystem>(words + 2, memoryOrderAcquire);
    return {memory::load<scopeSystem>(words, memoryOrderRelaxed), memory::load<scopeSystem>(words + 1, memoryOrderRelaxed),
            static_cast<uint32_t>(last), static_cast<uint32_t>(last >> 32)};
  }

  /// Posts a write, and with `withSignal` a signal behind it. No bytes are a request without effect.
  template <typename Probe = NoProbe>
  MSCCLPP_DEVICE_INLINE Status put(const QueueMemory& dst, uint64_t dstOffset, const QueueMemory& src,
                                   uint64_t srcOffset, uint64_t size, bool withSignal, uint64_t& ticket,
                                   int64_t maxSpinCount, QueueWatch watch, Probe probe = Probe()) {
    if (!dst.holds(QueueMemory::remote, dstOffset, size)) return Status::InvalidArgument;
    if (!src.holds(QueueMemory::local, srcOffset, size)) return Status::InvalidArgument;
    probe(PostPhase::Checked);
    const Transfer transfer{detail::opcodeWrite, dst.key,   src.key, dst.address + dstOffset, src.address + srcOffset,
                            size,                withSignal};
    return post(transfer, ticket, maxSpinCount, watch, probe);
  }

  /// Posts a read of the peer's memory.
  MSCCLPP_DEVICE_INLINE Status get(const QueueMemory& from, uint64_t fromOffset, const QueueMemory& to,
                                   uint64_t toOffset, uint64_t size, QueueWatch watch) {
    if (!from.holds(QueueMemory::remote, fromOffset, size)) return Status::InvalidArgument;
    if (!to.holds(QueueMemory::local, toOffset, size)) return Status::InvalidArgument;
    const Transfer transfer{detail::opcodeRead, from.key, to.key, from.address + fromOffset, to.address + toOffset,
                            size,               false};
    uint64_t ticket;
    return post(transfer, ticket, -1, watch, NoProbe());
  }

  MSCCLPP_DEVICE_INLINE Status signal(QueueWatch watch) {
    uint64_t ticket;
    return counted(queue.post(1, [&](uint64_t) { return signalRequest(); }, ticket, -1, watch));
  }

  MSCCLPP_DEVICE_INLINE Status accumulate(const QueueMemory& dst, uint64_t dstOffset, int64_t value, QueueWatch watch) {
    if (queue.signalMode != SignalMode::Atomic) return Status::Unsupported;
    if (!dst.holds(QueueMemory::remote, dstOffset, 8)) return Status::InvalidArgument;
    if ((dst.address + dstOffset) % 8 != 0) return Status::InvalidArgument;
    const auto make = [&](uint64_t) {
      return fetchAdd(dst.address + dstOffset, dst.key, static_cast<uint64_t>(value));
    };
    uint64_t ticket;
    return queue.post(1, make, ticket, -1, watch);
  }

  MSCCLPP_DEVICE_INLINE Status flush(int64_t maxSpinCount, QueueWatch watch) {
    return queue.sync(queue.ticket(), maxSpinCount, watch);
  }

 private:
  /// Bytes between local memory and the peer's, in requests of maxMessage at most, and perhaps a
  /// signal behind them.
  struct Transfer {
    uint32_t opcode;
    uint32_t remoteKey, localKey;
    uint64_t remote, local;
    uint64_t size;
    bool withSignal;

    /// The part behind `done` bytes, of `most` at most.
    MSCCLPP_DEVICE_INLINE detail::WorkRequest part(uint32_t queue, uint64_t done, uint64_t most) const {
      const uint64_t bytes = size - done < most ? size - done : most;
      return detail::WorkRequest::transfer(queue, opcode, remote + done, remoteKey, local + done, localKey,
                                           static_cast<uint32_t>(bytes));
    }
  };

  /// One part in one piece is what posts mostly are: it has no loop, no division, and copies nothing.
  template <typename Probe>
  MSCCLPP_DEVICE_INLINE Status post(const Transfer& transfer, uint64_t& ticket, int64_t maxSpinCount, QueueWatch watch,
                                    Probe probe) {
    const uint64_t signals = transfer.withSignal ? 1 : 0;
    Status status;
    if (transfer.size <= queue.maxMessage && queue.takesAtOnce(1 + signals)) {
      const auto make = [&](uint64_t i) {
        return i == 1 ? signalRequest() : transfer.part(queue.number, 0, transfer.size);
      };
      status = queue.post(1 + signals, make, ticket, maxSpinCount, watch, probe);
    } else {
      const uint64_t parts = transfer.size == 0 ? 1 : (transfer.size - 1) / queue.maxMessage + 1;
      const auto make = [channel = *this, transfer, parts](uint64_t i) {
        const uint64_t most = channel.queue.maxMessage;
        return i == parts ? channel.signalRequest() : transfer.part(channel.queue.number, i * most, most);
      };
      uint64_t last = 0;
      status = QueueDeviceHandle::postInPieces(queue, parts + signals, make, &last, maxSpinCount, watch);
      ticket = last;
    }
    return transfer.withSignal ? counted(status) : status;
  }

  /// Old values land in the queue's own scratch word, never in memory of the user.
  MSCCLPP_DEVICE_INLINE detail::WorkRequest fetchAdd(uint64_t to, uint32_t key, uint64_t operand) const {
    return detail::WorkRequest::fetchAdd(queue.number, to, key, operand, reinterpret_cast<uint64_t>(queue.scratch),
                                         queue.scratchKey);
  }

  MSCCLPP_DEVICE_INLINE uint64_t signalsSent() const {
    return memory::load<scopeDevice>(outbound, memoryOrderRelaxed);
  }

  MSCCLPP_DEVICE_INLINE detail::WorkRequest signalRequest() const {
    if (queue.signalMode == SignalMode::Atomic) return fetchAdd(token.address, token.key, 1);
    return detail::WorkRequest::writeWord(queue.number, token.address, token.key, signalsSent() + 1);
  }

  /// Counts a signal that was posted. One thread at a time posts, so counts are written in the order
  /// of the requests.
  MSCCLPP_DEVICE_INLINE Status counted(Status posted) const {
    if (queue.signalMode != SignalMode::Atomic && posted == Status::Ok) {
      memory::store<scopeDevice>(outbound, signalsSent() + 1, memoryOrderRelaxed);
    }
    return posted;
  }
};

static_assert(sizeof(QueueChannel) == 144, "the mirror in Rust has this layout");

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_QUEUE_CHANNEL_DEVICE_HPP_
