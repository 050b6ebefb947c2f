// SPDX-License-Identifier: MIT
// Holds the public names, values, signatures and layouts. Compiles in each mode, also where there
// is no standard library.
#include <mscclpp/atomic_device.hpp>
#include <mscclpp/concurrency_device.hpp>
#include <mscclpp/copy_device.hpp>
#include <mscclpp/device.hpp>
#include <mscclpp/fifo_device.hpp>
#include <mscclpp/kernel.hpp>
#include <mscclpp/packet_device.hpp>
#include <mscclpp/port_channel.hpp>
#include <mscclpp/port_channel_device.hpp>
#include <mscclpp/queue_channel_device.hpp>
#include <mscclpp/queue_device.hpp>
#include <mscclpp/semaphore_device.hpp>

using namespace mscclpp;

template <typename A, typename B>
struct Same {
  static constexpr bool value = false;
};
template <typename A>
struct Same<A, A> {
  static constexpr bool value = true;
};
#define SAME(...) static_assert(Same<__VA_ARGS__>::value, "changed")
#define VALUE(name, value) static_assert(name == (value), "changed")
// The method exists with exactly this type, also where it is overloaded.
#define METHOD(Class, name, Return, ...) \
  SAME(decltype(static_cast<Return (Class::*)(__VA_ARGS__)>(&Class::name)), Return (Class::*)(__VA_ARGS__))
#define CONST_METHOD(Class, name, Return, ...) \
  SAME(decltype(static_cast<Return (Class::*)(__VA_ARGS__) const>(&Class::name)), Return (Class::*)(__VA_ARGS__) const)
// Where the compiler cannot tell (NVRTC of CUDA 12 has no offsetof), the sizes have to do.
#if defined(__CUDACC_RTC__) && __CUDACC_VER_MAJOR__ < 13
#define OFFSET(...) static_assert(true, "")
#else
#define OFFSET(Class, field, value) VALUE(__builtin_offsetof(Class, field), value)
#endif
#define FIELD(Class, name, Type) SAME(decltype(Class::name), Type)

// --- Statuses.
VALUE(static_cast<uint32_t>(Status::Ok), 0);
VALUE(static_cast<uint32_t>(Status::Timeout), 1);
VALUE(static_cast<uint32_t>(Status::QueueError), 2);
VALUE(static_cast<uint32_t>(Status::PeerDown), 3);
VALUE(static_cast<uint32_t>(Status::Aborted), 4);
VALUE(static_cast<uint32_t>(Status::InvalidArgument), 5);
VALUE(static_cast<uint32_t>(Status::Unsupported), 6);
VALUE(abiVersion, 3);
OFFSET(StatusWord, code, 0);
OFFSET(StatusWord, detail, 4);

// --- Triggers.
SAME(TriggerType, uint64_t);
VALUE(TriggerNone, 0);
VALUE(TriggerPut, 1);
VALUE(TriggerSignal, 2);
VALUE(TriggerPutWithSignal, 3);
VALUE(TriggerFlush, 4);
VALUE(TriggerAccumulate, 6);
VALUE(TriggerPutWithSignalAndFlush, 7);
VALUE(TriggerData, TriggerPut);
VALUE(TriggerFlag, TriggerSignal);
VALUE(TriggerSync, TriggerFlush);
VALUE((TriggerData | TriggerFlag | TriggerSync), TriggerPutWithSignalAndFlush);
VALUE(TriggerBitsSize, 32);
VALUE(TriggerBitsOffset, 32);
VALUE(TriggerBitsMemoryId, 9);
VALUE(TriggerBitsType, 3);
VALUE(TriggerBitsSemaphoreId, 10);
VALUE(TriggerBitsFifoReserved, 1);
VALUE(sizeof(ProxyTrigger), 16);
VALUE(alignof(ProxyTrigger), 16);
FIELD(ProxyTrigger, fst, uint64_t);
FIELD(ProxyTrigger, snd, uint64_t);

