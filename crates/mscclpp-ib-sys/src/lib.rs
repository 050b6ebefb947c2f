// SPDX-License-Identifier: MIT
//! Raw libibverbs and mlx5dv, loaded at run time.
//!
//! Building needs neither library, nor their headers, nor libclang. The library is loaded by the
//! first use: the file that the environment variable [`MSCCLPP_IBV_SO`](LIBRARY_VARIABLE) names, else
//! `libibverbs.so.1`, else `libibverbs.so`. Where there is none, [`Verbs::get`] returns a
//! [`LoadError`], so that one binary serves machines with and without it. libmlx5 ([`Mlx5dv`]) is
//! optional.
//!
//! Types, fields, constants and functions have the names that they have in C. `cargo xtask bindings
//! --check` holds every declaration against the headers of the system's rdma-core: size, alignment
//! and fields of each structure, value of each constant.
//!
//! ```
//! use mscclpp_ib_sys::Verbs;
//!
//! match Verbs::get() {
//!     Ok(verbs) => println!("loaded {}", verbs.file()),
//!     Err(error) => println!("no InfiniBand here: {error}"),
//! }
//! ```
//!
//! # Own declarations
//!
//! rdma-mummy-sys also loads libibverbs at run time, and is maintained. It was not taken: it needs
//! libclang and cmake where it is built, which is where this crate must need nothing, and it declares
//! all of libibverbs and librdmacm, of which some thirty functions and twenty types are used here.
//! Against these few, which are part of a stable ABI, stands their check against the headers.
//! rdma-sys links libibverbs, and so can not be part of a binary for machines without it; it is what
//! the check compares with.
#![allow(non_camel_case_types, non_snake_case, reason = "names of C")]

#[allow(missing_docs, reason = "see verbs.h and its manual pages")]
mod attributes;
#[allow(missing_docs, reason = "see verbs.h and its manual pages")]
mod constants;
mod functions;
mod inline;
pub mod layout;
mod library;
mod mlx5dv;
#[allow(missing_docs, reason = "see verbs.h and its manual pages")]
mod objects;
#[allow(missing_docs, reason = "see verbs.h and its manual pages")]
mod requests;
mod verbs;

pub use attributes::*;
pub use constants::*;
pub use inline::{ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_req_notify_cq};
pub use library::LoadError;
pub use mlx5dv::{MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT, Mlx5dv};
pub use objects::*;
pub use requests::*;
pub use verbs::{LIBRARY_VARIABLE, Verbs};
