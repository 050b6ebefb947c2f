// SPDX-License-Identifier: MIT
//! The multi-process conformance suite and the benchmark: a process per rank.
//!
//! `cargo xtask test-mp` and `cargo xtask bench` start the two programs of this package, and on GPUs
//! `xtask gpu-run` (`--executor cuda`). A new backend is one more row in [`backend::BACKENDS`]: every
//! test and every measurement of channels runs on each row.

pub mod backend;
pub mod bench;
#[cfg(doctest)]
pub mod book;
pub mod cases;
#[path = "../../xtask/src/closed_pipe.rs"]
pub mod closed_pipe;
pub mod fixture;
pub mod harness;
pub mod kernels;
pub mod log;
pub mod pair;
pub mod provider;
pub mod scale;
pub mod soak;
pub mod trace_demo;
