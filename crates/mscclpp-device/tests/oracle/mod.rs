// SPDX-License-Identifier: MIT
//! The comparison itself, for whatever runs the kernels of posts.cpp.

pub(crate) mod calls;
pub(crate) mod cases;
pub(crate) mod compare;
pub(crate) mod foreign;
pub(crate) mod machine;
pub(crate) mod nvrtc;
pub(crate) mod queue;
pub(crate) mod report;

use std::path::Path;

use mscclpp_device::nvrtc::Program;

/// The kernels for GPUs.
pub(crate) fn program(include: &Path, libcudacxx: &Path) -> Program {
    let program = Program::new("posts.cu", include_str!("posts.cpp"));
    nvrtc::with_headers(program, include, libcudacxx)
}
