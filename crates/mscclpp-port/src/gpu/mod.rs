// SPDX-License-Identifier: MIT
//! GPUs, as far as this crate uses them: memory, host memory that they reach, and copies.
//!
//! The rest of the crate is the same with and without the feature `cuda`: without it these types
//! have no values, and whoever asks for a GPU gets [`Error::DeviceUnavailable`].
//!
//! A kernel may spin for as long as it likes, so nothing here synchronizes with a GPU: what is
//! waited for is the end of copies on streams of this crate, under a deadline. What a copy that has
//! not ended uses is never freed: after the deadline it is left to the process, with a warning.
//!
//! [`Error::DeviceUnavailable`]: crate::Error::DeviceUnavailable

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod lane;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(feature = "cuda")]
mod service;
#[cfg(feature = "cuda")]
mod staging;

#[cfg(all(not(feature = "cuda"), not(loom)))]
pub(crate) use absent::VisiblePages;
#[cfg(all(not(feature = "cuda"), feature = "ib"))]
pub(crate) use absent::pci_address;
#[cfg(not(feature = "cuda"))]
pub(crate) use absent::{GpuMemory, Piece, PinnedHost, Staging, check};
#[cfg(feature = "cuda")]
pub(crate) use lane::Lane;
#[cfg(all(feature = "cuda", feature = "ib"))]
pub(crate) use memory::pci_address;
#[cfg(feature = "cuda")]
pub(crate) use memory::{GpuMemory, PinnedHost, VisiblePages, check, failed, open};
#[cfg(feature = "cuda")]
pub(crate) use staging::{Piece, Staging};

use std::any::Any;
use std::sync::Arc;

/// What a copy uses.
pub(crate) type Keep = Arc<dyn Any + Send + Sync>;
