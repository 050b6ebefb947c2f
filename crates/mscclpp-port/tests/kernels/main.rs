// SPDX-License-Identifier: MIT
//! Kernels in C++, run by the executor on CPU threads, against the host side of this crate.

mod fifo;
mod support;
