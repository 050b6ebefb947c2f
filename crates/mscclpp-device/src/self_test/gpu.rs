// SPDX-License-Identifier: MIT
//! The same test by a thread of a GPU, for queues that only a GPU reaches.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{GRACE, LOOK_EVERY, SelfTestError, outcome};
use crate::LaunchDims;
use crate::abi::{QueueDeviceHandle, Status, StatusWord};
use crate::cuda::{CudaError, CudaKernel, Gpu, Module, PinnedMemory, Stream};
use crate::nvrtc::Program;

const SOURCE: &str = include_str!("kernel.cpp");

/// Words in host memory, on lines of their own.
const STATUS: usize = 0;
const OVER: usize = 16;
const WORDS: u64 = 32;

/// The kernel, compiled once a GPU.
fn kernel(gpu: &Gpu) -> Result<CudaKernel, CudaError> {
    static LOADED: Mutex<BTreeMap<u32, CudaKernel>> = Mutex::new(BTreeMap::new());
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kernel) = loaded.get(&gpu.ordinal()) {
        return Ok(kernel.clone());
    }
    let module = Module::compile(gpu, &Program::new("queue_self_test.cu", SOURCE))?;
    // SAFETY: defined by the source with the twin of `Args`. Whoever launches it keeps the words,
    // and its caller the queue.
    let kernel = unsafe { module.kernel("mscclpp_queue_self_test") }?;
    loaded.insert(gpu.ordinal(), kernel.clone());
    Ok(kernel)
}

/// Compiles the test's kernel and loads it on a GPU, the first time. Loading waits until all kernels
/// that run there have ended; so call it before there are some that wait for a peer.
///
/// # Errors
///
/// [`CudaError::Nvrtc`], and what the driver says.
pub fn prepare(gpu: &Gpu) -> Result<(), CudaError> {
    kernel(gpu).map(drop)
}

/// Posts a write of no bytes to `queue` from a thread of a GPU, as [`run`](super::run) does from a
/// CPU thread. [`prepare`]s the GPU, if nobody has yet.
///
/// # Errors
///
/// As [`run`](super::run), with [`SelfTestError::Gpu`] where the kernel cannot be run.
///
/// # Safety
///
/// All addresses of the handle are reached by the GPU and stay valid until the call has returned,
/// and, after [`SelfTestError::Gpu`], for as long as the process lives. Nobody else posts to the
/// queue meanwhile.
pub unsafe fn run_on_gpu(
    gpu: &Gpu,
    queue: QueueDeviceHandle,
    timeout: Duration,
    over: impl Fn() -> bool,
) -> Result<(), SelfTestError> {
    queue.check()?;
    let number = queue.number;
    let failed = |source| SelfTestError::Gpu {
        queue: number,
        source,
    };
    let kernel = kernel(gpu).map_err(failed)?;
    let stream = Stream::new(gpu).map_err(failed)?;
    let words = PinnedMemory::new(gpu, WORDS * 8).map_err(failed)?;
    let word = |number: usize| {
        // SAFETY: inside of the memory, aligned, reached by the host as atomics only.
        unsafe { AtomicU64::from_ptr(words.as_ptr().cast::<u64>().add(number)) }
    };
    word(STATUS).store(u64::MAX, Ordering::Release);
    let args = super::Args {
        queue,
        timeout_ns: u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX / 2),
        over: words.address() + OVER as u64 * 8,
        status: words.address() + STATUS as u64 * 8,
    };
    let one = LaunchDims { grid: 1, block: 1 };
    let running = kernel.launch(one, args, &stream).map_err(failed)?;
    let started = Instant::now();
    while let Err(source) = running.join(LOOK_EVERY) {
        let late = started.elapsed() > timeout.saturating_add(GRACE);
        if late || !matches!(source, CudaError::Timeout { .. }) {
            // The kernel may still write.
            std::mem::forget(words);
            return Err(failed(source));
        }
        if over() {
            let aborted = StatusWord::new(Status::Aborted, 0);
            word(OVER).store(aborted.to_bits(), Ordering::Release);
        }
    }
    outcome(number, word(STATUS).load(Ordering::Acquire), timeout)
}
