// SPDX-License-Identifier: MIT
// The same measurements of GPUNetIO's device functions, whose headers the benchmark is told where to
// find. The fence at system scope covers the payload, which their functions leave to the caller.

#include <doca_gpunetio_device.h>

#include "measure.hpp"

namespace {

using Qp = doca_gpu_dev_verbs_qp;

// What every post names.
struct Names {
  unsigned long long remote, local, signal, scratch;
  // Big-endian.
  unsigned remoteKey, localKey, signalKey, scratchKey;
};

struct PostArgs {
  Qp* qp;
  Names names;
  posting::Plan plan;
};

struct RushArgs {
  Qp* qps;
  Names names;
  posting::Rush rush;
};

// Made here, where their structure is known.
struct QpArgs {
  Qp* qps;
  // The first queue's; those of the others follow at these distances.
  unsigned long long ring, ringStep;
  unsigned long long record, recordStep;
  unsigned long long doorbell, doorbellStep;
  // All of them have these completions: nobody writes or reads them.
  unsigned long long completions;
  unsigned number, blocks, count, reserved;
};

template <doca_gpu_dev_verbs_resource_sharing_mode Mode>
__device__ __forceinline__ bool putSignal(Qp* qp, const Names& names) {
  __threadfence_system();
  doca_gpu_dev_verbs_ticket_t ticket;
  doca_gpu_dev_verbs_put_signal<DOCA_GPUNETIO_VERBS_SIGNAL_OP_ADD, Mode, DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB>(
      qp, {names.remote, names.remoteKey}, {names.local, names.localKey}, 8, {names.signal, names.signalKey},
      {names.scratch, names.scratchKey}, 1, &ticket);
  return true;
}

__device__ unsigned bigEndian(unsigned value) { return __byte_perm(value, 0, 0x0123); }

}  // namespace

extern "C" __global__ void gpunetio_make(QpArgs args) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= args.count) return;
  Qp* qp = args.qps + i;
  unsigned char* bytes = reinterpret_cast<unsigned char*>(qp);
  for (unsigned at = 0; at < sizeof(Qp); ++at) bytes[at] = 0;
  const unsigned number = args.number + i;
  qp->sq_num = number;
  qp->sq_num_shift8 = number << 8;
  qp->sq_num_shift8_be = bigEndian(number << 8);
  qp->sq_num_shift8_be_1ds = bigEndian(number << 8 | 1);
  qp->sq_num_shift8_be_2ds = bigEndian(number << 8 | 2);
  qp->sq_num_shift8_be_3ds = bigEndian(number << 8 | 3);
  qp->sq_num_shift8_be_4ds = bigEndian(number << 8 | 4);
  qp->sq_num_shift8_be_5ds = bigEndian(number << 8 | 5);
  qp->sq_wqe_num = static_cast<unsigned short>(args.blocks);
  qp->sq_wqe_mask = static_cast<unsigned short>(args.blocks - 1);
  qp->sq_wqe_daddr = reinterpret_cast<uint8_t*>(args.ring + i * args.ringStep);
  qp->sq_dbrec = reinterpret_cast<__be32*>(args.record + i * args.recordStep);
  qp->sq_db = reinterpret_cast<uint64_t*>(args.doorbell + i * args.doorbellStep);
  qp->cq_sq.cqe_daddr = reinterpret_cast<uint8_t*>(args.completions);
  qp->cq_sq.cqe_num = args.blocks;
  qp->cq_sq.cqe_mask = args.blocks - 1;
  qp->cq_sq.cqe_size = 64;
  qp->cq_sq.mem_type = DOCA_GPUNETIO_VERBS_MEM_TYPE_GPU;
  qp->nic_handler = DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB;
  qp->mem_type = DOCA_GPUNETIO_VERBS_MEM_TYPE_GPU;
}

extern "C" __global__ void gpunetio_shared(PostArgs args) {
  posting::measure(args.plan, [&](posting::Word) {
    return putSignal<DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_GPU>(args.qp, args.names);
  });
}

extern "C" __global__ void gpunetio_exclusive(PostArgs args) {
  posting::measure(args.plan, [&](posting::Word) {
    return putSignal<DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_EXCLUSIVE>(args.qp, args.names);
  });
}

extern "C" __global__ void gpunetio_rush_shared(RushArgs args) {
  Qp* qp = args.qps + (args.rush.queuePerBlock != 0 ? blockIdx.x : 0);
  posting::rush(args.rush, [&] { return putSignal<DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_GPU>(qp, args.names); });
}

extern "C" __global__ void gpunetio_rush_exclusive(RushArgs args) {
  Qp* qp = args.qps + (args.rush.queuePerBlock != 0 ? blockIdx.x : 0);
  posting::rush(args.rush,
                [&] { return putSignal<DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_EXCLUSIVE>(qp, args.names); });
}
