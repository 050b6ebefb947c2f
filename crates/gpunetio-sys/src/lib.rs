// SPDX-License-Identifier: MIT
//! Raw bindings to NVIDIA's DOCA GPUNetIO, built from a pinned checkout.
//!
//! Empty so far: the GPU-initiated backend on real network cards fills it.
//! `third_party.lock` at the workspace root names the pin.
