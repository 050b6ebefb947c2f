// SPDX-License-Identifier: MIT
//! The locks that the mailbox stands on: the standard library's, or loom's in a
//! model.

#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
