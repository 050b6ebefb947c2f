// SPDX-License-Identifier: MIT
//! HCAs whose queues NVIDIA's GPUNetIO makes, by `gpunetio-sys`.
//!
//! What the library has no part in, another provider of this crate does: registrations, the port, the
//! fabric and its news. The library makes queue pairs, by its low-level calls, because those that do
//! it in one leak where they fail; each of its objects has an owner here ([`calls`]).
//!
//! - [`hca`]: the provider.
//! - [`create`]: a queue pair, step by step; [`exported`]: whether it is what was asked for.
//! - [`queue`]: its way to RTS, and what becomes of it.
//! - [`real`]: an mlx5 device under the library, which nobody has tried; `soft`, with the feature
//!   `gpunetio-soft`: a NIC in software under it (`doca:soft0`).

mod calls;
mod create;
mod exported;
mod hca;
mod queue;
mod real;
#[cfg(feature = "gpunetio-soft")]
mod soft;

pub(crate) use hca::DocaHca;
#[cfg(all(test, not(loom), feature = "gpunetio-soft"))]
pub(crate) use soft::{Watch, tests};
