// SPDX-License-Identifier: MIT
// Copies between plain memory and packets, shared by several threads.
#ifndef MSCCLPP_COPY_DEVICE_HPP_
#define MSCCLPP_COPY_DEVICE_HPP_

#include <mscclpp/packet_device.hpp>

namespace mscclpp {
inline namespace MSCCLPP_MODE {

/// Writes `originBytes` of plain memory as packets that carry `flag`. Thread `threadId` of
/// `numThreads` writes its share. Memory is aligned to, and `originBytes` a multiple of, the size
/// of the packet's payload (LL16Packet 8, LL8Packet 4).
template <typename PacketType = LL16Packet>
MSCCLPP_DEVICE_INLINE void copyToPackets(void* targetPtr, const void* originPtr, uint64_t originBytes,
                                         uint32_t threadId, uint32_t numThreads, uint32_t flag) {
  using Payload = typename PacketType::Payload;
  const Payload* origin = static_cast<const Payload*>(originPtr);
  PacketType* target = static_cast<PacketType*>(targetPtr);
  const uint64_t packets = originBytes / sizeof(Payload);
  for (uint64_t i = threadId; i < packets; i += numThreads) target[i].write(origin[i], flag);
}

/// Waits for the packets of one copyToPackets() and writes their data to plain memory; arguments
/// as there. Budget and status as LL16Packet::read, for each packet. If it does not return Ok, the
/// data of the packets before the one that it names by stopping there is written.
template <typename PacketType = LL16Packet>
MSCCLPP_DEVICE_INLINE Status copyFromPackets(void* originPtr, const void* targetPtr, uint64_t originBytes,
                                             uint32_t threadId, uint32_t numThreads, uint32_t flag,
                                             int64_t maxSpinCount = -1, const StatusWord* status = nullptr) {
  using Payload = typename PacketType::Payload;
  Payload* origin = static_cast<Payload*>(originPtr);
  const PacketType* target = static_cast<const PacketType*>(targetPtr);
  const uint64_t packets = originBytes / sizeof(Payload);
  for (uint64_t i = threadId; i < packets; i += numThreads) {
    Payload data;
    const Status arrived = target[i].read(flag, data, maxSpinCount, status);
    if (arrived != Status::Ok) return arrived;
    origin[i] = data;
  }
  return Status::Ok;
}

}  // namespace MSCCLPP_MODE
}  // namespace mscclpp

#endif  // MSCCLPP_COPY_DEVICE_HPP_
