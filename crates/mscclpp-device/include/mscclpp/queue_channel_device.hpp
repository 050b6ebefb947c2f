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
    const uint64_t parts = partsOf(size);
    const auto write = [&](const detail::WorkRequest& request, uint64_t part) {
      if (part == parts) return writeSignal(request);
      if (size == 0) return request.nop();
      const uint64_t done = part * queue.maxMessage;
      request.write(dst.address + dstOffset + done, dst.key, src.address + srcOffset + done, src.key,
                    partBytes(size, done));
    };
    return queue.post(parts + (withSignal ? 1 : 0), write, ticket, maxSpinCount, watch, probe);
  }

  /// Posts a read of the peer's memory.
  MSCCLPP_DEVICE_INLINE Status get(const QueueMemory& from, uint64_t fromOffset, const QueueMemory& to,
                                   uint64_t toOffset, uint64_t size, QueueWatch watch) {
    if (!from.holds(QueueMemory::remote, fromOffset, size)) return Status::InvalidArgument;
    if (!to.holds(QueueMemory::local, toOffset, size)) return Status::InvalidArgument;
    const auto write = [&](const detail::WorkRequest& request, uint64_t part) {
      if (size == 0) return request.nop();
      const uint64_t done = part * queue.maxMessage;
      request.read(from.address + fromOffset + done, from.key, to.address + toOffset + done, to.key,
                   partBytes(size, done));
    };
    uint64_t ticket;
    return queue.post(partsOf(size), write, ticket, -1, watch);
  }

  MSCCLPP_DEVICE_INLINE Status signal(QueueWatch watch) {
    const auto write = [&](const detail::WorkRequest& request, uint64_t) { writeSignal(request); };
    uint64_t ticket;
    return queue.post(1, write, ticket, -1, watch);
  }

  MSCCLPP_DEVICE_INLINE Status accumulate(const QueueMemory& dst, uint64_t dstOffset, int64_t value, QueueWatch watch) {
    if (queue.signalMode != SignalMode::Atomic) return Status::Unsupported;
    if (!dst.holds(QueueMemory::remote, dstOffset, 8)) return Status::InvalidArgument;
    if ((dst.address + dstOffset) % 8 != 0) return Status::InvalidArgument;
    const auto write = [&](const detail::WorkRequest& request, uint64_t) {
      fetchAdd(request, dst.address + dstOffset, dst.key, static_cast<uint64_t>(value));
    };
    uint64_t ticket;
    return queue.post(1, write, ticket, -1, watch);
  }

  MSCCLPP_DEVICE_INLINE Status flush(int64_t maxSpinCount, QueueWatch watch) {
    return queue.sync(queue.ticket(), maxSpinCount, watch);
  }

 private:
  MSCCLPP_DEVICE_INLINE uint64_t partsOf(uint64_t size) const {
    return size == 0 ? 1 : (size - 1) / queue.maxMessage + 1;
  }

  MSCCLPP_DEVICE_INLINE uint32_t partBytes(uint64_t size, uint64_t done) const {
    const uint64_t left = size - done;
    return static_cast<uint32_t>(left < queue.maxMessage ? left : queue.maxMessage);
  }

  /// Old values land in the queue's own scratch word, never in memory of the user.
  MSCCLPP_DEVICE_INLINE void fetchAdd(const detail::WorkRequest& request, uint64_t to, uint32_t key,
                                      uint64_t operand) const {
    request.fetchAdd(to, key, operand, reinterpret_cast<uint64_t>(queue.scratch), queue.scratchKey);
  }

  MSCCLPP_DEVICE_INLINE void writeSignal(const detail::WorkRequest& request) const {
    if (queue.signalMode == SignalMode::Atomic) return fetchAdd(request, token.address, token.key, 1);
    // One thread at a time posts, so counts are written in the order of the requests.
    const uint64_t count = memory::load<scopeDevice>(outbound, memoryOrderRelaxed) + 1;
    memory::store<scopeDevice>(outbound, count, memoryOrderRelaxed);
    request.writeWord(token.address, token.key, count);
  }
};

static_assert(sizeof(QueueChannel) == 144, "the mirror in Rust has this layout");

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_QUEUE_CHANNEL_DEVICE_HPP_
