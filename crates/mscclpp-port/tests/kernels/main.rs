// SPDX-License-Identifier: MIT
//! Kernels in C++, run by the executor on CPU threads, against the host side of this crate.

mod channels;
#[path = "../common/kernels.rs"]
mod compiled;
#[path = "../common/end.rs"]
mod end;
mod fifo;
#[path = "../../src/testing/local.rs"]
mod local;
mod pair;
mod support;
mod teardown;
