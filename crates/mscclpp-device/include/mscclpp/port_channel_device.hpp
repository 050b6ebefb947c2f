// SPDX-License-Identifier: MIT
// The channel: one-sided writes, reads, signals and flushes to one peer.
#ifndef MSCCLPP_PORT_CHANNEL_DEVICE_HPP_
#define MSCCLPP_PORT_CHANNEL_DEVICE_HPP_

#include <mscclpp/fifo_device.hpp>
#include <mscclpp/queue_channel_device.hpp>
#include <mscclpp/semaphore_device.hpp>

namespace mscclpp {
inline namespace MSCCLPP_MODE {

using SemaphoreId = uint32_t;
using MemoryId = uint32_t;

/// Who carries out a channel's calls; twin of `abi::Backend`. The same for all threads of a kernel.
enum class Backend : uint32_t {
  Proxy = 0,  ///< a host thread: calls push triggers
  Queue = 1,  ///< the caller: calls post work requests to the NIC's send queue
};

/// A channel whose calls name memory ids; twin of `abi::BasePortChannelDeviceHandle`. Offsets and
/// sizes are bytes, on the proxy each below 4 GiB. All calls may be made by any number of threads,
/// but for posts to an exclusive queue (QueueForm), which one thread at a time makes.
///
/// Operations of one connection are executed in the order in which they were posted. A call
/// publishes what the calling thread wrote before it, and what it knows others to have written
/// (behind a block barrier, say). All return a status: Ok, the sticky error of the proxy's FIFO or
/// of the queue, or InvalidArgument or Unsupported, in which cases nothing was posted. A post through the
/// proxy to a peer that is dead is Ok all the same, unless it had to wait for room: then it returns the
/// connection's error. flush() and wait() always do.
///
/// A post to a shared queue that waits for room does not end when the channel's service stops: see
/// QueueDeviceHandle::post().
///
/// `maxSpinCount` is a budget of looks; negative, the default, is no limit. It bounds each of a
/// call's waits (for room, for completion). When it is used up the call returns Timeout, and never
/// Ok before completion.
struct BasePortChannelDeviceHandle {
  AbiHeader abi_;
  SemaphoreId semaphoreId_;
  Backend backend_;
  /// Its status word is the connection's.
  Host2DeviceSemaphoreDeviceHandle semaphore_;
  /// On a queue only its status word is used.
  FifoDeviceHandle fifo_;
  /// One past the highest FIFO position with a finished flush on this connection, host memory.
  uint64_t* flushDonePos_;
  QueueChannel queue_;

  MSCCLPP_INLINE BasePortChannelDeviceHandle() = default;

  /// A channel of the proxy.
  MSCCLPP_HOST_DEVICE_INLINE BasePortChannelDeviceHandle(SemaphoreId semaphoreId,
                                                         Host2DeviceSemaphoreDeviceHandle semaphore,
                                                         FifoDeviceHandle fifo, uint64_t* flushDonePos)
      : abi_(AbiHeader::of<BasePortChannelDeviceHandle>()),
        semaphoreId_(semaphoreId),
        backend_(Backend::Proxy),
        semaphore_(semaphore),
        fifo_(fifo),
        flushDonePos_(flushDonePos),
        queue_{} {}

  /// Starts a write from the source memory to the peer's destination memory.
  MSCCLPP_DEVICE_INLINE Status put(MemoryId dstId, uint64_t dstOffset, MemoryId srcId, uint64_t srcOffset,
                                   uint64_t size) {
    if (onQueue()) return postPut(queue_.find(dstId), dstOffset, queue_.find(srcId), srcOffset, size, false);
    return push({TriggerPut, dstId, dstOffset, srcId, srcOffset, size, semaphoreId_});
  }

  /// The same with one offset for both.
  MSCCLPP_DEVICE_INLINE Status put(MemoryId dstId, MemoryId srcId, uint64_t offset, uint64_t size) {
    return put(dstId, offset, srcId, offset, size);
  }

  /// Starts a read from the peer's memory to local memory. flush() tells that it is complete. Only
  /// on a queue; else Unsupported.
  MSCCLPP_DEVICE_INLINE Status get(MemoryId remoteId, uint64_t remoteOffset, MemoryId localId, uint64_t localOffset,
                                   uint64_t size) {
    if (!onQueue()) return Status::Unsupported;
    MSCCLPP_TRACE_SPAN(trace::Get, semaphoreId_)
    return queue_.get(queue_.find(remoteId), remoteOffset, queue_.find(localId), localOffset, size, watch());
  }

  /// Adds one to the peer's semaphore, after all earlier writes of the connection are visible there.
  MSCCLPP_DEVICE_INLINE Status signal() {
    if (onQueue()) return MSCCLPP_TRACED_SPAN(Signal, semaphoreId_, queue_.signal(watch()));
    return push({TriggerSignal, 0, 0, 0, 0, 0, semaphoreId_});
  }

  /// put(), then signal().
  MSCCLPP_DEVICE_INLINE Status putWithSignal(MemoryId dstId, uint64_t dstOffset, MemoryId srcId, uint64_t srcOffset,
                                             uint64_t size) {
    if (onQueue()) return postPut(queue_.find(dstId), dstOffset, queue_.find(srcId), srcOffset, size, true);
    return push({TriggerPutWithSignal, dstId, dstOffset, srcId, srcOffset, size, semaphoreId_});
  }

  /// The same with one offset for both.
  MSCCLPP_DEVICE_INLINE Status putWithSignal(MemoryId dstId, MemoryId srcId, uint64_t offset, uint64_t size) {
    return putWithSignal(dstId, offset, srcId, offset, size);
  }

  /// put(), then signal(), then flush().
  MSCCLPP_DEVICE_INLINE Status putWithSignalAndFlush(MemoryId dstId, uint64_t dstOffset, MemoryId srcId,
                                                     uint64_t srcOffset, uint64_t size, int64_t maxSpinCount = -1) {
    if (onQueue()) {
      return postAndFlush(queue_.find(dstId), dstOffset, queue_.find(srcId), srcOffset, size, maxSpinCount);
    }
    return pushAndWait({TriggerPutWithSignalAndFlush, dstId, dstOffset, srcId, srcOffset, size, semaphoreId_},
                       maxSpinCount);
  }

  /// The same with one offset for both.
  MSCCLPP_DEVICE_INLINE Status putWithSignalAndFlush(MemoryId dstId, MemoryId srcId, uint64_t offset, uint64_t size,
                                                     int64_t maxSpinCount = -1) {
    return putWithSignalAndFlush(dstId, offset, srcId, offset, size, maxSpinCount);
  }

  /// Waits until all that was posted before on this connection is complete: source memory may be
  /// written again, the peer's side has taken writes, signals and sums, and what was read is there.
  /// Channels that share a connection share this. It says nothing of what the peer's kernel has
  /// done.
  MSCCLPP_DEVICE_INLINE Status flush(int64_t maxSpinCount = -1) {
    if (onQueue()) return MSCCLPP_TRACED_SPAN(Flush, semaphoreId_, queue_.flush(maxSpinCount, watch()));
    return pushAndWait({TriggerFlush, 0, 0, 0, 0, 0, semaphoreId_}, maxSpinCount);
  }

  /// Adds `value`, modulo 2^64, to the aligned 64-bit word at an offset of the peer's memory. On a
  /// queue whose signals are writes there are no atomics: Unsupported.
  MSCCLPP_DEVICE_INLINE Status accumulate(MemoryId dstId, uint64_t dstOffset, int64_t value) {
    if (onQueue()) return MSCCLPP_TRACED_SPAN(Accumulate, semaphoreId_,
                                              queue_.accumulate(queue_.find(dstId), dstOffset, value, watch()));
    // The operand takes the whole first word, where other triggers have offset and size.
    const uint64_t operand = static_cast<uint64_t>(value);
    return push({TriggerAccumulate, dstId, dstOffset, 0, operand >> TriggerBitsSize,
                 operand & ((1ull << TriggerBitsSize) - 1), semaphoreId_});
  }

  /// Consumes a signal of the peer if one is there.
  MSCCLPP_DEVICE_INLINE bool poll() { return semaphore_.poll(); }

  /// Waits for a signal of the peer and consumes it. What the peer's puts before it wrote is visible
  /// then. Ends with Aborted when the channel's service has stopped and no signal is there, and with
  /// QueueError when the channel's queue has failed.
  MSCCLPP_DEVICE_INLINE Status wait(int64_t maxSpinCount = -1) {
    MSCCLPP_TRACE_SPAN(trace::Wait, semaphoreId_)
    const auto arrived = [&] { return semaphore_.poll(); };
    if (onQueue()) return queue_.queue.waitUntil(arrived, maxSpinCount, watch());
    return detail::waitUntil(arrived, semaphore_.status, fifo_.status, maxSpinCount);
  }

  /// Whether host and device were built with the same layout.
  MSCCLPP_HOST_DEVICE_INLINE bool compatible() const {
    return abi_.is<BasePortChannelDeviceHandle>() && partsCompatible();
  }

 protected:
  MSCCLPP_HOST_DEVICE_INLINE bool onQueue() const { return backend_ == Backend::Queue; }

  MSCCLPP_DEVICE_INLINE QueueWatch watch() const { return {semaphore_.status, fifo_.status}; }

  MSCCLPP_HOST_DEVICE_INLINE bool partsCompatible() const {
    return semaphore_.compatible() && fifo_.compatible() && (!onQueue() || queue_.queue.compatible());
  }

  MSCCLPP_DEVICE_INLINE Status postPut(const QueueMemory& dst, uint64_t dstOffset, const QueueMemory& src,
                                       uint64_t srcOffset, uint64_t size, bool withSignal) {
    MSCCLPP_TRACE_SPAN(withSignal ? trace::PutWithSignal : trace::Put, semaphoreId_)
    uint64_t ticket;
    return queue_.put(dst, dstOffset, src, srcOffset, size, withSignal, ticket, -1, watch());
  }

  /// Each caller waits for its own ticket, so that several may flush at once.
  MSCCLPP_DEVICE_INLINE Status postAndFlush(const QueueMemory& dst, uint64_t dstOffset, const QueueMemory& src,
                                            uint64_t srcOffset, uint64_t size, int64_t maxSpinCount) {
    MSCCLPP_TRACE_SPAN(trace::PutWithSignalAndFlush, semaphoreId_)
    uint64_t ticket;
    const Status posted = queue_.put(dst, dstOffset, src, srcOffset, size, true, ticket, maxSpinCount, watch());
    return posted == Status::Ok ? queue_.queue.sync(ticket, maxSpinCount, watch()) : posted;
  }

 private:
  MSCCLPP_DEVICE_INLINE Status push(ProxyTrigger trigger) {
    MSCCLPP_TRACE_SPAN(trigger.fields.type, semaphoreId_)
    uint64_t position;
    return post(trigger, position, -1);
  }

  MSCCLPP_DEVICE_INLINE Status post(ProxyTrigger trigger, uint64_t& position, int64_t maxSpinCount) {
    if (!trigger.valid()) return Status::InvalidArgument;
    return fifo_.post(trigger, position, maxSpinCount, semaphore_.status);
  }

  /// Each caller waits for the position of its own trigger, so that several may flush at once.
  MSCCLPP_DEVICE_INLINE Status pushAndWait(ProxyTrigger trigger, int64_t maxSpinCount) {
    MSCCLPP_TRACE_SPAN(trigger.fields.type, semaphoreId_)
    uint64_t position;
    const Status pushed = post(trigger, position, maxSpinCount);
    if (pushed != Status::Ok) return pushed;
    const auto flushed = [&] {
      return atomicLoad<uint64_t, scopeSystem>(flushDonePos_, memoryOrderAcquire) > position;
    };
    return MSCCLPP_TRACED_OK(Flushed, MSCCLPP_TRACE_OBJECT(fifo_.triggers), position,
                             detail::waitUntil(flushed, semaphore_.status, fifo_.status, maxSpinCount));
  }
};

/// A channel bound to its destination and source memory; twin of `abi::PortChannelDeviceHandle`. On
/// a queue nothing is looked up: the memories are part of the handle.
struct PortChannelDeviceHandle : public BasePortChannelDeviceHandle {
  MemoryId dst_;
  MemoryId src_;
  QueueMemory dstMemory_;
  QueueMemory srcMemory_;

  MSCCLPP_INLINE PortChannelDeviceHandle() = default;

  /// A channel of the proxy.
  MSCCLPP_HOST_DEVICE_INLINE PortChannelDeviceHandle(SemaphoreId semaphoreId,
                                                     Host2DeviceSemaphoreDeviceHandle semaphore, FifoDeviceHandle fifo,
                                                     MemoryId dst, MemoryId src, uint64_t* flushDonePos)
      : BasePortChannelDeviceHandle(semaphoreId, semaphore, fifo, flushDonePos),
        dst_(dst),
        src_(src),
        dstMemory_{},
        srcMemory_{} {
    abi_ = AbiHeader::of<PortChannelDeviceHandle>();
  }

  MSCCLPP_DEVICE_INLINE Status put(uint64_t dstOffset, uint64_t srcOffset, uint64_t size) {
    if (onQueue()) return postPut(dstMemory_, dstOffset, srcMemory_, srcOffset, size, false);
    return BasePortChannelDeviceHandle::put(dst_, dstOffset, src_, srcOffset, size);
  }

  MSCCLPP_DEVICE_INLINE Status put(uint64_t offset, uint64_t size) { return put(offset, offset, size); }

  /// Reads from the destination memory, which is the peer's, into the source memory.
  MSCCLPP_DEVICE_INLINE Status get(uint64_t remoteOffset, uint64_t localOffset, uint64_t size) {
    if (!onQueue()) return Status::Unsupported;
    MSCCLPP_TRACE_SPAN(trace::Get, semaphoreId_)
    return queue_.get(dstMemory_, remoteOffset, srcMemory_, localOffset, size, watch());
  }

  MSCCLPP_DEVICE_INLINE Status get(uint64_t offset, uint64_t size) { return get(offset, offset, size); }

  MSCCLPP_DEVICE_INLINE Status putWithSignal(uint64_t dstOffset, uint64_t srcOffset, uint64_t size) {
    if (onQueue()) return postPut(dstMemory_, dstOffset, srcMemory_, srcOffset, size, true);
    return BasePortChannelDeviceHandle::putWithSignal(dst_, dstOffset, src_, srcOffset, size);
  }

  MSCCLPP_DEVICE_INLINE Status putWithSignal(uint64_t offset, uint64_t size) {
    return putWithSignal(offset, offset, size);
  }

  MSCCLPP_DEVICE_INLINE Status putWithSignalAndFlush(uint64_t dstOffset, uint64_t srcOffset, uint64_t size,
                                                     int64_t maxSpinCount = -1) {
    if (onQueue()) return postAndFlush(dstMemory_, dstOffset, srcMemory_, srcOffset, size, maxSpinCount);
    return BasePortChannelDeviceHandle::putWithSignalAndFlush(dst_, dstOffset, src_, srcOffset, size, maxSpinCount);
  }

  MSCCLPP_DEVICE_INLINE Status putWithSignalAndFlush(uint64_t offset, uint64_t size) {
    return putWithSignalAndFlush(offset, offset, size);
  }

  MSCCLPP_DEVICE_INLINE Status accumulate(uint64_t dstOffset, int64_t value) {
    if (onQueue()) return MSCCLPP_TRACED_SPAN(Accumulate, semaphoreId_,
                                              queue_.accumulate(dstMemory_, dstOffset, value, watch()));
    return BasePortChannelDeviceHandle::accumulate(dst_, dstOffset, value);
  }

  MSCCLPP_HOST_DEVICE_INLINE bool compatible() const { return abi_.is<PortChannelDeviceHandle>() && partsCompatible(); }
};

static_assert(sizeof(BasePortChannelDeviceHandle) == 272, "the mirror in Rust has this layout");
static_assert(sizeof(PortChannelDeviceHandle) == 328, "the mirror in Rust has this layout");

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_PORT_CHANNEL_DEVICE_HPP_
