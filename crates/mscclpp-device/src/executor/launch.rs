// SPDX-License-Identifier: MIT
//! One launch: its threads, their start and their end.

use std::ffi::c_void;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::barrier::Barrier;
use super::context::{Description, HOOKS, ThreadContext, VERSION};
use super::error::{ExecutorError, ThreadId};
use super::memory::{Model, ThreadMemory};
use super::{HostKernel, LaunchDims, MAX_BLOCK, MAX_THREADS};
use crate::trace::{Ring, RingHandle};

/// Kernels are shallow; thousands of threads should not reserve gigabytes.
const STACK_BYTES: usize = 256 * 1024;

pub(crate) struct Launch {
    kernel: HostKernel,
    dims: LaunchDims,
    args: Args,
    barriers: Vec<Barrier>,
    model: Option<Model>,
    trace: Option<Traced>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

/// A ring, and what the threads are told of it.
struct Traced {
    handle: RingHandle,
    _ring: Arc<Ring>,
}

struct Progress {
    gate: Gate,
    remaining: u32,
    finished: Vec<bool>,
}

/// Threads enter the kernel only when all of them exist.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Closed,
    Open,
    Cancelled,
}

/// The launch's copy of its arguments.
struct Args {
    bytes: *const c_void,
    drop: unsafe fn(*const c_void),
}

// SAFETY: made from a `T: Copy + Send` that is never changed and only copied bytewise by the C++ side.
unsafe impl Send for Args {}
// SAFETY: as above; threads only read it.
unsafe impl Sync for Args {}

impl Args {
    fn new<T: Copy + Send + 'static>(args: T) -> Self {
        unsafe fn free<T>(bytes: *const c_void) {
            // SAFETY: `bytes` came from Box::into_raw of a Box<T> below, and drop runs once.
            drop(unsafe { Box::from_raw(bytes.cast_mut().cast::<T>()) });
        }
        Self {
            bytes: Box::into_raw(Box::new(args)).cast_const().cast(),
            drop: free::<T>,
        }
    }
}

impl Drop for Args {
    fn drop(&mut self) {
        // SAFETY: `drop` is the function that `new` paired with these bytes.
        unsafe { (self.drop)(self.bytes) }
    }
}

/// What the hooks know of the thread that calls them.
pub(crate) struct ThreadState {
    launch: Arc<Launch>,
    id: ThreadId,
    pub(crate) memory: ThreadMemory,
}

impl ThreadState {
    pub(crate) fn barrier(&self, predicate: bool) -> bool {
        self.memory.arrive();
        let any = self.launch.barriers[self.id.block as usize].arrive(predicate);
        self.memory.leave();
        any
    }
}

impl Launch {
    pub(crate) fn start<T: Copy + Send + 'static>(
        kernel: HostKernel,
        dims: LaunchDims,
        args: T,
        model: Option<Model>,
        trace: Option<Arc<Ring>>,
    ) -> Result<Running, ExecutorError> {
        let total = threads_of(kernel, dims)?;
        check_entry(kernel, size_of::<T>() as u64, model.is_some())?;
        let launch = Arc::new(Self {
            kernel,
            dims,
            args: Args::new(args),
            barriers: (0..dims.grid).map(|_| Barrier::new(dims.block)).collect(),
            model,
            trace: trace.map(|ring| Traced {
                handle: ring.handle(),
                _ring: ring,
            }),
            progress: Mutex::new(Progress {
                gate: Gate::Closed,
                remaining: total,
                finished: vec![false; total as usize],
            }),
            changed: Condvar::new(),
        });
        let number = launch.model.as_ref().map_or(0, Model::begin);

        let mut threads = Vec::with_capacity(total as usize);
        for index in 0..total {
            let id = ThreadId {
                block: index / dims.block,
                thread: index % dims.block,
            };
            let own = launch.clone();
            let spawned = thread::Builder::new()
                .name(format!("k{}.{}", id.block, id.thread))
                .stack_size(STACK_BYTES)
                .spawn(move || own.run(id, number));
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    launch.open(Gate::Cancelled);
                    for thread in threads {
                        let _ = thread.join();
                    }
                    return Err(ExecutorError::Spawn {
                        kernel: kernel.name,
                        started: index,
                        wanted: total,
                        source,
                    });
                }
            }
        }
        launch.open(Gate::Open);
        Ok(Running {
            launch,
            threads: Mutex::new(threads),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, gate: Gate) {
        self.lock().gate = gate;
        self.changed.notify_all();
    }

    fn run(self: Arc<Self>, id: ThreadId, number: u64) {
        let gate = self
            .changed
            .wait_while(self.lock(), |progress| progress.gate == Gate::Closed)
            .unwrap_or_else(PoisonError::into_inner)
            .gate;
        if gate == Gate::Cancelled {
            return;
        }
        // The naps of device code that waits are short at first; the default slack of 50 µs would make
        // them six times as long. Without it they are only less exact.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1000));
        let state = ThreadState {
            memory: ThreadMemory::new(self.model.as_ref(), number, id),
            launch: self.clone(),
            id,
        };
        let context = ThreadContext {
            version: VERSION,
            thread_idx: id.thread,
            block_idx: id.block,
            block_dim: self.dims.block,
            grid_dim: self.dims.grid,
            reserved: 0,
            args: self.args.bytes,
            hooks: &raw const HOOKS,
            this: (&raw const state).cast(),
            trace: (self.trace.as_ref())
                .map_or(std::ptr::null(), |traced| &raw const traced.handle),
        };
        // SAFETY: `HostKernel::new` promised that the entry is one of MSCCLPP_KERNEL's, loaded, and
        // sound with these arguments, whose size was checked. The context and what it points to
        // live until the call returns.
        unsafe { (self.kernel.entry)((&raw const context).cast()) };
        state.memory.exit();
        self.barriers[id.block as usize].leave();
        self.finish(id, number);
    }

    fn finish(&self, id: ThreadId, number: u64) {
        let mut progress = self.lock();
        if progress.remaining == 1
            && let Some(model) = &self.model
        {
            // The end of a kernel makes all that it wrote visible.
            model.end(number);
        }
        progress.finished[(id.block * self.dims.block + id.thread) as usize] = true;
        progress.remaining -= 1;
        if progress.remaining == 0 {
            self.changed.notify_all();
        }
    }
}

