// SPDX-License-Identifier: MIT
// One call on a send queue, by this project's device code (`ours`) or by GPUNetIO's (`theirs`), for
// CPU threads and for GPUs. Both write into memory of the same form.

#include <mscclpp/kernel.hpp>
#include <mscclpp/queue_channel_device.hpp>

#if defined(__CUDACC_RTC__)
// As without a host compiler there is no typeof, the library's own names a pointer to a reference.
#define ACCESS_ONCE(x) (*(volatile typename cuda::std::remove_reference<decltype(x)>::type*)&(x))
#include <cuda/std/type_traits>
#endif
#include <doca_gpunetio_device.h>

namespace {

using mscclpp::QueueChannel;
using mscclpp::QueueMemory;
using mscclpp::Status;
using Qp = doca_gpu_dev_verbs_qp;
using Sharing = doca_gpu_dev_verbs_resource_sharing_mode;

// Twin of `Operation` in calls.rs.
enum Operation : uint32_t {
  Put,
  PutSignal,
  Signal,
  Accumulate,
  Get,
  Word,     // a signal as a write of the next count
  PutWord,  // a put, and such a signal behind it
  Poll,  // looks at `size` requests from `value` on, at the last one first
  Wait,
  // What only the library has.
  Word4,
  Inline,
  PutImmediate,
  GetDump,
  CompareSwap,
  MaskedAdd4,
  MaskedAdd8,
  MaskedSwap4,
  MaskedSwap8,
  WaitFor,
  Dump,
};

// Twin of `Call` in calls.rs.
struct Call {
  uint32_t operation;
  uint32_t remoteKey, localKey;  // big-endian
  uint32_t reserved;
  uint64_t remote, local;
  uint64_t size;
  uint64_t value;
};

// What a call has found; twin of `Outcome` in machine.rs.
enum Found : uint64_t { Done = 0, Pending = 1, Failed = 2, Refused = 3 };

// Twin of `Args` in machine.rs.
struct Args {
  QueueChannel channel;
  Qp* qp;
  uint64_t* outcome;  // the end of what is posted, the request that failed, and what was found
  uint64_t start;     // where the counters begin
  Call call;
  uint32_t sharing;
  uint32_t fresh;  // whether they begin now
};

static_assert(sizeof(Call) == 48 && sizeof(Args) == 224, "the twins in Rust have these sizes");
// NVRTC does not pack structures of this form: to it a request's flags are elsewhere.
static_assert(__builtin_offsetof(doca_gpunetio_ib_mlx5_wqe_ctrl_seg, fm_ce_se) == 11, "packed as the NIC reads it");
// What the library's own layout checks ask for, with its attributes as they are or changed.
static_assert(sizeof(Qp) == 296 && sizeof(doca_gpu_dev_verbs_cq) == 64, "GPUNetIO's layout");

constexpr auto handler = DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB;
constexpr auto add = DOCA_GPUNETIO_VERBS_SIGNAL_OP_ADD;
constexpr mscclpp::QueueWatch nobody{nullptr, nullptr};
// Calls name the middle of a memory.
constexpr uint64_t before = 64;

MSCCLPP_DEVICE_INLINE QueueMemory memoryOf(uint64_t address, uint32_t key, uint32_t access, const Call& call) {
  return {address - before, before + (call.size > 8 ? call.size : 8), key, access};
}

// Nothing is held against these: one mode is enough.
constexpr Sharing any = DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_GPU;

template <typename Prepare>
MSCCLPP_DEVICE_INLINE uint64_t postPrepared(Qp* qp, uint32_t blocks, Prepare prepare) {
  const uint64_t first = doca_gpu_dev_verbs_reserve_wq_slots<any>(qp, blocks);
  prepare(doca_gpu_dev_verbs_get_wqe_ptr(qp, static_cast<uint16_t>(first)),
          doca_gpu_dev_verbs_get_wqe_ptr(qp, static_cast<uint16_t>(first + 1)), static_cast<uint16_t>(first));
  const uint64_t last = first + blocks - 1;
  doca_gpu_dev_verbs_mark_wqes_ready<any>(qp, first, last);
  doca_gpu_dev_verbs_submit<any, DOCA_GPUNETIO_VERBS_SYNC_SCOPE_GPU, handler>(qp, last + 1);
  return last;
}

MSCCLPP_DEVICE_INLINE uint64_t found(int status) {
  if (status == 0) return Done;
  return status == EBUSY ? Pending : status < 0 ? Failed : Refused;
}

/// What has no counterpart here; the last request's index.
MSCCLPP_DEVICE_INLINE uint64_t postForeign(Qp* qp, const QueueChannel& channel, const Call& call) {
  const auto flags = DOCA_GPUNETIO_IB_MLX5_WQE_CTRL_CQ_UPDATE;
  const uint64_t scratch = reinterpret_cast<uint64_t>(channel.queue.scratch);
  const uint32_t scratchKey = channel.queue.scratchKey;
  using Wqe = doca_gpu_dev_verbs_wqe;
  doca_gpu_dev_verbs_ticket_t last = 0;
  switch (call.operation) {
    case Word4:
      doca_gpu_dev_verbs_p<uint32_t, any, handler>(qp, {call.remote, call.remoteKey},
                                                    static_cast<uint32_t>(call.value), &last);
      return last;
    case Inline:
      // The bytes are the call's own value, as often as it fits.
      return postPrepared(qp, 1, [&](Wqe* wqe, Wqe*, uint16_t at) {
        uint64_t bytes[4] = {call.value, call.value, call.value, call.value};
        doca_gpu_dev_verbs_wqe_prepare_write_inl(qp, wqe, at, flags, call.remote, call.remoteKey,
                                                 reinterpret_cast<uint64_t>(bytes), static_cast<uint32_t>(call.size));
      });
    case PutImmediate:
      return postPrepared(qp, 1, [&](Wqe* wqe, Wqe*, uint16_t at) {
        doca_gpu_dev_verbs_wqe_prepare_write(qp, wqe, at, DOCA_GPUNETIO_IB_MLX5_OPCODE_RDMA_WRITE_IMM, flags,
                                             static_cast<uint32_t>(call.value), call.remote, call.remoteKey,
                                             call.local, call.localKey, static_cast<uint32_t>(call.size));
      });
    case GetDump:
      doca_gpu_dev_verbs_get<any, handler, DOCA_GPUNETIO_VERBS_EXEC_SCOPE_THREAD, DOCA_GPUNETIO_VERBS_MCST_ENABLED>(
          qp, {call.remote, call.remoteKey}, {call.local, call.localKey}, call.size, {scratch, scratchKey}, &last);
      return last;
    case CompareSwap:
      return postPrepared(qp, 1, [&](Wqe* wqe, Wqe*, uint16_t at) {
        doca_gpu_dev_verbs_wqe_prepare_atomic(qp, wqe, at, DOCA_GPUNETIO_IB_MLX5_OPCODE_ATOMIC_CS, flags, call.remote,
                                              call.remoteKey, scratch, scratchKey, 8, call.value, ~call.value);
      });
    case MaskedAdd4:
    case MaskedSwap4:
      return postPrepared(qp, 1, [&](Wqe* wqe, Wqe* next, uint16_t at) {
        const uint32_t opcode = call.operation == MaskedAdd4 ? DOCA_GPUNETIO_IB_MLX5_OPCODE_ATOMIC_MASKED_FA
                                                             : DOCA_GPUNETIO_IB_MLX5_OPCODE_ATOMIC_MASKED_CS;
        doca_gpu_dev_verbs_wqe_prepare_atomic_ext<DOCA_GPUNETIO_VERBS_ATOMIC_EXT_BYTES_4>(
            qp, wqe, next, at, opcode, flags, call.remote, call.remoteKey, scratch, scratchKey, call.value, 0,
            call.value, call.value, ~0ull, ~0ull);
      });
    case MaskedAdd8:
    case MaskedSwap8:
      return postPrepared(qp, call.operation == MaskedSwap8 ? 2 : 1, [&](Wqe* wqe, Wqe* next, uint16_t at) {
        const uint32_t opcode = call.operation == MaskedAdd8 ? DOCA_GPUNETIO_IB_MLX5_OPCODE_ATOMIC_MASKED_FA
                                                             : DOCA_GPUNETIO_IB_MLX5_OPCODE_ATOMIC_MASKED_CS;
        doca_gpu_dev_verbs_wqe_prepare_atomic_ext<DOCA_GPUNETIO_VERBS_ATOMIC_EXT_BYTES_8>(
            qp, wqe, next, at, opcode, flags, call.remote, call.remoteKey, scratch, scratchKey, call.value, 0,
            call.value, call.value, ~0ull, ~0ull);
      });
    case WaitFor:
      return postPrepared(qp, 1, [&](Wqe* wqe, Wqe*, uint16_t at) {
        doca_gpu_dev_verbs_wqe_prepare_wait(qp, wqe, at, flags, static_cast<uint32_t>(call.value),
                                            static_cast<uint32_t>(call.size));
      });
    default:
      return postPrepared(qp, 1, [&](Wqe* wqe, Wqe*, uint16_t at) {
        doca_gpu_dev_verbs_wqe_prepare_dump(qp, wqe, at, flags, call.local, call.localKey,
                                            static_cast<uint32_t>(call.size));
      });
  }
}

template <Sharing Mode>
MSCCLPP_DEVICE_INLINE void callTheirs(Qp* qp, const QueueChannel& channel, const Call& call, uint64_t* outcome) {
  const doca_gpu_dev_verbs_addr remote{call.remote, call.remoteKey}, local{call.local, call.localKey};
  const doca_gpu_dev_verbs_addr token{channel.token.address, channel.token.key};
  const doca_gpu_dev_verbs_addr scratch{reinterpret_cast<uint64_t>(channel.queue.scratch), channel.queue.scratchKey};
  doca_gpu_dev_verbs_ticket_t last = 0;
  outcome[2] = Done;
  switch (call.operation) {
    case Put:
    case PutWord:
      // The write behind it rings for both.
      doca_gpu_dev_verbs_put<Mode, handler>(qp, remote, local, call.size, &last,
                                            call.operation == Put ? DOCA_GPUNETIO_VERBS_GPU_CODE_OPT_DEFAULT
                                                                  : DOCA_GPUNETIO_VERBS_GPU_CODE_OPT_SKIP_DB_RINGING);
      if (call.operation == Put) break;
      [[fallthrough]];
    case Word:
      doca_gpu_dev_verbs_p<uint64_t, Mode, handler>(qp, token, call.value, &last);
      break;
    case PutSignal:
      doca_gpu_dev_verbs_put_signal<add, Mode, handler>(qp, remote, local, call.size, token, scratch, 1, &last);
      break;
    case Signal:
    case Accumulate:
      doca_gpu_dev_verbs_signal<add, Mode, handler>(qp, call.operation == Signal ? token : remote, scratch,
                                                    call.operation == Signal ? 1 : call.value, &last);
      break;
    case Get:
      doca_gpu_dev_verbs_get<Mode, handler>(qp, remote, local, call.size, scratch, &last);
      break;
    case Poll:
      for (uint64_t i = call.size; i-- > 0;) {
        outcome[2 + i] = found(doca_gpu_dev_verbs_poll_one_cq_at<Mode>(qp, call.value + i));
      }
      return;
    case Wait:
      outcome[2] = found(doca_gpu_dev_verbs_poll_cq_at<Mode>(qp, call.value));
      return;
    default:
      last = postForeign(qp, channel, call);
  }
  outcome[0] = last + 1;
}

/// What is to be found of a request here.
MSCCLPP_DEVICE_INLINE uint64_t look(QueueChannel& channel, uint64_t index) {
  if (channel.queue.poll(index + 1)) return Done;
  return channel.queue.error() == Status::Ok ? Pending : Failed;
}

/// Both queues as they are where `start` requests have been posted and are complete.
MSCCLPP_DEVICE_INLINE void begin(const Args& args) {
  const mscclpp::QueueDeviceHandle& queue = args.channel.queue;
  mscclpp::QueueState state{};
  state.reserved = state.limit = state.completed = state.consumed = args.start;
  *queue.state = state;
  for (uint32_t i = 0; i < queue.blocks; ++i) queue.ready[i] = 0;
  // Who posts first is to announce: see QueueDeviceHandle.
  queue.ready[args.start & (queue.blocks - 1)] = static_cast<uint32_t>(args.start) << 1;

  Qp qp{};
  qp.sq_rsvd_index = qp.sq_ready_index = qp.sq_wqe_pi = args.start;
  qp.sq_num = queue.number;
  qp.sq_num_shift8 = queue.number << 8;
  const auto stored = [&](uint32_t segments) { return mscclpp::detail::bigEndian((queue.number << 8) | segments); };
  qp.sq_num_shift8_be = stored(0);
  qp.sq_num_shift8_be_1ds = stored(1);
  qp.sq_num_shift8_be_2ds = stored(2);
  qp.sq_num_shift8_be_3ds = stored(3);
  qp.sq_num_shift8_be_4ds = stored(4);
  qp.sq_num_shift8_be_5ds = stored(5);
  qp.sq_wqe_num = static_cast<uint16_t>(queue.blocks);
  qp.sq_wqe_mask = static_cast<uint16_t>(queue.blocks - 1);
  qp.sq_wqe_daddr = reinterpret_cast<uint8_t*>(queue.sendRing);
  qp.sq_dbrec = reinterpret_cast<__be32*>(queue.record);
  qp.sq_db = queue.doorbell;
  qp.cq_sq.cqe_daddr = reinterpret_cast<uint8_t*>(reinterpret_cast<uint64_t>(queue.completions));
  qp.cq_sq.cqe_num = queue.completionEntries;
  qp.cq_sq.cqe_mask = queue.completionEntries - 1;
  qp.cq_sq.cqe_ci = args.start;
  qp.cq_sq.cq_type = DOCA_GPUNETIO_VERBS_CQ_64B;
  qp.cq_sq.mem_type = DOCA_GPUNETIO_VERBS_MEM_TYPE_GPU;
  qp.nic_handler = handler;
  qp.mem_type = DOCA_GPUNETIO_VERBS_MEM_TYPE_GPU;
  *args.qp = qp;
}

}  // namespace