// --- FIFO.
METHOD(FifoDeviceHandle, push, uint64_t, ProxyTrigger, int64_t);
METHOD(FifoDeviceHandle, post, Status, ProxyTrigger, uint64_t&, int64_t, const StatusWord*);
METHOD(FifoDeviceHandle, poll, bool, uint64_t);
METHOD(FifoDeviceHandle, sync, Status, uint64_t, int64_t);
FIELD(FifoDeviceHandle, triggers, ProxyTrigger*);
FIELD(FifoDeviceHandle, head, uint64_t*);
FIELD(FifoDeviceHandle, tail, uint64_t*);
FIELD(FifoDeviceHandle, tailCache, uint64_t*);
FIELD(FifoDeviceHandle, size, int);
FIELD(FifoDeviceHandle, sizeMask, uint64_t);
FIELD(FifoDeviceHandle, sizeShift, uint64_t);
FIELD(FifoDeviceHandle, status, const StatusWord*);
OFFSET(FifoDeviceHandle, abi, 0);
OFFSET(FifoDeviceHandle, triggers, 8);
OFFSET(FifoDeviceHandle, head, 16);
OFFSET(FifoDeviceHandle, tail, 24);
OFFSET(FifoDeviceHandle, tailCache, 32);
OFFSET(FifoDeviceHandle, size, 40);
OFFSET(FifoDeviceHandle, sizeMask, 48);
OFFSET(FifoDeviceHandle, sizeShift, 56);
OFFSET(FifoDeviceHandle, status, 64);
VALUE(sizeof(FifoDeviceHandle), 72);

// --- Semaphore.
METHOD(Host2DeviceSemaphoreDeviceHandle, poll, bool);
METHOD(Host2DeviceSemaphoreDeviceHandle, wait, Status, int64_t);
METHOD(Host2DeviceSemaphoreDeviceHandle, loadExpectedInbound, uint64_t);
METHOD(Host2DeviceSemaphoreDeviceHandle, loadInbound, uint64_t);
FIELD(Host2DeviceSemaphoreDeviceHandle, inboundToken, uint64_t*);
FIELD(Host2DeviceSemaphoreDeviceHandle, expectedInboundToken, uint64_t*);
FIELD(Host2DeviceSemaphoreDeviceHandle, status, const StatusWord*);
OFFSET(Host2DeviceSemaphoreDeviceHandle, abi, 0);
OFFSET(Host2DeviceSemaphoreDeviceHandle, inboundToken, 8);
OFFSET(Host2DeviceSemaphoreDeviceHandle, expectedInboundToken, 16);
OFFSET(Host2DeviceSemaphoreDeviceHandle, status, 24);
VALUE(sizeof(Host2DeviceSemaphoreDeviceHandle), 32);

