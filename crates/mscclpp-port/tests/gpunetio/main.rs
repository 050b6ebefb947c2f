// SPDX-License-Identifier: MIT
//! Channels whose kernels post work requests themselves, over NICs in software.

mod channels;
mod failures;
#[path = "../../src/testing/local.rs"]
mod local;
mod support;
mod teardown;
mod world;
