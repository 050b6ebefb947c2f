// SPDX-License-Identifier: MIT
// The 16-byte trigger that a kernel pushes and the proxy executes; twin of `abi::ProxyTrigger`.
#ifndef MSCCLPP_TRIGGER_HPP_
#define MSCCLPP_TRIGGER_HPP_

#include <mscclpp/device.hpp>

namespace mscclpp {
inline namespace MSCCLPP_MODE {

/// Opcodes, to be compared for equality. 0 and 5 are no operation.
using TriggerType = uint64_t;
constexpr TriggerType TriggerNone = 0;
constexpr TriggerType TriggerPut = 1;
constexpr TriggerType TriggerSignal = 2;
constexpr TriggerType TriggerPutWithSignal = 3;
constexpr TriggerType TriggerFlush = 4;
constexpr TriggerType TriggerAccumulate = 6;
constexpr TriggerType TriggerPutWithSignalAndFlush = 7;

/// The older names, from when the opcode was a set of flags; the numbers are the same.
constexpr TriggerType TriggerData = 0x1;
constexpr TriggerType TriggerFlag = 0x2;
constexpr TriggerType TriggerSync = 0x4;

constexpr unsigned int TriggerBitsSize = 32;
constexpr unsigned int TriggerBitsOffset = 32;
constexpr unsigned int TriggerBitsMemoryId = 9;
constexpr unsigned int TriggerBitsType = 3;
constexpr unsigned int TriggerBitsSemaphoreId = 10;
constexpr unsigned int TriggerBitsFifoReserved = 1;

/// Two little-endian words. The top bit of `snd` is the FIFO's commit bit.
union alignas(16) ProxyTrigger {
  struct {
    uint64_t fst;
    uint64_t snd;
  };
  struct {
    uint64_t size : TriggerBitsSize;
    uint64_t srcOffset : TriggerBitsOffset;
    uint64_t dstOffset : TriggerBitsOffset;
    uint64_t srcMemoryId : TriggerBitsMemoryId;
    uint64_t dstMemoryId : TriggerBitsMemoryId;
    uint64_t type : TriggerBitsType;
    uint64_t semaphoreId : TriggerBitsSemaphoreId;
    uint64_t reserved : TriggerBitsFifoReserved;
  } fields;

  MSCCLPP_INLINE ProxyTrigger() = default;

  /// Ids are table indices, offsets and `bytes` are bytes. Values that do not all fit make a
  /// trigger of type TriggerNone, which the proxy refuses for that semaphore: nothing is cut off.
  MSCCLPP_DEVICE_INLINE ProxyTrigger(TriggerType type, uint32_t dstId, uint64_t dstOffset, uint32_t srcId,
                                     uint64_t srcOffset, uint64_t bytes, uint32_t semaphoreId)
      : ProxyTrigger(encode(type, dstId, dstOffset, srcId, srcOffset, bytes, semaphoreId)) {}

  /// Whether the trigger asks for an operation; false if made from values that do not fit.
  MSCCLPP_DEVICE_INLINE bool valid() const { return ((snd >> shiftType) & maskType) != TriggerNone; }

 private:
  static constexpr unsigned int shiftSrcId = TriggerBitsOffset;
  static constexpr unsigned int shiftDstId = shiftSrcId + TriggerBitsMemoryId;
  static constexpr unsigned int shiftType = shiftDstId + TriggerBitsMemoryId;
  static constexpr unsigned int shiftSemaphoreId = shiftType + TriggerBitsType;
  static constexpr uint64_t maskType = (1ull << TriggerBitsType) - 1;

  static MSCCLPP_DEVICE_INLINE ProxyTrigger encode(TriggerType type, uint64_t dstId, uint64_t dstOffset,
                                                   uint64_t srcId, uint64_t srcOffset, uint64_t bytes,
                                                   uint64_t semaphoreId) {
    const uint64_t tooLarge = (type >> TriggerBitsType) | (dstId >> TriggerBitsMemoryId) |
                              (dstOffset >> TriggerBitsOffset) | (srcId >> TriggerBitsMemoryId) |
                              (srcOffset >> TriggerBitsOffset) | (bytes >> TriggerBitsSize) |
                              (semaphoreId >> TriggerBitsSemaphoreId);
    ProxyTrigger trigger;
    trigger.fst = 0;
    trigger.snd = 0;
    if ((semaphoreId >> TriggerBitsSemaphoreId) == 0) trigger.snd = semaphoreId << shiftSemaphoreId;
    if (tooLarge != 0) return trigger;
    trigger.fst = bytes | (srcOffset << TriggerBitsSize);
    trigger.snd |= dstOffset | (srcId << shiftSrcId) | (dstId << shiftDstId) | (type << shiftType);
    return trigger;
  }
};

static_assert(sizeof(ProxyTrigger) == 16 && alignof(ProxyTrigger) == 16, "a slot is two words");

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_TRIGGER_HPP_
