// SPDX-License-Identifier: MIT
//! Registered memory.

/// A range of memory that peers may write.
#[derive(Debug, Clone, Default)]
pub struct RegisteredMemory;