// --- Send queues.
VALUE(static_cast<uint32_t>(QueueForm::Exclusive), 0);
VALUE(static_cast<uint32_t>(QueueForm::Shared), 1);
VALUE(static_cast<uint32_t>(SignalMode::Atomic), 0);
VALUE(static_cast<uint32_t>(SignalMode::InlineWrite), 1);
VALUE(QueueMemory::local, 1);
VALUE(QueueMemory::remote, 2);
VALUE(QueueChannel::maxMemories, 512);
CONST_METHOD(QueueMemory, holds, bool, uint32_t, uint64_t, uint64_t);
METHOD(QueueDeviceHandle, poll, bool, uint64_t);
METHOD(QueueDeviceHandle, sync, Status, uint64_t, int64_t, QueueWatch);
METHOD(QueueDeviceHandle, ticket, uint64_t);
METHOD(QueueDeviceHandle, error, Status);
CONST_METHOD(QueueDeviceHandle, compatible, bool);
FIELD(QueueDeviceHandle, sendRing, uint64_t*);
FIELD(QueueDeviceHandle, record, uint32_t*);
FIELD(QueueDeviceHandle, doorbell, uint64_t*);
FIELD(QueueDeviceHandle, completions, const uint64_t*);
FIELD(QueueDeviceHandle, state, QueueState*);
FIELD(QueueDeviceHandle, ready, uint32_t*);
FIELD(QueueDeviceHandle, scratch, uint64_t*);
FIELD(QueueDeviceHandle, form, QueueForm);
FIELD(QueueDeviceHandle, signalMode, SignalMode);
OFFSET(QueueDeviceHandle, abi, 0);
OFFSET(QueueDeviceHandle, sendRing, 8);
OFFSET(QueueDeviceHandle, record, 16);
OFFSET(QueueDeviceHandle, doorbell, 24);
OFFSET(QueueDeviceHandle, completions, 32);
OFFSET(QueueDeviceHandle, state, 40);
OFFSET(QueueDeviceHandle, ready, 48);
OFFSET(QueueDeviceHandle, scratch, 56);
OFFSET(QueueDeviceHandle, scratchKey, 64);
OFFSET(QueueDeviceHandle, number, 68);
OFFSET(QueueDeviceHandle, blocks, 72);
OFFSET(QueueDeviceHandle, completionEntries, 76);
OFFSET(QueueDeviceHandle, form, 80);
OFFSET(QueueDeviceHandle, signalMode, 84);
OFFSET(QueueDeviceHandle, recordInHostMemory, 88);
OFFSET(QueueDeviceHandle, signalEvery, 92);
OFFSET(QueueDeviceHandle, maxMessage, 96);
VALUE(sizeof(QueueDeviceHandle), 104);
OFFSET(QueueState, reserved, 0);
OFFSET(QueueState, limit, 8);
OFFSET(QueueState, completed, 16);
OFFSET(QueueState, error, 24);
OFFSET(QueueState, errorIndex, 32);
OFFSET(QueueState, inUse, 40);
OFFSET(QueueState, consumed, 48);
VALUE(sizeof(QueueState), 64);
OFFSET(QueueMemory, address, 0);
OFFSET(QueueMemory, size, 8);
OFFSET(QueueMemory, key, 16);
OFFSET(QueueMemory, access, 20);
VALUE(sizeof(QueueMemory), 24);
OFFSET(QueueChannel, queue, 0);
OFFSET(QueueChannel, memories, 104);
OFFSET(QueueChannel, token, 112);
OFFSET(QueueChannel, outbound, 136);
VALUE(sizeof(QueueChannel), 144);

// --- Channels.
SAME(SemaphoreId, uint32_t);
SAME(MemoryId, uint32_t);
VALUE(static_cast<uint32_t>(Backend::Proxy), 0);
VALUE(static_cast<uint32_t>(Backend::Queue), 1);
SAME(DeviceHandle<PortChannel>, PortChannelDeviceHandle);
SAME(DeviceHandle<BasePortChannel>, BasePortChannelDeviceHandle);
SAME(DeviceHandle<Host2DeviceSemaphore>, Host2DeviceSemaphoreDeviceHandle);

METHOD(BasePortChannelDeviceHandle, put, Status, MemoryId, uint64_t, MemoryId, uint64_t, uint64_t);
METHOD(BasePortChannelDeviceHandle, put, Status, MemoryId, MemoryId, uint64_t, uint64_t);
METHOD(BasePortChannelDeviceHandle, signal, Status);
METHOD(BasePortChannelDeviceHandle, putWithSignal, Status, MemoryId, uint64_t, MemoryId, uint64_t, uint64_t);
METHOD(BasePortChannelDeviceHandle, putWithSignal, Status, MemoryId, MemoryId, uint64_t, uint64_t);
METHOD(BasePortChannelDeviceHandle, putWithSignalAndFlush, Status, MemoryId, uint64_t, MemoryId, uint64_t, uint64_t,
       int64_t);
METHOD(BasePortChannelDeviceHandle, putWithSignalAndFlush, Status, MemoryId, MemoryId, uint64_t, uint64_t, int64_t);
METHOD(BasePortChannelDeviceHandle, flush, Status, int64_t);
METHOD(BasePortChannelDeviceHandle, accumulate, Status, MemoryId, uint64_t, int64_t);
METHOD(BasePortChannelDeviceHandle, get, Status, MemoryId, uint64_t, MemoryId, uint64_t, uint64_t);
METHOD(BasePortChannelDeviceHandle, poll, bool);
METHOD(BasePortChannelDeviceHandle, wait, Status, int64_t);
FIELD(BasePortChannelDeviceHandle, semaphoreId_, SemaphoreId);
FIELD(BasePortChannelDeviceHandle, semaphore_, Host2DeviceSemaphoreDeviceHandle);
FIELD(BasePortChannelDeviceHandle, fifo_, FifoDeviceHandle);
FIELD(BasePortChannelDeviceHandle, flushDonePos_, uint64_t*);
OFFSET(BasePortChannelDeviceHandle, abi_, 0);
OFFSET(BasePortChannelDeviceHandle, semaphoreId_, 8);
OFFSET(BasePortChannelDeviceHandle, semaphore_, 16);
OFFSET(BasePortChannelDeviceHandle, fifo_, 48);
OFFSET(BasePortChannelDeviceHandle, flushDonePos_, 120);
FIELD(BasePortChannelDeviceHandle, backend_, Backend);
FIELD(BasePortChannelDeviceHandle, queue_, QueueChannel);
OFFSET(BasePortChannelDeviceHandle, backend_, 12);
OFFSET(BasePortChannelDeviceHandle, queue_, 128);
VALUE(sizeof(BasePortChannelDeviceHandle), 272);

