// SPDX-License-Identifier: MIT
//! What can go wrong with a launch.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

/// Where in its grid a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId {
    /// `blockIdx.x`
    pub block: u32,
    /// `threadIdx.x`
    pub thread: u32,
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {} of block {}", self.thread, self.block)
    }
}

/// Why a kernel did not run, or has not ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// No threads at all, or too many.
    #[error(
        "kernel {kernel}: {grid} blocks of {block} threads cannot be launched; a block has 1 to \
         {} threads, a launch at most {}",
        super::MAX_BLOCK,
        super::MAX_THREADS
    )]
    Dimensions {
        /// Name of the kernel.
        kernel: &'static str,
        /// Blocks asked for.
        grid: u32,
        /// Threads a block asked for.
        block: u32,
    },
    /// The entry did not answer: it was built with headers of another version.
    #[error(
        "kernel {kernel} was compiled with headers of another version; build it with the include \
         directory of this mscclpp-device (DEP_MSCCLPP_DEVICE_INCLUDE)"
    )]
    OtherHeaders {
        /// Name of the kernel.
        kernel: &'static str,
    },
    /// The arguments are not what the kernel was defined with.
    #[error("kernel {kernel} takes {expected} bytes of arguments and was given {given}")]
    Arguments {
        /// Name of the kernel.
        kernel: &'static str,
        /// Size of the kernel's argument type.
        expected: u64,
        /// Size of the type given.
        given: u64,
    },
    /// The object cannot run on a memory model.
    #[error(
        "kernel {kernel} was compiled without MSCCLPP_MODELLED_MEMORY and cannot be launched on a \
         memory model; use its _modelled entry"
    )]
    NotModelled {
        /// Name of the kernel.
        kernel: &'static str,
    },
    /// The system gave no more threads.
    #[error("kernel {kernel}: starting thread {started} of {wanted} failed")]
    Spawn {
        /// Name of the kernel.
        kernel: &'static str,
        /// Threads that had been started (they did not enter the kernel).
        started: u32,
        /// Threads that the launch has.
        wanted: u32,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// Threads still run at the deadline. They go on running: the memory that
    /// they use must stay, and joining again is possible.
    #[error(
        "kernel {kernel}: {unfinished} of {total} threads still run after {waited:.1?}, the first is \
         {first}; see docs/errors.md, \"A kernel does not end\""
    )]
    Unfinished {
        /// Name of the kernel.
        kernel: &'static str,
        /// How long was waited.
        waited: Duration,
        /// Threads that have not returned.
        unfinished: u32,
        /// Threads that the launch has.
        total: u32,
        /// The first of them.
        first: ThreadId,
    },
    /// An observer of the memory model panicked. The kernel has ended.
    #[error("kernel {kernel}: the memory model's observer panicked: {message}")]
    Observer {
        /// Name of the kernel.
        kernel: &'static str,
        /// What it said.
        message: String,
    },
}
