// SPDX-License-Identifier: MIT
//! How many threads run a kernel, on a GPU or on CPU threads.

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchDims {
    /// Blocks in the grid, at least 1.
    pub grid: u32,
    /// Threads in each block, at least 1.
    pub block: u32,
}

/// Most threads in a block, as on a GPU.
pub const MAX_BLOCK: u32 = 1024;
