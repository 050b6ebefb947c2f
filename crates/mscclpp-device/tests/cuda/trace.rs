// SPDX-License-Identifier: MIT
//! Traces of kernels, and the GPU's clock.

use std::collections::BTreeSet;

use mscclpp_device::LaunchDims;
use mscclpp_device::abi::{AbiHeader, Host2DeviceSemaphoreDeviceHandle};
use mscclpp_device::cuda::{ClockOffset, DeviceMemory, Gpu, GpuRing, Module, PinnedMemory, Stream};
use mscclpp_device::nvrtc::Program;
use mscclpp_device::trace::{Kind, Phase, now};

use super::{Outcome, SOON, ensure, module, store};

/// Each thread takes a signal.
const SOURCE: &str = "
#include <mscclpp/kernel.hpp>
#include <mscclpp/semaphore_device.hpp>
MSCCLPP_KERNEL(take, mscclpp::Host2DeviceSemaphoreDeviceHandle) { args.poll(); }
";
const DIMS: LaunchDims = LaunchDims {
    grid: 40,
    block: 48,
};
const THREADS: u64 = DIMS.grid as u64 * DIMS.block as u64;

pub(crate) fn kernels_leave_a_trace() -> Outcome {
    let gpu = Gpu::open(0)?;
    let stream = Stream::new(&gpu)?;
    let traced = Program::new("take.cu", SOURCE).option("-DMSCCLPP_DEVICE_TRACE");
    let traced = Module::compile(&gpu, &traced)?;
    let (inbound, expected) = (PinnedMemory::new(&gpu, 8)?, DeviceMemory::new(&gpu, 8)?);
    let args = Host2DeviceSemaphoreDeviceHandle {
        abi: AbiHeader::of::<Host2DeviceSemaphoreDeviceHandle>(),
        inbound_token: inbound.address(),
        expected_inbound_token: expected.address(),
        status: 0,
    };
    // SAFETY: the argument is the twin of the C++ struct, and what it names outlives the kernels.
    let take = unsafe { traced.kernel("take") }?;
    store(&inbound, 0, 3 * THREADS);
    // Without a ring it leaves nothing, and runs.
    take.launch(DIMS, args, &stream)?.join(SOON)?;

    for (records, kept) in [(4096, THREADS), (256, 256)] {
        let ring = GpuRing::new(&gpu, records)?;
        traced.trace_into(&ring)?;
        let clock = ClockOffset::measure(&gpu)?;
        let before = now();
        take.launch(DIMS, args, &stream)?.join(SOON)?;
        let after = now();
        let seen = ring.snapshot(SOON)?;
        let found = seen.records.len() as u64;
        ensure(
            (found, seen.dropped) == (kept, THREADS - kept),
            format!("{found} records, {} dropped", seen.dropped),
        )?;
        let slack = clock.uncertainty + clock.resolution + 1_000;
        for record in &seen.records {
            let host = record.time.wrapping_add_signed(-clock.offset);
            ensure(
                before <= host + slack && host <= after + slack,
                format!("{record:?} at {host}, not in {before}..{after} by {clock:?}"),
            )?;
            ensure(
                (record.kind(), record.phase()) == (Some(Kind::Took), Some(Phase::Point)),
                format!("{record:?}"),
            )?;
        }
        let tracks: BTreeSet<u32> = seen.records.iter().map(|record| record.track()).collect();
        let all = (tracks.len() as u64 == kept)
            && (tracks.iter()).all(|t| t >> 10 < DIMS.grid && t & 0x3ff < DIMS.block);
        ensure(all, format!("{} threads left records", tracks.len()))?;
        let counts: BTreeSet<u16> = seen
            .records
            .iter()
            .map(|record| record.sequence())
            .collect();
        ensure(counts.len() as u64 == kept, "each its own signal")?;
    }
    let untraced = module(&gpu)?.trace_into(&GpuRing::new(&gpu, 2)?);
    ensure(untraced.is_err(), "a module without the trace has no ring")
}

pub(crate) fn clocks_are_measured() -> Outcome {
    let gpu = Gpu::open(0)?;
    let (first, second) = (ClockOffset::measure(&gpu)?, ClockOffset::measure(&gpu)?);
    println!("{first:?} {second:?}");
    let apart = first.offset.abs_diff(second.offset);
    // The clocks drift, but not by a thousandth in the time between the two.
    let slack = first.uncertainty + second.uncertainty + first.resolution + 1_000_000;
    ensure(apart <= slack, format!("{first:?} and then {second:?}"))?;
    ensure(
        (1..=2_000_000).contains(&first.resolution) && first.uncertainty < 1_000_000,
        format!("{first:?}"),
    )
}
