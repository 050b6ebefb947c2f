// SPDX-License-Identifier: MIT
//! Raw bindings to the open host library of NVIDIA's DOCA GPUNetIO: queue pairs of an mlx5
//! device in a GPU's memory. The library is loaded at run time, from a shared object that the user
//! has.
//!
//! # The feature
//!
//! Everything is behind the feature `gpunetio`, which is off by default: without it this crate
//! is empty, and nothing of the library is looked for or named. With it nothing is needed to build,
//! and nothing of the library is compiled or linked. It needs the features `cuda` and `ib`, by
//! which a crate on top says that it has CUDA and InfiniBand; they do nothing else here. There is no
//! ROCm.
//!
//! # The library
//!
//! `Library::over_system` loads it when it is first called:
//!
//! - `GPUNETIO_LIBRARY` names the shared object, as NVIDIA's own build or any other has made it. If
//!   it is not set that is an error, and nothing else is looked for. It finds libibverbs, libmlx5
//!   and CUDA by its own linking.
//! - 4.0.1 is the version of the commit that `third_party.lock` pins. 3.0.0 and another 4.0 are
//!   understood, and refused unless `GPUNETIO_ALLOW_UNPINNED=1`, which makes of it a warning that
//!   `LibraryVersion` has. Any other version is refused. The version is what the library says of
//!   itself: nothing here knows which files it was made of.
//! - `DOCA_SDK_LIB_PATH` is refused: with it the library hands all objects to NVIDIA's closed one.
//!
//! # Parts
//!
//! - `ffi`: the library's functions; `device`: what it exports for the GPU; `verbs` and
//!   `result`: what it takes and returns.
//! - `version`: what is not the same in all versions.
//! - `seam` (feature `seam`, for tests): a table of functions under the library, in the place of
//!   libibverbs, libmlx5 and CUDA. Programs without that feature have nothing of it, and no program
//!   exports any of its functions.
//!
//! What the library does badly, and who has to stay clear of it how, is in `docs/provenance.md`.

#[cfg(all(feature = "gpunetio", not(all(feature = "cuda", feature = "ib"))))]
compile_error!("the feature `gpunetio` needs `cuda` and `ib` too; it supports no ROCm");

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
#[cfg(feature = "seam")]
pub mod seam;
#[cfg(feature = "gpunetio")]
pub mod verbs;
#[cfg(feature = "gpunetio")]
pub mod version;

#[cfg(feature = "gpunetio")]
pub use error::Error;
#[cfg(feature = "gpunetio")]
pub use library::{Library, LibraryVersion, Under};