MSCCLPP_KERNEL(ours, Args) {
  if (args.fresh != 0) begin(args);
  QueueChannel& channel = args.channel;
  const Call& call = args.call;
  uint64_t* outcome = args.outcome;
  const QueueMemory remote = memoryOf(call.remote, call.remoteKey, QueueMemory::remote, call);
  const QueueMemory local = memoryOf(call.local, call.localKey, QueueMemory::local, call);
  uint64_t ticket;
  Status status = Status::Ok;
  switch (call.operation) {
    case Put:
      status = channel.put(remote, before, local, before, call.size, false, ticket, -1, nobody);
      break;
    case PutSignal:
    case PutWord:
      status = channel.put(remote, before, local, before, call.size, true, ticket, -1, nobody);
      break;
    case Signal:
    case Word:
      status = channel.signal(nobody);
      break;
    case Accumulate:
      status = channel.accumulate(remote, before, static_cast<int64_t>(call.value), nobody);
      break;
    case Get:
      status = channel.get(remote, before, local, before, call.size, nobody);
      break;
    case Poll:
      for (uint64_t i = call.size; i-- > 0;) outcome[2 + i] = look(channel, call.value + i);
      outcome[1] = channel.queue.state->errorIndex;
      return;
    case Wait:
      status = channel.queue.sync(call.value + 1, -1, nobody);
      outcome[2] = status == Status::Ok ? Done : status == Status::QueueError ? Failed : Refused;
      return;
    default:
      status = Status::Unsupported;
  }
  outcome[0] = channel.queue.ticket();
  outcome[2] = status == Status::Ok ? Done : Refused;
}

MSCCLPP_KERNEL(theirs, Args) {
  if (args.fresh != 0) begin(args);
  switch (args.sharing) {
    case DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_EXCLUSIVE:
      return callTheirs<DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_EXCLUSIVE>(args.qp, args.channel, args.call,
                                                                             args.outcome);
    case DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_CTA:
      return callTheirs<DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_CTA>(args.qp, args.channel, args.call, args.outcome);
    default:
      return callTheirs<DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_GPU>(args.qp, args.channel, args.call, args.outcome);
  }
}
