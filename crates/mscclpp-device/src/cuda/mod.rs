// SPDX-License-Identifier: MIT
//! GPUs: their memory, streams, and kernels compiled at run time.
//!
//! The driver is loaded when first asked for ([`driver`]); a program with this module runs on
//! machines without one too, and gets [`CudaError::NoDriver`]. Each call makes the GPU's primary
//! context current for its own time and gives the caller's back, so it does not matter which GPU a
//! thread has chosen. Addresses are `u64`s in the one address space that host and GPUs share.
//!
//! Nothing here synchronizes with a whole GPU, because a kernel that spins for a peer would never let
//! it: memory is mapped and unmapped instead of `cudaMalloc`ed, host memory stays pinned once it is
//! ([`HostPages`]), streams are non-blocking, and waits look at one event, with a deadline.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use mscclpp_device::LaunchDims;
//! use mscclpp_device::cuda::{CudaError, DeviceMemory, Gpu, Module, PinnedMemory, Stream};
//! use mscclpp_device::nvrtc::Program;
//!
//! #[derive(Clone, Copy)]
//! #[repr(C)]
//! struct Args {
//!     sum: u64,
//! }
//!
//! let gpu = Gpu::open(0)?;
//! let source = r#"
//!     #include <mscclpp/kernel.hpp>
//!     struct Args { unsigned long long* sum; };
//!     MSCCLPP_KERNEL(count, Args) { atomicAdd(args.sum, 1); }
//! "#;
//! let module = Module::compile(&gpu, &Program::new("count.cu", source))?;
//! // SAFETY: `Args` is the twin of the C++ struct, and its memory outlives the kernel.
//! let count = unsafe { module.kernel("count") }?;
//! let (stream, sum) = (Stream::new(&gpu)?, DeviceMemory::new(&gpu, 8)?);
//! let dims = LaunchDims { grid: 4, block: 32 };
//! let running = count.launch(dims, Args { sum: sum.address() }, &stream)?;
//! let seen = PinnedMemory::new(&gpu, 8)?;
//! // SAFETY: both live until the stream has been waited for.
//! unsafe { stream.copy(seen.address(), sum.address(), 8) }?;
//! stream.wait(Duration::from_secs(10))?;
//! running.join(Duration::from_secs(1))?;
//! // SAFETY: aligned memory that nobody writes any more.
//! assert_eq!(unsafe { seen.as_ptr().cast::<u64>().read() }, 128);
//! # Ok::<(), CudaError>(())
//! ```

mod block;
mod cache;
mod driver;
mod error;
mod facts;
mod gpu;
mod graph;
mod host;
mod memory;
mod module;
mod share;
mod stream;
mod trace;

pub use cache::CACHE_VARIABLE;
pub use driver::{driver, driver_version, gpu_count};
pub use error::CudaError;
pub use facts::GpuFacts;
pub use gpu::{Entered, Gpu};
pub use graph::Graph;
pub use host::{HostPages, PinnedMemory};
pub use memory::DeviceMemory;
pub use module::{CudaKernel, Module, RunningKernel};
pub use share::{DmaBuf, Export, ImportedMemory, export, export_dma_buf};
pub use stream::{Event, Stream};
pub use trace::{ClockOffset, GpuRing};
