// SPDX-License-Identifier: MIT
//! The library's device functions compile for GPUs, and give a queue pair the layout that this
//! crate declares. They must not be run as NVRTC compiles them: it does not pack the segments of
//! their requests. nvcc does.
//!
//! `GPUNETIO_HEADERS` is a list of include directories, as for `headers.rs`; `GPUNETIO_LIBCUDACXX`
//! is the include directory of libcu++.

#[path = "../../mscclpp-device/tests/oracle/include.rs"]
mod include;

use std::path::{Path, PathBuf};

use mscclpp_device::nvrtc::{Arch, Nvrtc, NvrtcError, Program, Target};

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

const SOURCE: &str = r#"
// As without a host compiler there is no typeof, the library's own names a pointer to a reference.
#define ACCESS_ONCE(x) (*(volatile typename cuda::std::remove_reference<decltype(x)>::type *)&(x))
#include <cuda/std/type_traits>
#include <doca_gpunetio_device.h>

static_assert(sizeof(doca_gpu_dev_verbs_qp) == QP_BYTES && sizeof(doca_gpu_dev_verbs_cq) == 64);

template <doca_gpu_dev_verbs_resource_sharing_mode mode>
__device__ void putSignal(doca_gpu_dev_verbs_qp *qp, doca_gpu_dev_verbs_addr remote,
                          doca_gpu_dev_verbs_addr local) {
    __threadfence_system();
    doca_gpu_dev_verbs_ticket_t ticket;
    doca_gpu_dev_verbs_put_signal<DOCA_GPUNETIO_VERBS_SIGNAL_OP_ADD, mode,
                                  DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB>(
        qp, remote, local, 8, remote, local, 1, &ticket);
}

extern "C" __global__ void post(doca_gpu_dev_verbs_qp *qp, doca_gpu_dev_verbs_addr remote,
                                doca_gpu_dev_verbs_addr local) {
    putSignal<DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_EXCLUSIVE>(qp, remote, local);
    putSignal<DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_CTA>(qp, remote, local);
    putSignal<DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_GPU>(qp, remote, local);
}
"#;

/// libcu++'s include directory, which their device functions need (`include/cccl` of the wheel
/// `nvidia-cuda-cccl`), or why there is none.
fn libcudacxx() -> Result<PathBuf, String> {
    let path = std::env::var_os(LIBCUDACXX).map(PathBuf::from);
    path.ok_or_else(|| format!("no libcu++ for headers of GPUNetIO: {LIBCUDACXX} is not set"))
}

/// `program`, which includes the headers of such directories.
fn with_headers(program: Program, include: &Path, libcudacxx: &Path) -> Program {
    let program = program
        .option(format!("-I{}", include.display()))
        .option(format!("-I{}", libcudacxx.display()));
    HEADERS
        .into_iter()
        .fold(program, |program, (name, text)| program.header(name, text))
}

fn program(include: &Path, libcudacxx: &Path, bytes: usize) -> Program {
    let program = Program::new("device_headers.cu", SOURCE);
    with_headers(
        program.option(format!("-DQP_BYTES={bytes}")),
        include,
        libcudacxx,
    )
}

#[test]
fn its_device_functions_compile_with_nvrtc() {
    let name = "its_device_functions_compile_with_nvrtc";
    let (includes, libcudacxx) = match (include::directories(), libcudacxx()) {
        (Ok(includes), Ok(libcudacxx)) => (includes, libcudacxx),
        (Err(reason), _) | (_, Err(reason)) => return println!("SKIP {name}: {reason}"),
    };
    let nvrtc = match Nvrtc::load() {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            println!("SKIP {name}: no NVRTC: {error}");
            return;
        }
    };
    for include in includes {
        for arch in [80, 90, 100] {
            let target = Target::Cubin(Arch::from(arch));
            let compiled = nvrtc.compile(&program(&include, &libcudacxx, 296), &target);
            let compiled = compiled.unwrap_or_else(|error| panic!("sm_{arch}: {error}"));
            println!(
                "{}: {} bytes for sm_{arch}",
                include.display(),
                compiled.code.len()
            );
        }
        // The assertion is one that can fail.
        let target = Target::Cubin(Arch::from(90));
        let wrong = nvrtc.compile(&program(&include, &libcudacxx, 304), &target);
        assert!(
            matches!(wrong, Err(NvrtcError::Compile { .. })),
            "{wrong:?}"
        );
    }
}
