// SPDX-License-Identifier: MIT
//! Host memory that kernels see: rings, status words, flush positions.
//!
//! Kernels on CPU threads see any memory. A GPU has to be told of it, by whole pages and once each;
//! so each object lies on pages of its own, and is shown when the first GPU needs it.

#[cfg(loom)]
mod modelled;
#[cfg(not(loom))]
mod paged;

#[cfg(loom)]
pub(crate) use modelled::Visible;
#[cfg(not(loom))]
pub(crate) use paged::Visible;
