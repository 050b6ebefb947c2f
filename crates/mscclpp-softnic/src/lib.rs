// SPDX-License-Identifier: MIT
//! A strict mlx5 network card in software.
//!
//! Empty so far: the GPU-initiated backend fills it.
