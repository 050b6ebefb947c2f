// SPDX-License-Identifier: MIT
#include <mscclpp/copy_device.hpp>
#include <mscclpp/kernel.hpp>

using namespace mscclpp;

// Block 0 turns `origin` into packets, block 1 turns them into `result`; each only if it is there.
struct CopyArgs {
  void* packets;
  const void* origin;
  void* result;
  uint64_t bytes;
  uint64_t flag;
  uint64_t small;  // LL8Packet
  int64_t budget;
  const StatusWord* word;
  uint64_t* status;  // by thread of block 1
};

template <typename Packet>
static void copy(const CopyArgs& args) {
  const uint32_t flag = static_cast<uint32_t>(args.flag);
  if (blockIdx.x == 0) {
    if (args.origin == nullptr) return;
    copyToPackets<Packet>(args.packets, args.origin, args.bytes, threadIdx.x, blockDim.x, flag);
  } else {
    if (args.result == nullptr) return;
    args.status[threadIdx.x] = static_cast<uint64_t>(copyFromPackets<Packet>(
        args.result, args.packets, args.bytes, threadIdx.x, blockDim.x, flag, args.budget, args.word));
  }
}

MSCCLPP_KERNEL(packet_copy, CopyArgs) {
  if (args.small) {
    copy<LL8Packet>(args);
  } else {
    copy<LL16Packet>(args);
  }
}

// The forms of write and read on one packet.
struct FormsArgs {
  LL16Packet* wide;
  LL8Packet* narrow;
  uint64_t* results;
};

MSCCLPP_KERNEL(packet_forms, FormsArgs) {
  uint64_t* out = args.results;
  const auto both = [](uint2 data) { return static_cast<uint64_t>(data.y) << 32 | data.x; };
  args.wide->write(1u, 2u, 3u);
  *out++ = both(args.wide->read(3));
  args.wide->write(uint64_t{0x500000004}, 6);
  *out++ = both(args.wide->read(6));
  args.wide->write(make_uint2(7, 8), 9);
  uint2 data;
  *out++ = args.wide->readOnce(8, data);
  *out++ = args.wide->readOnce(9, data);
  *out++ = both(data);
  args.narrow->write(10, 11);
  *out++ = args.narrow->read(11);
  uint32_t word;
  *out++ = args.narrow->readOnce(12, word);
  args.wide->clear();
  args.narrow->clear();
  const LLPacket made(make_uint2(13, 14), 15);
  *out++ = made.flag1 == 15 && made.flag2 == 15 && made.data1 == 13 && made.data2 == 14;
}
