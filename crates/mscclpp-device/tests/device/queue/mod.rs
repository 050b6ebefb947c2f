// SPDX-License-Identifier: MIT
//! Channels on a send queue: what device code writes, and what a NIC does with
//! it.

pub(crate) mod baton;
pub(crate) mod blocks;
pub(crate) mod failures;
pub(crate) mod limits;
pub(crate) mod operations;
pub(crate) mod order;
pub(crate) mod stale;
pub(crate) mod threads;
pub(crate) mod waits;
