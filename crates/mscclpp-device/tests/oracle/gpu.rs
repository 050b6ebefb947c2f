// SPDX-License-Identifier: MIT
//! The program for GPUs: this project's headers and the library's as they are.

use std::path::Path;

use mscclpp_device::nvrtc::Program;

/// A list of include directories with the library's headers.
pub(crate) const VARIABLE: &str = "GPUNETIO_HEADERS";
/// The include directory of libcu++, which they need.
pub(crate) const LIBCUDACXX: &str = "GPUNETIO_LIBCUDACXX";

/// Both sides.
pub(crate) const SOURCE: &str = include_str!("posts.cpp");

/// What the library includes of a host's compiler and of CUDA, as far as it uses it.
const HEADERS: [(&str, &str); 7] = [
    ("stdio.h", ""),
    ("math.h", ""),
    ("limits.h", "#define INT_MAX 0x7fffffff\n"),
    (
        "linux/types.h",
        "typedef unsigned short __be16;\ntypedef unsigned int __be32;\n\
         typedef unsigned long __be64;\n",
    ),
    (
        "errno.h",
        "#define EIO 5\n#define EBUSY 16\n#define EINVAL 22\n",
    ),
    ("assert.h", ""),
    ("cuda.h", "#define CUDA_VERSION 13000\n"),
];

/// The kernels, with headers of these directories.
pub(crate) fn program(include: &Path, libcudacxx: &Path) -> Program {
    let program = Program::new("posts.cu", SOURCE)
        .option(format!("-I{}", include.display()))
        .option(format!("-I{}", libcudacxx.display()));
    HEADERS
        .into_iter()
        .fold(program, |program, (name, text)| program.header(name, text))
}
