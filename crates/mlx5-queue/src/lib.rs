// SPDX-License-Identifier: MIT
//! The wire facts of mlx5 queues: work requests, completions, doorbells.
//!
//! Empty so far: the GPU-initiated backend fills it.
#![forbid(unsafe_code)]
