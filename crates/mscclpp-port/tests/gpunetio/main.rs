// SPDX-License-Identifier: MIT
//! Channels whose kernels post work requests themselves, over NICs in software.

mod channels;
#[path = "../../src/testing/local.rs"]
mod local;
mod support;
mod world;
