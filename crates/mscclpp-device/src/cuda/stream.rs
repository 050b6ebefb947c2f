// SPDX-License-Identifier: MIT
//! Streams: copies and writes that a GPU does in order, while the host goes on.

use std::fmt;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUevent, CUresult, CUstream};

use super::error::warn;
use super::{CudaError, DeviceMemory, Gpu, PinnedMemory};

/// How long the first copies of a new stream may take.
const WARM_WITHIN: Duration = Duration::from_secs(30);

/// A stream of its own, never ordered with the default stream. What is put on it is done in order.
/// Any thread may use it; no call waits for the GPU but [`wait`](Self::wait).
pub struct Stream {
    gpu: Gpu,
    stream: CUstream,
}

// SAFETY: the driver's streams may be used by any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream on which each kind of operation has run once: what the driver loads when it is
    /// first needed could otherwise wait behind a kernel that spins.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        Self::warmed(gpu, Self::bare(gpu)?)
    }

    /// The same with the highest priority, for copies that kernels wait for. The GPU takes work from
    /// a limited number of queues, over which the driver spreads the streams of a process: streams
    /// that share one wait for each other's kernels. The driver keeps streams of different
    /// priorities apart, so that these share none with a kernel's.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn for_copies(gpu: &Gpu) -> Result<Self, CudaError> {
        Self::warmed(gpu, Self::bare_for_copies(gpu)?)
    }

    fn warmed(gpu: &Gpu, stream: Self) -> Result<Self, CudaError> {
        let device = DeviceMemory::new(gpu, 256)?;
        let host = PinnedMemory::new(gpu, 256)?;
        // SAFETY: both live until the stream is idle, or for ever.
        let warmed = unsafe {
            stream
                .copy(device.address(), host.address(), 64)
                .and_then(|()| stream.copy(device.address() + 64, device.address(), 64))
                .and_then(|()| stream.copy(host.address() + 64, device.address(), 64))
                .and_then(|()| stream.write_u64(device.address(), 1))
                .and_then(|()| stream.write_u64(host.address(), 1))
        };
        if let Err(error) = warmed.and_then(|()| stream.wait(WARM_WITHIN)) {
            // What has begun may go on.
            std::mem::forget((device, host));
            return Err(error);
        }
        Ok(stream)
    }

    /// One on which nothing has run yet.
    fn bare(gpu: &Gpu) -> Result<Self, CudaError> {
        // What streams have unless told.
        Self::with_priority(gpu, 0)
    }

    /// As [`for_copies`](Self::for_copies), and nothing has run on it yet.
    pub(super) fn bare_for_copies(gpu: &Gpu) -> Result<Self, CudaError> {
        let _entered = gpu.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: valid places to write to.
        gpu.check("cuCtxGetStreamPriorityRange", unsafe {
            sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
        })?;
        Self::with_priority(gpu, greatest)
    }

    fn with_priority(gpu: &Gpu, priority: i32) -> Result<Self, CudaError> {
        let _entered = gpu.enter()?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a valid place to write to.
        gpu.check("cuStreamCreateWithPriority", unsafe {
            sys::cuStreamCreateWithPriority(&mut stream, flags, priority)
        })?;
        Ok(Self { gpu: *gpu, stream })
    }

    /// Whose stream it is.
    pub fn gpu(&self) -> Gpu {
        self.gpu
    }

    /// Copies `len` bytes between two addresses: of this GPU, of one that it can reach, of pinned
    /// host memory.
    ///
    /// # Errors
    ///
    /// What the driver says: also why earlier work of the GPU failed.
    ///
    /// # Safety
    ///
    /// Both ranges are such memory until the copy is done, and reached by atomics or foreign code
    /// only, if they are host memory.
    pub unsafe fn copy(&self, to: u64, from: u64, len: u64) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: the caller's promise.
        self.gpu.check("cuMemcpyAsync", unsafe {
            sys::cuMemcpyAsync(to, from, len as usize, self.stream)
        })
    }

    /// Sets `len` bytes to `byte`.
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy).
    ///
    /// # Safety
    ///
    /// As [`copy`](Self::copy).
    pub unsafe fn fill(&self, to: u64, byte: u8, len: u64) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: the caller's promise.
        self.gpu.check("cuMemsetD8Async", unsafe {
            sys::cuMemsetD8Async(to, byte, len as usize, self.stream)
        })
    }

    /// Stores a word, a multiple of 8, after everything before it on the stream is visible to all.
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy).
    ///
    /// # Safety
    ///
    /// As [`copy`](Self::copy).
    pub unsafe fn write_u64(&self, at: u64, value: u64) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        let flags = sys::CUstreamWriteValue_flags_enum::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        // SAFETY: the caller's promise. By default the driver puts a system-wide fence before it.
        self.gpu.check("cuStreamWriteValue64", unsafe {
            sys::cuStreamWriteValue64_v2(self.stream, at, value, flags)
        })
    }

    /// Whether everything put on it is done.
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy).
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: a live stream.
        self.done("cuStreamQuery", unsafe { sys::cuStreamQuery(self.stream) })
    }

    /// Waits until everything put on it is done.
    ///
    /// # Errors
    ///
    /// [`CudaError::Timeout`]; as [`copy`](Self::copy).
    pub fn wait(&self, timeout: Duration) -> Result<(), CudaError> {
        wait(&self.gpu, "the work of a stream", timeout, || {
            self.is_idle()
        })
    }

    pub(super) fn raw(&self) -> CUstream {
        self.stream
    }

    fn done(&self, call: &'static str, result: CUresult) -> Result<bool, CudaError> {
        done(&self.gpu, call, result)
    }
}

