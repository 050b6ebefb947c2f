// SPDX-License-Identifier: MIT
//! Channels whose kernels post work requests themselves, over NICs in software.

mod binding;
mod channels;
mod failures;
#[path = "../../src/testing/local.rs"]
mod local;
mod policy;
mod service;
mod sharing;
mod stalled;
mod support;
mod teardown;
mod world;