METHOD(PortChannelDeviceHandle, put, Status, uint64_t, uint64_t, uint64_t);
METHOD(PortChannelDeviceHandle, put, Status, uint64_t, uint64_t);
METHOD(PortChannelDeviceHandle, putWithSignal, Status, uint64_t, uint64_t, uint64_t);
METHOD(PortChannelDeviceHandle, putWithSignal, Status, uint64_t, uint64_t);
METHOD(PortChannelDeviceHandle, putWithSignalAndFlush, Status, uint64_t, uint64_t, uint64_t, int64_t);
METHOD(PortChannelDeviceHandle, putWithSignalAndFlush, Status, uint64_t, uint64_t);
METHOD(PortChannelDeviceHandle, accumulate, Status, uint64_t, int64_t);
METHOD(PortChannelDeviceHandle, get, Status, uint64_t, uint64_t, uint64_t);
METHOD(PortChannelDeviceHandle, get, Status, uint64_t, uint64_t);
FIELD(PortChannelDeviceHandle, dst_, MemoryId);
FIELD(PortChannelDeviceHandle, src_, MemoryId);
FIELD(PortChannelDeviceHandle, dstMemory_, QueueMemory);
FIELD(PortChannelDeviceHandle, srcMemory_, QueueMemory);
VALUE(sizeof(PortChannelDeviceHandle), 328);

// Kernels keep handles in constant memory, which takes no constructor.
static_assert(__is_trivially_constructible(PortChannelDeviceHandle), "changed");
static_assert(__is_trivially_copyable(PortChannelDeviceHandle), "changed");
static_assert(__is_trivially_constructible(DeviceSyncer), "changed");
__constant__ PortChannelDeviceHandle gChannels[8];
__device__ DeviceSyncer gSyncer;

// --- Packets.
SAME(LLPacket, LL16Packet);
SAME(LL16Packet::Payload, uint2);
SAME(LL8Packet::Payload, uint32_t);
METHOD(LL16Packet, write, void, uint32_t, uint32_t, uint32_t);
METHOD(LL16Packet, write, void, uint64_t, uint32_t);
METHOD(LL16Packet, write, void, uint2, uint32_t);
CONST_METHOD(LL16Packet, readOnce, bool, uint32_t, uint2&);
CONST_METHOD(LL16Packet, read, uint2, uint32_t);
CONST_METHOD(LL16Packet, read, Status, uint32_t, uint2&, int64_t, const StatusWord*);
METHOD(LL16Packet, clear, void);
METHOD(LL8Packet, write, void, uint32_t, uint32_t);
CONST_METHOD(LL8Packet, readOnce, bool, uint32_t, uint32_t&);
CONST_METHOD(LL8Packet, read, uint32_t, uint32_t);
CONST_METHOD(LL8Packet, read, Status, uint32_t, uint32_t&, int64_t, const StatusWord*);
METHOD(LL8Packet, clear, void);
VALUE(sizeof(LL16Packet), 16);
VALUE(sizeof(LL8Packet), 8);
OFFSET(LL16Packet, flag1, 4);
OFFSET(LL16Packet, data2, 8);
OFFSET(LL16Packet, flag2, 12);
OFFSET(LL8Packet, flag, 4);
using ToPackets = void (*)(void*, const void*, uint64_t, uint32_t, uint32_t, uint32_t);
using FromPackets = Status (*)(void*, const void*, uint64_t, uint32_t, uint32_t, uint32_t, int64_t, const StatusWord*);
SAME(decltype(static_cast<ToPackets>(&copyToPackets<LL8Packet>)), ToPackets);
SAME(decltype(static_cast<FromPackets>(&copyFromPackets<LL16Packet>)), FromPackets);

