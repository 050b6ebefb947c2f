// SPDX-License-Identifier: MIT
//! What can be seen of a running program: counters as Prometheus's text, and spans.

#[path = "../common/mod.rs"]
mod common;
mod exposition;
mod prometheus;
mod spans;
