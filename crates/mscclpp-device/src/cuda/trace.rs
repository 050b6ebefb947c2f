// SPDX-License-Identifier: MIT
//! Traces of kernels on a GPU: the ring in its memory, and where its clock stands.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use super::{CudaError, DeviceMemory, Gpu, Module, PinnedMemory, Stream};
use crate::launch_dims::LaunchDims;
use crate::nvrtc::Program;
use crate::trace::{HEAD, RingHandle, Snapshot, now, slots};

/// A ring of records in a GPU's memory.
pub struct GpuRing {
    memory: DeviceMemory,
    slots: usize,
}

impl GpuRing {
    /// An empty ring for so many records, rounded up to a power of two, from 2 to 2^24; 16 bytes each.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn new(gpu: &Gpu, records: usize) -> Result<Arc<Self>, CudaError> {
        let slots = slots(records);
        let memory = DeviceMemory::new(gpu, bytes(slots))?;
        Ok(Arc::new(Self { memory, slots }))
    }

    /// What device code needs to write to it.
    #[must_use]
    pub fn handle(&self) -> RingHandle {
        RingHandle {
            words: self.memory.address(),
            mask: self.slots as u64 - 1,
        }
    }

    /// What it holds, with times of the GPU's clock. The kernels that write to it must have ended.
    ///
    /// # Errors
    ///
    /// [`CudaError::Timeout`] if the copy takes longer, and what the driver says.
    pub fn snapshot(&self, timeout: Duration) -> Result<Snapshot, CudaError> {
        let gpu = self.memory.gpu();
        let (stream, host) = (
            Stream::new(&gpu)?,
            PinnedMemory::new(&gpu, bytes(self.slots))?,
        );
        // SAFETY: both live until the stream has been waited for.
        unsafe { stream.copy(host.address(), self.memory.address(), bytes(self.slots)) }?;
        if let Err(error) = stream.wait(timeout) {
            // The copy may still be under way.
            std::mem::forget(host);
            return Err(error);
        }
        // SAFETY: so many aligned words, which nobody writes any more.
        let words = unsafe {
            std::slice::from_raw_parts(host.as_ptr().cast::<u64>(), HEAD + 2 * self.slots)
        };
        Ok(Snapshot::of_words(words))
    }
}

impl fmt::Debug for GpuRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuRing")
            .field("memory", &self.memory)
            .field("slots", &self.slots)
            .finish()
    }
}

fn bytes(slots: usize) -> u64 {
    8 * (HEAD as u64 + 2 * slots as u64)
}

/// Where a GPU's `globaltimer` stands against the host's `CLOCK_MONOTONIC`.
///
/// The two drift apart: measure close to what is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// The GPU's clock less the host's, nanoseconds.
    pub offset: i64,
    /// By how much it may be wrong, nanoseconds: half of the shortest round trip.
    pub uncertainty: u64,
    /// The smallest step of the GPU's clock that was seen, nanoseconds. Between two steps all records
    /// have the same time.
    pub resolution: u64,
}

const ROUNDS: usize = 256;
const SOON: Duration = Duration::from_secs(10);

const CLOCK: &str = r"
#include <mscclpp/kernel.hpp>
#include <mscclpp/memory_device.hpp>
using namespace mscclpp;
struct ClockArgs { const uint64_t* ask; uint64_t* answers; uint64_t rounds; };
MSCCLPP_KERNEL(clock_offset, ClockArgs) {
  const uint64_t started = memory::nowNs();
  for (uint64_t n = 1; n <= args.rounds; ++n) {
    while (memory::load<scopeSystem>(args.ask, memoryOrderRelaxed) < n) {
      if (memory::nowNs() - started > 5000000000ull) return;
    }
    memory::store<scopeSystem>(args.answers + n, memory::nowNs(), memoryOrderRelaxed);
  }
  uint64_t smallest = ~uint64_t{0}, last = memory::nowNs();
  for (int reads = 0, steps = 0; reads < 1000000 && steps < 32; ++reads) {
    const uint64_t now = memory::nowNs();
    if (now == last) continue;
    if (now - last < smallest) smallest = now - last;
    last = now;
    ++steps;
  }
  memory::store<scopeSystem>(args.answers, smallest, memoryOrderRelaxed);
}
";

#[derive(Clone, Copy)]
#[repr(C)]
struct ClockArgs {
    ask: u64,
    answers: u64,
    rounds: u64,
}

impl ClockOffset {
    /// Measures it, by a kernel of one thread that the host asks 256 times what time it is: the question
    /// with the shortest round trip counts. Needs NVRTC; takes some milliseconds.
    ///
    /// # Errors
    ///
    /// [`CudaError::Nvrtc`], [`CudaError::Timeout`], and what the driver says.
    pub fn measure(gpu: &Gpu) -> Result<Self, CudaError> {
        let module = Module::compile(gpu, &Program::new("clock_offset.cu", CLOCK))?;
        // SAFETY: `ClockArgs` is the twin of the C++ struct. Pages of `PinnedMemory` stay pinned when it
        // is dropped, and the kernel ends by itself.
        let kernel = unsafe { module.kernel("clock_offset") }?;
        let page = PinnedMemory::new(gpu, 8 * (2 + ROUNDS as u64))?;
        // SAFETY: zeroed, aligned words that live as long as `page`, and are touched by atomics alone.
        let words =
            unsafe { std::slice::from_raw_parts(page.as_ptr().cast::<AtomicU64>(), 2 + ROUNDS) };
        let (ask, answers) = (&words[0], &words[1..]);
        let args = ClockArgs {
            ask: page.address(),
            answers: page.address() + 8,
            rounds: ROUNDS as u64,
        };
        let stream = Stream::new(gpu)?;
        let dims = LaunchDims { grid: 1, block: 1 };
        let running = kernel.launch(dims, args, &stream)?;
        let deadline = Instant::now() + SOON;
        let mut best: Option<(u64, i64)> = None;
        for (round, answer) in (1u64..).zip(&answers[1..]) {
            let asked = now();
            ask.store(round, Release);
            let at = loop {
                match answer.load(Acquire) {
                    0 if Instant::now() > deadline => break None,
                    0 => std::hint::spin_loop(),
                    at => break Some(at),
                }
            };
            let Some(at) = at else { break };
            let trip = now() - asked;
            if best.is_none_or(|(shortest, _)| trip < shortest) {
                let middle = asked + trip / 2;
                best = Some((trip, at.wrapping_sub(middle).cast_signed()));
            }
        }
        running.join(SOON)?;
        let (trip, offset) = best.ok_or_else(|| CudaError::Timeout {
            what: "a look at the clock".into(),
            gpu: gpu.ordinal(),
            waited: SOON,
        })?;
        Ok(Self {
            offset,
            uncertainty: trip.div_ceil(2),
            resolution: answers[0].load(Relaxed),
        })
    }
}