// --- The grid.
VALUE(DeviceSyncer::NumCounters, 3);
METHOD(DeviceSyncer, sync, Status, int, int64_t);
METHOD(DeviceSemaphore, set, void, int);
METHOD(DeviceSemaphore, acquire, Status, int);
METHOD(DeviceSemaphore, release, void);
VALUE(sizeof(DeviceSyncer), 16);
VALUE(sizeof(DeviceSemaphore), 4);

// --- What can only be called.
struct EveryArgs {
  PortChannelDeviceHandle channel;
  DeviceSyncer* syncer;
  DeviceSemaphore* semaphore;
  LLPacket* packets;
  LL8Packet* small;
  uint64_t* words;
  int* numbers;
};

MSCCLPP_KERNEL(every_call, EveryArgs) {
  PortChannelDeviceHandle channel = args.channel;
  // As in kernels that know of no statuses, with all defaults.
  channel.put(0, 0, 8);
  channel.put(0, 8);
  channel.signal();
  channel.putWithSignal(0, 0, 8);
  channel.putWithSignal(0, 8);
  channel.putWithSignalAndFlush(0, 0, 8);
  channel.putWithSignalAndFlush(0, 0, 8, 1000000);
  channel.putWithSignalAndFlush(0, 8);
  channel.flush();
  channel.flush(-1);
  channel.accumulate(0, -1);
  channel.get(0, 0, 8);
  channel.get(0, 8);
  channel.wait();
  channel.wait(10000000);
  while (!channel.poll()) {
  }
  BasePortChannelDeviceHandle& base = channel;
  base.put(MemoryId{0}, 0, MemoryId{1}, 0, 8);
  base.put(MemoryId{0}, MemoryId{1}, 0, 8);
  base.putWithSignalAndFlush(MemoryId{0}, 0, MemoryId{1}, 0, 8);
  base.accumulate(MemoryId{0}, 0, 1);
  base.get(MemoryId{0}, 0, MemoryId{1}, 0, 8);
  uint64_t ticket = base.queue_.queue.ticket();
  base.queue_.put(channel.dstMemory_, 0, channel.srcMemory_, 0, 8, true, ticket, -1, {nullptr, nullptr});
  base.queue_.queue.sync(ticket, -1, {nullptr, nullptr});
  channel.fifo_.sync(channel.fifo_.push({TriggerData | TriggerFlag, 0, 0, 0, 0, 8, 0}));
  gChannels[0].signal();

  args.syncer->sync(static_cast<int>(gridDim.x));
  gSyncer.sync(static_cast<int>(gridDim.x), 100);
  args.semaphore->set(1);
  args.semaphore->acquire();
  args.semaphore->release();

  copyToPackets(args.packets, args.words, 64, threadIdx.x, blockDim.x, 1);
  copyFromPackets(args.words, args.packets, 64, threadIdx.x, blockDim.x, 1);
  copyToPackets<LL8Packet>(args.small, args.words, 64, threadIdx.x, blockDim.x, 1);
  copyFromPackets<LL8Packet>(args.words, args.small, 64, threadIdx.x, blockDim.x, 1, 1000);
  const uint2 pair = args.packets[0].read(1);
  args.words[0] = pair.x + args.small[0].read(1);

  args.words[1] = atomicLoad(&args.words[0], memoryOrderAcquire);
  args.words[2] = atomicLoad<uint64_t, scopeDevice>(&args.words[0], memoryOrderRelaxed);
  atomicStore(&args.words[3], args.words[0], memoryOrderRelease);
  atomicStore<int, scopeDevice>(&args.numbers[0], 1, memoryOrderSeqCst);
  atomicFetchAdd<uint64_t, scopeBlock>(&args.words[4], 1, memoryOrderAcqRel);
  atomicFetchAdd<int, scopeSystem>(&args.numbers[1], -1, memoryOrderSeqCst);
  memory::fence<scopeDevice>(memoryOrderRelease);
  memory::storeMmio(args.words, 1);
  __threadfence();
  __threadfence_system();
}
