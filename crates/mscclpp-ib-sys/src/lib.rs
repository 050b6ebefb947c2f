// SPDX-License-Identifier: MIT
//! Raw libibverbs and mlx5dv, loaded at run time.
//!
//! Empty so far: the InfiniBand transport fills it.
