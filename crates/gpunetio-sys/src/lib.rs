// SPDX-License-Identifier: MIT
//! Raw bindings to the open host library of NVIDIA's DOCA GPUNetIO: queue pairs of an mlx5
//! device in a GPU's memory.
//!
//! # The feature
//!
//! Everything is behind the feature `gpunetio`, which is off by default: without it this crate
//! is empty, and nothing of the library is looked for, compiled, linked or named. With it, it
//! needs the features `cuda` and `ib`, by which a crate on top says that it has CUDA and
//! InfiniBand; they do nothing else here. There is no ROCm.
//!
//! **The library's own files are not compiled yet**: with the feature, the build checks the
//! checkout, compiles the declarations' assertions and the function table against it, and then
//! stops. For that it needs
//!
//! - a checkout of the library: `cargo xtask fetch` gets the commit that `third_party.lock`
//!   pins, by its hash. `GPUNETIO_SOURCE_DIR` names another checkout; if it is another commit or
//!   changed, the build stops, unless `GPUNETIO_ALLOW_UNPINNED=1`, which makes of it a warning
//!   that `library_version` repeats. Versions 3.0 and 4.0 are understood. The sources are
//!   compiled unmodified and never copied.
//! - a C++17 compiler, the headers of CUDA's run-time library (`CUDA_HOME`, `CUDA_PATH` or
//!   `/usr/local/cuda`) and of rdma-core (`infiniband/verbs.h`). No library of either is linked.
//!
//! # Parts
//!
//! - `seam`: the function table through which all calls of the library to verbs, mlx5 and
//!   CUDA go. Who calls the library has to say what they reach.
//! - `ffi`: the library's functions; `device`: what it exports for the GPU; `verbs` and
//!   `result`: what both sides of the table speak.
//! - `version`: what is not the same in all versions.
//! - `library_version`: which library this is.
//!
//! All of the library's symbols are hidden: a shared object that contains it exports none.
//! What it does badly, and who has to stay clear of it how, is in `docs/provenance.md`.

#[cfg(feature = "gpunetio")]
pub mod device;
#[cfg(feature = "gpunetio")]
mod error;
#[cfg(feature = "gpunetio")]
pub mod ffi;
#[cfg(feature = "gpunetio")]
mod library;
#[cfg(feature = "gpunetio")]
pub mod result;
#[cfg(feature = "gpunetio")]
pub mod seam;
#[cfg(feature = "gpunetio")]
pub mod verbs;
#[cfg(feature = "gpunetio")]
pub mod version;

#[cfg(feature = "gpunetio")]
pub use error::Error;
#[cfg(feature = "gpunetio")]
pub use library::{LibraryVersion, library_version};
