// SPDX-License-Identifier: MIT
//! What a GPU thread sees: device headers, their mirrors in Rust, and an
//! executor that runs the same headers on CPU threads.

pub mod abi;
#[cfg(feature = "host-executor")]
pub mod executor;
pub mod headers;
#[cfg(feature = "nvrtc")]
pub mod nvrtc;