fn threads_of(kernel: HostKernel, dims: LaunchDims) -> Result<u32, ExecutorError> {
    let LaunchDims { grid, block } = dims;
    match grid.checked_mul(block) {
        Some(1..=MAX_THREADS) if block <= MAX_BLOCK => Ok(grid * block),
        _ => Err(ExecutorError::Dimensions {
            kernel: kernel.name,
            grid,
            block,
        }),
    }
}

/// Asks the entry what it is.
fn check_entry(kernel: HostKernel, given: u64, modelled: bool) -> Result<(), ExecutorError> {
    let description = Description::default();
    let context = ThreadContext {
        version: VERSION,
        thread_idx: 0,
        block_idx: 0,
        block_dim: 0,
        grid_dim: 0,
        reserved: 0,
        args: std::ptr::null(),
        hooks: &raw const HOOKS,
        this: (&raw const description).cast(),
        trace: std::ptr::null(),
    };
    // SAFETY: the entry is one of MSCCLPP_KERNEL's; without arguments it calls `describe` or nothing.
    unsafe { (kernel.entry)((&raw const context).cast()) };
    let kernel = kernel.name;
    match description.told.get() {
        None => Err(ExecutorError::OtherHeaders { kernel }),
        Some((expected, _)) if expected != given => Err(ExecutorError::Arguments {
            kernel,
            expected,
            given,
        }),
        Some((_, false)) if modelled => Err(ExecutorError::NotModelled { kernel }),
        Some(_) => Ok(()),
    }
}

/// A launched kernel.
///
/// Dropping it does not end the kernel: threads that still run go on, with a
/// warning in the log.
pub struct Running {
    launch: Arc<Launch>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Running {
    /// Waits until all threads have returned, `timeout` at most.
    ///
    /// # Errors
    ///
    /// [`ExecutorError::Unfinished`] if some still run; it may be called again.
    /// [`ExecutorError::Observer`] if the model's observer panicked.
    pub fn join(&self, timeout: Duration) -> Result<(), ExecutorError> {
        let kernel = self.launch.kernel.name;
        let started = Instant::now();
        let (progress, _) = self
            .launch
            .changed
            .wait_timeout_while(self.launch.lock(), timeout, |p| p.remaining > 0)
            .unwrap_or_else(PoisonError::into_inner);
        if progress.remaining > 0 {
            let first = progress.finished.iter().position(|done| !done).unwrap_or(0) as u32;
            return Err(ExecutorError::Unfinished {
                kernel,
                waited: started.elapsed(),
                unfinished: progress.remaining,
                total: progress.finished.len() as u32,
                first: ThreadId {
                    block: first / self.launch.dims.block,
                    thread: first % self.launch.dims.block,
                },
            });
        }
        drop(progress);
        // All have left the kernel: this waits for the threads' last instructions only.
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
        match self.launch.model.as_ref().and_then(Model::failure) {
            Some(message) => Err(ExecutorError::Observer { kernel, message }),
            None => Ok(()),
        }
    }

    /// Whether all threads have returned.
    pub fn is_finished(&self) -> bool {
        self.launch.lock().remaining == 0
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("kernel", &self.launch.kernel.name)
            .field("remaining", &self.launch.lock().remaining)
            .finish()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let remaining = self.launch.lock().remaining;
        if remaining > 0 {
            tracing::warn!(
                kernel = self.launch.kernel.name,
                remaining,
                "dropped a kernel that still runs"
            );
        }
    }
}
