// SPDX-License-Identifier: MIT
// How a work request looks in its slot of the send ring: mlx5 layouts, as `mlx5-queue` documents
// them. A request here is one 64-byte block; segments that its opcode does not use are not written.
#ifndef MSCCLPP_WORK_REQUEST_DEVICE_HPP_
#define MSCCLPP_WORK_REQUEST_DEVICE_HPP_

#include <mscclpp/memory_device.hpp>

namespace mscclpp {
inline namespace MSCCLPP_MODE {
namespace detail {

MSCCLPP_DEVICE_INLINE uint32_t bigEndian(uint32_t value) {
#if defined(MSCCLPP_DEVICE_CUDA)
  return __byte_perm(value, 0, 0x0123);
#else
  return __builtin_bswap32(value);
#endif
}

MSCCLPP_DEVICE_INLINE uint64_t bigEndian(uint64_t value) {
  return (static_cast<uint64_t>(bigEndian(static_cast<uint32_t>(value))) << 32) |
         bigEndian(static_cast<uint32_t>(value >> 32));
}

/// A word of two 4-byte fields, as they are stored.
MSCCLPP_DEVICE_INLINE uint64_t fields(uint32_t first, uint32_t second) {
  return first | (static_cast<uint64_t>(second) << 32);
}

constexpr uint32_t opcodeNop = 0x00;
constexpr uint32_t opcodeWrite = 0x08;
constexpr uint32_t opcodeRead = 0x10;
constexpr uint32_t opcodeFetchAdd = 0x12;

constexpr uint32_t blockBytes = 64;
/// Completion flag of the control segment: always (else only on error).
constexpr uint32_t completeAlways = 2u << 2;
constexpr uint32_t inlineData = 1u << 31;

/// Writes one request. Keys are as stored, big-endian. Nothing is ordered here.
struct WorkRequest {
  /// The slot.
  uint64_t* words;
  /// Number of the queue pair.
  uint32_t queue;
  /// Position of the request; the NIC compares its low 16 bits.
  uint64_t index;
  /// 0 or completeAlways.
  uint32_t completion;

  MSCCLPP_DEVICE_INLINE void nop() const { control(opcodeNop, 1); }

  /// A write of no bytes, which the peer acknowledges.
  MSCCLPP_DEVICE_INLINE void writeNothing() const {
    control(opcodeWrite, 2);
    remote(0, 0);
  }

  /// A write or a read: `opcode` says which.
  MSCCLPP_DEVICE_INLINE void transfer(uint32_t opcode, uint64_t remoteAddress, uint32_t remoteKey,
                                      uint64_t localAddress, uint32_t localKey, uint32_t bytes) const {
    control(opcode, 3);
    remote(remoteAddress, remoteKey);
    local(localAddress, localKey, bytes, 2);
  }

  /// A write of 8 bytes that the request itself carries, in this machine's byte order.
  MSCCLPP_DEVICE_INLINE void writeWord(uint64_t to, uint32_t toKey, uint64_t value) const {
    control(opcodeWrite, 3);
    remote(to, toKey);
    segment(2, fields(bigEndian(inlineData | 8u), static_cast<uint32_t>(value)), value >> 32);
  }

  /// Adds to a word in this machine's byte order; its old value lands at `result`.
  MSCCLPP_DEVICE_INLINE void fetchAdd(uint64_t to, uint32_t toKey, uint64_t operand, uint64_t result,
                                      uint32_t resultKey) const {
    control(opcodeFetchAdd, 4);
    remote(to, toKey);
    // The second half is the comparand of other atomics; GPUNetIO fills it too.
    segment(2, bigEndian(operand), bigEndian(operand));
    local(result, resultKey, 8, 3);
  }

 private:
  MSCCLPP_DEVICE_INLINE void segment(uint32_t number, uint64_t first, uint64_t second) const {
    memory::storePair(words + 2 * number, first, second);
  }

  MSCCLPP_DEVICE_INLINE void control(uint32_t opcode, uint32_t segments) const {
    const uint32_t position = static_cast<uint32_t>(index & 0xffff);
    segment(0, fields(bigEndian((position << 8) | opcode), bigEndian((queue << 8) | segments)),
            static_cast<uint64_t>(completion) << 24);
  }

  MSCCLPP_DEVICE_INLINE void remote(uint64_t address, uint32_t key) const {
    segment(1, bigEndian(address), fields(key, 0));
  }

  MSCCLPP_DEVICE_INLINE void local(uint64_t address, uint32_t key, uint32_t bytes, uint32_t number) const {
    segment(number, fields(bigEndian(bytes), key), bigEndian(address));
  }
};

/// What the doorbell register takes when requests before `end` are announced.
MSCCLPP_DEVICE_INLINE uint64_t doorbellValue(uint32_t queue, uint64_t end) {
  return fields(bigEndian(static_cast<uint32_t>(end & 0xffff) << 8), bigEndian(queue << 8));
}

/// What the doorbell record takes.
MSCCLPP_DEVICE_INLINE uint32_t recordValue(uint64_t end) { return bigEndian(static_cast<uint32_t>(end & 0xffff)); }

/// The 8 bytes of a completion entry that are stored last, with the owner bit.
struct CompletionWord {
  static constexpr uint32_t bytes = 64;
  static constexpr uint32_t offset = 56;
  static constexpr uint32_t success = 0x0;
  static constexpr uint32_t unwritten = 0xf;

  uint64_t word;

  MSCCLPP_DEVICE_INLINE uint32_t opcode() const { return static_cast<uint32_t>(word >> 60); }
  MSCCLPP_DEVICE_INLINE bool owner() const { return ((word >> 56) & 1) != 0; }
  /// Low 16 bits of the position of the request that it completes.
  MSCCLPP_DEVICE_INLINE uint16_t position() const { return static_cast<uint16_t>(bigEndian(static_cast<uint32_t>(word >> 32)) >> 16); }
  /// The request's opcode.
  MSCCLPP_DEVICE_INLINE uint32_t requestOpcode() const { return static_cast<uint32_t>(word & 0xff); }
};

}  // namespace detail
}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_WORK_REQUEST_DEVICE_HPP_