fn done(gpu: &Gpu, call: &'static str, result: CUresult) -> Result<bool, CudaError> {
    match result {
        CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        result => gpu.check(call, result).map(|()| true),
    }
}

/// Looks until it is done: soon at first, then less often.
pub(super) fn wait(
    gpu: &Gpu,
    what: &str,
    timeout: Duration,
    is_done: impl Fn() -> Result<bool, CudaError>,
) -> Result<(), CudaError> {
    let started = Instant::now();
    loop {
        if is_done()? {
            return Ok(());
        }
        let waited = started.elapsed();
        if waited >= timeout {
            return Err(CudaError::Timeout {
                what: what.to_owned(),
                gpu: gpu.ordinal(),
                waited,
            });
        }
        if waited < Duration::from_micros(50) {
            std::hint::spin_loop();
        } else if waited < Duration::from_millis(1) {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _entered = self.gpu.enter();
        // SAFETY: not used again. What is on it goes on, and the driver lets go of it then.
        warn(self.gpu.check("cuStreamDestroy", unsafe {
            sys::cuStreamDestroy_v2(self.stream)
        }));
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?})", self.gpu)
    }
}

/// A mark on a stream, which tells when the work before it is done. It can be set again and again,
/// and means the last setting.
pub struct Event {
    gpu: Gpu,
    event: CUevent,
}

// SAFETY: the driver's events may be used by any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// A mark that is not set, which counts as done.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        let _entered = gpu.enter()?;
        let mut event = std::ptr::null_mut();
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: a valid place to write to.
        gpu.check("cuEventCreate", unsafe {
            sys::cuEventCreate(&mut event, flags)
        })?;
        Ok(Self { gpu: *gpu, event })
    }

    /// Sets the mark behind what is on `stream` now, a stream of the same GPU.
    ///
    /// # Errors
    ///
    /// As [`Stream::copy`].
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: both live.
        self.gpu.check("cuEventRecord", unsafe {
            sys::cuEventRecord(self.event, stream.raw())
        })
    }

    /// Whether the work before the mark is done.
    ///
    /// # Errors
    ///
    /// As [`Stream::copy`].
    pub fn is_done(&self) -> Result<bool, CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: a live event.
        done(&self.gpu, "cuEventQuery", unsafe {
            sys::cuEventQuery(self.event)
        })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _entered = self.gpu.enter();
        // SAFETY: not used again; the driver keeps it until it is done.
        warn(self.gpu.check("cuEventDestroy", unsafe {
            sys::cuEventDestroy_v2(self.event)
        }));
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:?})", self.gpu)
    }
}
