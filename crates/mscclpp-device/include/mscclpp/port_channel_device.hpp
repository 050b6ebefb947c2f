// SPDX-License-Identifier: MIT
// The channel: one-sided writes, signals and flushes to one peer.
#ifndef MSCCLPP_PORT_CHANNEL_DEVICE_HPP_
#define MSCCLPP_PORT_CHANNEL_DEVICE_HPP_

#include <mscclpp/fifo_device.hpp>
#include <mscclpp/semaphore_device.hpp>

namespace mscclpp {
inline namespace MSCCLPP_MODE {

using SemaphoreId = uint32_t;
using MemoryId = uint32_t;

/// A channel whose calls name memory ids; twin of `abi::BasePortChannelDeviceHandle`. All calls
/// may be made by any number of threads. Offsets and sizes are bytes, each below 4 GiB.
///
/// Operations of one connection are executed in the order in which they were pushed. A call
/// publishes what the calling thread wrote before it, and what it knows others to have written
/// (behind a block barrier, say). All return a status: Ok, the sticky error of the proxy's FIFO, or
/// InvalidArgument, in which case nothing was pushed.
///
/// `maxSpinCount` is a budget of looks; negative, the default, is no limit. It bounds each of a
/// call's waits (for room, for completion). When it is used up the call returns Timeout, and never
/// Ok before completion.
struct BasePortChannelDeviceHandle {
  AbiHeader abi_;
  SemaphoreId semaphoreId_;
  uint32_t reserved_;
  /// Its status word is the connection's.
  Host2DeviceSemaphoreDeviceHandle semaphore_;
  FifoDeviceHandle fifo_;
  /// One past the highest FIFO position with a finished flush on this connection, host memory.
  uint64_t* flushDonePos_;

  MSCCLPP_INLINE BasePortChannelDeviceHandle() = default;

  MSCCLPP_HOST_DEVICE_INLINE BasePortChannelDeviceHandle(SemaphoreId semaphoreId,
                                                         Host2DeviceSemaphoreDeviceHandle semaphore,
                                                         FifoDeviceHandle fifo, uint64_t* flushDonePos)
      : abi_(AbiHeader::of<BasePortChannelDeviceHandle>()),
        semaphoreId_(semaphoreId),
        reserved_(0),
        semaphore_(semaphore),
        fifo_(fifo),
        flushDonePos_(flushDonePos) {}

  /// Starts a write from the source memory to the peer's destination memory.
  MSCCLPP_DEVICE_INLINE Status put(MemoryId dstId, uint64_t dstOffset, MemoryId srcId, uint64_t srcOffset,
                                   uint64_t size) {
    return push({TriggerPut, dstId, dstOffset, srcId, srcOffset, size, semaphoreId_});
  }

  /// The same with one offset for both.
  MSCCLPP_DEVICE_INLINE Status put(MemoryId dstId, MemoryId srcId, uint64_t offset, uint64_t size) {
    return put(dstId, offset, srcId, offset, size);
  }

  /// Adds one to the peer's semaphore, after all earlier writes of the connection are visible there.
  MSCCLPP_DEVICE_INLINE Status signal() { return push({TriggerSignal, 0, 0, 0, 0, 0, semaphoreId_}); }

  /// put(), then signal().
  MSCCLPP_DEVICE_INLINE Status putWithSignal(MemoryId dstId, uint64_t dstOffset, MemoryId srcId, uint64_t srcOffset,
                                             uint64_t size) {
    return push({TriggerPutWithSignal, dstId, dstOffset, srcId, srcOffset, size, semaphoreId_});
  }

  /// The same with one offset for both.
  MSCCLPP_DEVICE_INLINE Status putWithSignal(MemoryId dstId, MemoryId srcId, uint64_t offset, uint64_t size) {
    return putWithSignal(dstId, offset, srcId, offset, size);
  }

  /// put(), then signal(), then flush().
  MSCCLPP_DEVICE_INLINE Status putWithSignalAndFlush(MemoryId dstId, uint64_t dstOffset, MemoryId srcId,
                                                     uint64_t srcOffset, uint64_t size, int64_t maxSpinCount = -1) {
    return pushAndWait({TriggerPutWithSignalAndFlush, dstId, dstOffset, srcId, srcOffset, size, semaphoreId_},
                       maxSpinCount);
  }

  /// The same with one offset for both.
  MSCCLPP_DEVICE_INLINE Status putWithSignalAndFlush(MemoryId dstId, MemoryId srcId, uint64_t offset, uint64_t size,
                                                     int64_t maxSpinCount = -1) {
    return putWithSignalAndFlush(dstId, offset, srcId, offset, size, maxSpinCount);
  }

  /// Waits until all that was pushed before on this connection is complete: source memory may be
  /// written again, the peer's side has taken writes, signals and sums. Channels that share a
  /// connection share this. It says nothing of what the peer's kernel has done.
  MSCCLPP_DEVICE_INLINE Status flush(int64_t maxSpinCount = -1) {
    return pushAndWait({TriggerFlush, 0, 0, 0, 0, 0, semaphoreId_}, maxSpinCount);
  }

  /// Adds `value`, modulo 2^64, to the aligned 64-bit word at an offset of the peer's memory.
  MSCCLPP_DEVICE_INLINE Status accumulate(MemoryId dstId, uint64_t dstOffset, int64_t value) {
    // The operand takes the whole first word, where other triggers have offset and size.
    const uint64_t operand = static_cast<uint64_t>(value);
    return push({TriggerAccumulate, dstId, dstOffset, 0, operand >> TriggerBitsSize,
                 operand & ((1ull << TriggerBitsSize) - 1), semaphoreId_});
  }

  /// Consumes a signal of the peer if one is there.
  MSCCLPP_DEVICE_INLINE bool poll() { return semaphore_.poll(); }

  /// Waits for a signal of the peer and consumes it. What the peer's puts before it wrote is visible
  /// then. Ends with Aborted when the channel's proxy has stopped and no signal is there.
  MSCCLPP_DEVICE_INLINE Status wait(int64_t maxSpinCount = -1) {
    return detail::waitUntil([&] { return semaphore_.poll(); }, semaphore_.status, fifo_.status, maxSpinCount);
  }

  /// Whether host and device were built with the same layout.
  MSCCLPP_HOST_DEVICE_INLINE bool compatible() const {
    return abi_.is<BasePortChannelDeviceHandle>() && semaphore_.compatible() && fifo_.compatible();
  }

 private:
  MSCCLPP_DEVICE_INLINE Status push(ProxyTrigger trigger) {
    uint64_t position;
    return post(trigger, position, -1);
  }

  MSCCLPP_DEVICE_INLINE Status post(ProxyTrigger trigger, uint64_t& position, int64_t maxSpinCount) {
    if (!trigger.valid()) return Status::InvalidArgument;
    return fifo_.post(trigger, position, maxSpinCount);
  }

  /// Each caller waits for the position of its own trigger, so that several may flush at once.
  MSCCLPP_DEVICE_INLINE Status pushAndWait(ProxyTrigger trigger, int64_t maxSpinCount) {
    uint64_t position;
    const Status pushed = post(trigger, position, maxSpinCount);
    if (pushed != Status::Ok) return pushed;
    const auto flushed = [&] {
      return atomicLoad<uint64_t, scopeSystem>(flushDonePos_, memoryOrderAcquire) > position;
    };
    return detail::waitUntil(flushed, semaphore_.status, fifo_.status, maxSpinCount);
  }
};

/// A channel bound to its destination and source memory; twin of `abi::PortChannelDeviceHandle`.
struct PortChannelDeviceHandle : public BasePortChannelDeviceHandle {
  MemoryId dst_;
  MemoryId src_;

  MSCCLPP_INLINE PortChannelDeviceHandle() = default;

  MSCCLPP_HOST_DEVICE_INLINE PortChannelDeviceHandle(SemaphoreId semaphoreId,
                                                     Host2DeviceSemaphoreDeviceHandle semaphore, FifoDeviceHandle fifo,
                                                     MemoryId dst, MemoryId src, uint64_t* flushDonePos)
      : BasePortChannelDeviceHandle(semaphoreId, semaphore, fifo, flushDonePos), dst_(dst), src_(src) {
    abi_ = AbiHeader::of<PortChannelDeviceHandle>();
  }

  MSCCLPP_DEVICE_INLINE Status put(uint64_t dstOffset, uint64_t srcOffset, uint64_t size) {
    return BasePortChannelDeviceHandle::put(dst_, dstOffset, src_, srcOffset, size);
  }

  MSCCLPP_DEVICE_INLINE Status put(uint64_t offset, uint64_t size) { return put(offset, offset, size); }

  MSCCLPP_DEVICE_INLINE Status putWithSignal(uint64_t dstOffset, uint64_t srcOffset, uint64_t size) {
    return BasePortChannelDeviceHandle::putWithSignal(dst_, dstOffset, src_, srcOffset, size);
  }

  MSCCLPP_DEVICE_INLINE Status putWithSignal(uint64_t offset, uint64_t size) {
    return putWithSignal(offset, offset, size);
  }

  MSCCLPP_DEVICE_INLINE Status putWithSignalAndFlush(uint64_t dstOffset, uint64_t srcOffset, uint64_t size,
                                                     int64_t maxSpinCount = -1) {
    return BasePortChannelDeviceHandle::putWithSignalAndFlush(dst_, dstOffset, src_, srcOffset, size, maxSpinCount);
  }

  MSCCLPP_DEVICE_INLINE Status putWithSignalAndFlush(uint64_t offset, uint64_t size) {
    return putWithSignalAndFlush(offset, offset, size);
  }

  MSCCLPP_DEVICE_INLINE Status accumulate(uint64_t dstOffset, int64_t value) {
    return BasePortChannelDeviceHandle::accumulate(dst_, dstOffset, value);
  }

  MSCCLPP_HOST_DEVICE_INLINE bool compatible() const {
    return abi_.is<PortChannelDeviceHandle>() && semaphore_.compatible() && fifo_.compatible();
  }
};

static_assert(sizeof(BasePortChannelDeviceHandle) == 128, "the mirror in Rust has this layout");
static_assert(sizeof(PortChannelDeviceHandle) == 136, "the mirror in Rust has this layout");

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_PORT_CHANNEL_DEVICE_HPP_
