// SPDX-License-Identifier: MIT
//! Runs kernels written against the device headers on CPU threads.
//!
//! A kernel is a C++ function made by `MSCCLPP_KERNEL` (`kernel.hpp`). Each GPU
//! thread becomes an OS thread; `__syncthreads()` sleeps until the threads of
//! the block that still run have arrived. What is supported: `threadIdx.x`,
//! `blockIdx.x`, `blockDim.x`, `gridDim.x`, `__syncthreads()`,
//! `__syncthreads_or()`, the three `__threadfence`s, and the device headers.
//! There is no shared memory, and there are no warps.
//!
//! A kernel object compiled with `MSCCLPP_MODELLED_MEMORY` can also be launched
//! on a memory model ([`HostKernel::launch_modelled`]): [`Trace`] records what
//! it does, [`Weak`] delays and reorders its stores as far as a GPU might.
//!
//! # Ending
//!
//! A kernel ends when its threads return. Nothing here can stop one: what its
//! loops wait for has to arrive, or the host has to set the status word that
//! they watch. [`Running::join`] waits no longer than told and then names the
//! threads that still run.

mod barrier;
mod context;
mod error;
mod launch;
pub mod memory;

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

pub use crate::launch_dims::{LaunchDims, MAX_BLOCK};
pub use error::{ExecutorError, ThreadId};
pub use launch::Running;
pub use memory::{Model, Trace, Weak};

use crate::trace::Ring;
use launch::Launch;

/// The function that `MSCCLPP_KERNEL(name, Args)` defines on the host, under
/// the kernel's name (`name_modelled` where memory is modelled, `name_traced` where calls are traced).
pub type Entry = unsafe extern "C" fn(context: *const c_void);

/// Most threads in a launch. Each is an OS thread.
pub const MAX_THREADS: u32 = 4096;

/// A kernel that can be launched on CPU threads. `Copy`, may be shared by threads.
#[derive(Clone, Copy, Debug)]
pub struct HostKernel {
    name: &'static str,
    entry: Entry,
}

impl HostKernel {
    /// The kernel whose host entry is `entry`; `name` stands in errors.
    ///
    /// # Safety
    ///
    /// `entry` was made by `MSCCLPP_KERNEL`, and stays loaded while launches
    /// run. For every `args` given to a launch: they are of the C++ type that
    /// the kernel was defined with, and what the kernel does with them is sound
    /// on any number of threads; in particular all memory that they name by
    /// address lives until the launch has ended, which a failed
    /// [`Running::join`] or a dropped [`Running`] does not show.
    pub const unsafe fn new(name: &'static str, entry: Entry) -> Self {
        Self { name, entry }
    }

    /// The name given to [`new`](Self::new).
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Starts the kernel with a copy of `args` for each thread.
    ///
    /// # Errors
    ///
    /// Wrong dimensions, arguments of another size than the kernel's, an entry
    /// made by other headers, or no more OS threads. No thread has run then.
    pub fn launch<T: Copy + Send + 'static>(
        &self,
        dims: LaunchDims,
        args: T,
    ) -> Result<Running, ExecutorError> {
        Launch::start(*self, dims, args, None, None)
    }

    /// Starts the kernel, whose calls leave records in `ring` if the object was compiled with
    /// `MSCCLPP_DEVICE_TRACE` (its entry is `name_traced`); else it runs as by [`launch`](Self::launch).
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch).
    pub fn launch_traced<T: Copy + Send + 'static>(
        &self,
        dims: LaunchDims,
        args: T,
        ring: &Arc<Ring>,
    ) -> Result<Running, ExecutorError> {
        Launch::start(*self, dims, args, None, Some(Arc::clone(ring)))
    }

    /// Starts the kernel on a memory model. The object must have been compiled
    /// with `MSCCLPP_MODELLED_MEMORY`.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch), and [`ExecutorError::NotModelled`].
    pub fn launch_modelled<T: Copy + Send + 'static>(
        &self,
        dims: LaunchDims,
        args: T,
        model: impl Into<Model>,
    ) -> Result<Running, ExecutorError> {
        Launch::start(*self, dims, args, Some(model.into()), None)
    }

    /// Launches and waits; what most tests want.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch) and [`Running::join`]. After [`ExecutorError::Unfinished`] the kernel
    /// still runs: what its arguments name must not be freed, so end the process.
    pub fn run<T: Copy + Send + 'static>(
        &self,
        dims: LaunchDims,
        args: T,
        timeout: Duration,
    ) -> Result<(), ExecutorError> {
        self.launch(dims, args)?.join(timeout)
    }
}
