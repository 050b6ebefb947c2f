// SPDX-License-Identifier: MIT
//! GPUNetIO's headers as they are: where, and what NVRTC needs beside them. The tests of
//! `gpunetio-sys` use this file, too.

use std::path::{Path, PathBuf};

use mscclpp_device::nvrtc::Program;

const INCLUDES: &str = "GPUNETIO_HEADERS";
const LIBCUDACXX: &str = "GPUNETIO_LIBCUDACXX";

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

/// The include directories of `GPUNETIO_HEADERS`, or why there are none. The wheel
/// `nvidia-nvshmem-cu13` 3.8.0 has that of 4.0.0 in `nvidia/nvshmem/include/gpunetio`.
pub(crate) fn includes() -> Result<Vec<PathBuf>, String> {
    let list = std::env::var_os(INCLUDES).unwrap_or_default();
    let paths = std::env::split_paths(&list).filter(|path| path != "");
    let paths: Vec<PathBuf> = paths.collect();
    if paths.is_empty() {
        return Err(format!("no headers of GPUNetIO: {INCLUDES} is not set"));
    }
    Ok(paths)
}

/// libcu++'s include directory, which their device functions need (`include/cccl` of the wheel
/// `nvidia-cuda-cccl`), or why there is none.
pub(crate) fn libcudacxx() -> Result<PathBuf, String> {
    let path = std::env::var_os(LIBCUDACXX).map(PathBuf::from);
    path.ok_or_else(|| format!("no libcu++ for headers of GPUNetIO: {LIBCUDACXX} is not set"))
}

/// `program`, which includes the headers of such directories.
pub(crate) fn with_headers(program: Program, include: &Path, libcudacxx: &Path) -> Program {
    let program = program
        .option(format!("-I{}", include.display()))
        .option(format!("-I{}", libcudacxx.display()));
    HEADERS
        .into_iter()
        .fold(program, |program, (name, text)| program.header(name, text))
}
