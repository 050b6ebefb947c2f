// SPDX-License-Identifier: MIT
//! The comparison itself, for whatever runs the kernels of posts.cpp.

pub(crate) mod calls;
pub(crate) mod cases;
pub(crate) mod compare;
pub(crate) mod foreign;
pub(crate) mod include;
pub(crate) mod machine;
pub(crate) mod queue;
pub(crate) mod report;
