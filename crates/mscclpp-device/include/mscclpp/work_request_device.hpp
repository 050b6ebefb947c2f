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

/// One request, complete but for its place. Keys are as stored, big-endian. All that can be made
/// before its place is known is made then.
struct WorkRequest {
  /// A request without effect.
  static MSCCLPP_DEVICE_INLINE WorkRequest nop(uint32_t queue) { return WorkRequest(queue, opcodeNop, 1); }

  /// A write of no bytes, which the peer acknowledges.
  static MSCCLPP_DEVICE_INLINE WorkRequest writeNothing(uint32_t queue) {
    WorkRequest request(queue, opcodeWrite, 2);
    request.remote(0, 0);
    return request;
  }

  /// A write, or a read: `opcode` says which. No bytes are a request without effect.
  static MSCCLPP_DEVICE_INLINE WorkRequest transfer(uint32_t queue, uint32_t opcode, uint64_t remoteAddress,
                                                    uint32_t remoteKey, uint64_t localAddress, uint32_t localKey,
                                                    uint32_t bytes) {
    WorkRequest request(queue, bytes == 0 ? opcodeNop : opcode, bytes == 0 ? 1 : 3);
    request.remote(remoteAddress, remoteKey);
    request.local(2, localAddress, localKey, bytes);
    return request;
  }

  /// A write of 8 bytes that the request itself carries, in this machine's byte order.
  static MSCCLPP_DEVICE_INLINE WorkRequest writeWord(uint32_t queue, uint64_t to, uint32_t toKey, uint64_t value) {
    WorkRequest request(queue, opcodeWrite, 3);
    request.remote(to, toKey);
    request.segment(2, fields(bigEndian(inlineData | 8u), static_cast<uint32_t>(value)), value >> 32);
    return request;
  }

  /// Adds to a word in this machine's byte order; its old value lands at `result`.
  static MSCCLPP_DEVICE_INLINE WorkRequest fetchAdd(uint32_t queue, uint64_t to, uint32_t toKey, uint64_t operand,
                                                    uint64_t result, uint32_t resultKey) {
    WorkRequest request(queue, opcodeFetchAdd, 4);
    request.remote(to, toKey);
    // The second half is the comparand of other atomics; GPUNetIO fills it too.
    request.segment(2, bigEndian(operand), bigEndian(operand));
    request.local(3, result, resultKey, 8);
    return request;
  }

  /// Writes it to a slot. Nothing is ordered here.
  /// @param index position of the request; the NIC compares its low 16 bits
  /// @param completion 0 or completeAlways
  MSCCLPP_DEVICE_INLINE void store(uint64_t* slot, uint64_t index, uint32_t completion) const {
    const uint32_t position = static_cast<uint32_t>(index & 0xffff);
    memory::storePair(slot, fields(bigEndian((position << 8) | opcode_), queueAndSegments_),
                      static_cast<uint64_t>(completion) << 24);
    if (segments_ > 1) memory::storePair(slot + 2, words_[0], words_[1]);
    if (segments_ > 2) memory::storePair(slot + 4, words_[2], words_[3]);
    if (segments_ > 3) memory::storePair(slot + 6, words_[4], words_[5]);
  }

 private:
  MSCCLPP_DEVICE_INLINE WorkRequest(uint32_t queue, uint32_t opcode, uint32_t segments)
      : opcode_(opcode), segments_(segments), queueAndSegments_(bigEndian((queue << 8) | segments)), words_{} {}

  MSCCLPP_DEVICE_INLINE void segment(uint32_t number, uint64_t first, uint64_t second) {
    words_[2 * number - 2] = first;
    words_[2 * number - 1] = second;
  }

  MSCCLPP_DEVICE_INLINE void remote(uint64_t address, uint32_t key) {
    segment(1, bigEndian(address), fields(key, 0));
  }

  MSCCLPP_DEVICE_INLINE void local(uint32_t number, uint64_t address, uint32_t key, uint32_t bytes) {
    segment(number, fields(bigEndian(bytes), key), bigEndian(address));
  }

  uint32_t opcode_;
  uint32_t segments_;
  uint32_t queueAndSegments_;
  /// The segments behind the first, which is the control segment.
  uint64_t words_[6];
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
