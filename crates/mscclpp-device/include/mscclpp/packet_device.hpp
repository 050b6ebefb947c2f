// SPDX-License-Identifier: MIT
// Low-latency packets: data and flag in one 8-byte store, so that a reader that finds the flag
// finds the data, with no fence and no signal. A NIC keeps 8 bytes whole too.
#ifndef MSCCLPP_PACKET_DEVICE_HPP_
#define MSCCLPP_PACKET_DEVICE_HPP_

#include <mscclpp/memory_device.hpp>
#include <mscclpp/status.hpp>
#include <mscclpp/wait_device.hpp>

namespace mscclpp {
inline namespace MSCCLPP_MODE {

/// 8 bytes of data: two words of data and flag each. The halves may arrive one by one.
union alignas(16) LL16Packet {
  struct {
    uint32_t data1;
    uint32_t flag1;
    uint32_t data2;
    uint32_t flag2;
  };
  ulonglong2 raw_;

  using Payload = uint2;

  MSCCLPP_INLINE LL16Packet() = default;

  MSCCLPP_DEVICE_INLINE LL16Packet(uint2 val, uint32_t flag) : data1(val.x), flag1(flag), data2(val.y), flag2(flag) {}

  MSCCLPP_DEVICE_INLINE void write(uint32_t val1, uint32_t val2, uint32_t flag) {
    const uint64_t high = static_cast<uint64_t>(flag) << 32;
    memory::storePair(words(), high | val1, high | val2);
  }

  MSCCLPP_DEVICE_INLINE void write(uint64_t val, uint32_t flag) {
    write(static_cast<uint32_t>(val), static_cast<uint32_t>(val >> 32), flag);
  }

  MSCCLPP_DEVICE_INLINE void write(uint2 val, uint32_t flag) { write(val.x, val.y, flag); }

  /// Reads once. Returns true if the packet does NOT carry `flag` (yet); `data` is right otherwise.
  MSCCLPP_DEVICE_INLINE bool readOnce(uint32_t flag, uint2& data) const {
    uint64_t first, second;
    memory::loadPair(words(), first, second);
    data.x = static_cast<uint32_t>(first);
    data.y = static_cast<uint32_t>(second);
    return static_cast<uint32_t>(first >> 32) != flag || static_cast<uint32_t>(second >> 32) != flag;
  }

  /// Waits for the flag, without limit, and returns the data.
  MSCCLPP_DEVICE_INLINE uint2 read(uint32_t flag) const {
    uint2 data;
    (void)read(flag, data);
    return data;
  }

  /// Waits for the flag. `data` is set if it returns Ok. Ends also by the budget (negative is none)
  /// and by the error of the connection that brings the packet, if its status word is given.
  MSCCLPP_DEVICE_INLINE Status read(uint32_t flag, uint2& data, int64_t maxSpinCount = -1,
                                    const StatusWord* status = nullptr) const {
    return detail::waitUntil([&] { return !readOnce(flag, data); }, status, nullptr, maxSpinCount);
  }

  MSCCLPP_DEVICE_INLINE void clear() { memory::storePair(words(), 0, 0); }

 private:
  MSCCLPP_DEVICE_INLINE uint64_t* words() { return reinterpret_cast<uint64_t*>(&raw_); }
  MSCCLPP_DEVICE_INLINE const uint64_t* words() const { return reinterpret_cast<const uint64_t*>(&raw_); }
};

/// 4 bytes of data and the flag.
union alignas(8) LL8Packet {
  struct {
    uint32_t data;
    uint32_t flag;
  };
  uint64_t raw_;

  using Payload = uint32_t;

  MSCCLPP_INLINE LL8Packet() = default;

  MSCCLPP_DEVICE_INLINE LL8Packet(uint32_t val, uint32_t flag) : data(val), flag(flag) {}

  MSCCLPP_DEVICE_INLINE void write(uint32_t val, uint32_t flag) {
    memory::store<scopeSystem>(&raw_, static_cast<uint64_t>(flag) << 32 | val, memoryOrderRelaxed);
  }

  /// Reads once. Returns true if the packet does NOT carry `flag` (yet); `data` is right otherwise.
  MSCCLPP_DEVICE_INLINE bool readOnce(uint32_t flag, uint32_t& data) const {
    const uint64_t word = memory::load<scopeSystem>(&raw_, memoryOrderRelaxed);
    data = static_cast<uint32_t>(word);
    return static_cast<uint32_t>(word >> 32) != flag;
  }

  /// Waits for the flag, without limit, and returns the data.
  MSCCLPP_DEVICE_INLINE uint32_t read(uint32_t flag) const {
    uint32_t data = 0;
    (void)read(flag, data);
    return data;
  }

  /// As LL16Packet::read.
  MSCCLPP_DEVICE_INLINE Status read(uint32_t flag, uint32_t& data, int64_t maxSpinCount = -1,
                                    const StatusWord* status = nullptr) const {
    return detail::waitUntil([&] { return !readOnce(flag, data); }, status, nullptr, maxSpinCount);
  }

  MSCCLPP_DEVICE_INLINE void clear() { memory::store<scopeSystem>(&raw_, uint64_t{0}, memoryOrderRelaxed); }
};

using LLPacket = LL16Packet;

static_assert(sizeof(LL16Packet) == 16 && alignof(LL16Packet) == 16, "two 8-byte words");
static_assert(sizeof(LL8Packet) == 8 && alignof(LL8Packet) == 8, "one 8-byte word");

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_PACKET_DEVICE_HPP_
