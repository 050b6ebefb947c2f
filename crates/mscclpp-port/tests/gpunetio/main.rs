// SPDX-License-Identifier: MIT
//! Channels whose kernels post work requests themselves, over NICs in software.

mod binding;
mod channels;
#[path = "../common/kernels.rs"]
mod compiled;
mod counters;
#[path = "../common/end.rs"]
mod end;
mod failures;
#[path = "../../src/testing/local.rs"]
mod local;
mod owned;
mod policy;
mod ranks;
mod rebuild;
mod service;
mod sharing;
mod stalled;
mod support;
mod teardown;
mod world;
