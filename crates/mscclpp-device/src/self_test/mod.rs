// SPDX-License-Identifier: MIT
//! One request on a new queue, posted and polled by device code.
//!
//! Queue pairs that come up through all their states and then execute nothing,
//! without any error, are a known fault of adapters in the field. Whoever makes
//! a queue runs this before handing it out.

#[cfg(feature = "cuda")]
mod gpu;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::abi::{AbiError, QueueDeviceHandle, Status, StatusWord};
use crate::executor::{ExecutorError, HostKernel, LaunchDims};

#[cfg(feature = "cuda")]
pub use gpu::{prepare, run_on_gpu};

unsafe extern "C" {
    fn mscclpp_queue_self_test(context: *const c_void);
}

/// How long to wait for the kernel before asking whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The kernel ends itself at its timeout; this is for a machine that is busy.
const GRACE: Duration = Duration::from_secs(30);

/// Why a queue is not fit for use.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SelfTestError {
    /// The queue took the request and the doorbell, and did nothing in time.
    #[error(
        "queue {queue:#x} has executed nothing within {timeout:?}: it came up, and takes no work \
         requests"
    )]
    NotExecuting {
        /// Number of the queue pair.
        queue: u32,
        /// Time that it had.
        timeout: Duration,
    },
    /// The request failed.
    #[error("the first request on queue {queue:#x} ended with {status:?}")]
    Failed {
        /// Number of the queue pair.
        queue: u32,
        /// What the device code returned; the queue's state has the syndrome.
        status: Status,
    },
    /// The handle is of another layout.
    #[error(transparent)]
    Layout(#[from] AbiError),
    /// The kernel could not be run.
    #[error("cannot run the self-test of queue {queue:#x}: {source}")]
    Executor {
        /// Number of the queue pair.
        queue: u32,
        /// Why.
        source: ExecutorError,
    },
    /// The kernel could not be run on a GPU.
    #[cfg(feature = "cuda")]
    #[error("cannot run the self-test of queue {queue:#x}: {source}")]
    Gpu {
        /// Number of the queue pair.
        queue: u32,
        /// Why.
        source: crate::cuda::CudaError,
    },
}

/// Twin of the kernel's arguments.
#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    queue: QueueDeviceHandle,
    timeout_ns: u64,
    over: u64,
    status: u64,
}

/// Posts a write of no bytes to `queue` from a CPU thread, and waits until the
/// peer has acknowledged it. Takes one position of the queue. `over` is asked every
/// few milliseconds whether the test is still wanted; it is not once it says true.
///
/// # Errors
///
/// [`SelfTestError::NotExecuting`] at the timeout, [`SelfTestError::Failed`]
/// with the queue's error, or with [`Status::Aborted`] when it is over,
/// [`SelfTestError::Layout`] for a handle of another version.
///
/// # Safety
///
/// All addresses of the handle are valid in this process and stay so until the
/// call has returned, and, after [`SelfTestError::Executor`], for as long as
/// the process lives. Nobody else posts to the queue meanwhile.
pub unsafe fn run(
    queue: QueueDeviceHandle,
    timeout: Duration,
    over: impl Fn() -> bool,
) -> Result<(), SelfTestError> {
    queue.check()?;
    let number = queue.number;
    let status = Arc::new([AtomicU64::new(u64::MAX), AtomicU64::new(0)]);
    let args = Args {
        queue,
        timeout_ns: u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX / 2),
        over: status[1].as_ptr().expose_provenance() as u64,
        status: status[0].as_ptr().expose_provenance() as u64,
    };
    // SAFETY: made by MSCCLPP_KERNEL with the C++ twin of `Args`; the status word is kept until the
    // kernel has ended, or for ever, and the caller keeps the queue.
    let kernel = unsafe { HostKernel::new("queue self-test", mscclpp_queue_self_test) };
    let one = LaunchDims { grid: 1, block: 1 };
    let failed = |source| SelfTestError::Executor {
        queue: number,
        source,
    };
    let running = kernel.launch(one, args).map_err(failed)?;
    let started = Instant::now();
    while let Err(source) = running.join(LOOK_EVERY) {
        if started.elapsed() > timeout.saturating_add(GRACE) {
            std::mem::forget(status);
            return Err(failed(source));
        }
        if over() {
            let aborted = StatusWord::new(Status::Aborted, 0);
            status[1].store(aborted.to_bits(), Ordering::Release);
        }
    }
    outcome(number, status[0].load(Ordering::Acquire), timeout)
}

/// What the kernel has written.
fn outcome(queue: u32, status: u64, timeout: Duration) -> Result<(), SelfTestError> {
    let code = u32::try_from(status).unwrap_or(u32::MAX);
    match Status::try_from(code).unwrap_or(Status::QueueError) {
        Status::Ok => Ok(()),
        Status::Timeout => Err(SelfTestError::NotExecuting { queue, timeout }),
        status => Err(SelfTestError::Failed { queue, status }),
    }
}
