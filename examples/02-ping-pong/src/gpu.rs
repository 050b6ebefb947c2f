// SPDX-License-Identifier: MIT
//! The kernel on a GPU, compiled for it by NVRTC.

use mscclpp_device::cuda::{Gpu, Module, Stream};
use mscclpp_device::nvrtc::Program;
use mscclpp_port::Device;

use crate::{ONE_THREAD, PingPongArgs, TIMEOUT};

/// Compiles and runs it.
pub(crate) fn run(device: Device, args: PingPongArgs) -> anyhow::Result<()> {
    let gpu = Gpu::open(device.id() as u32)?;
    let program = Program::new("kernel.cpp", include_str!("../kernel.cpp"));
    let module = Module::compile(&gpu, &program)?;
    // SAFETY: `PingPongArgs` is the twin of the C++ struct. What the arguments point to lives until the
    // kernel has ended, or as long as the process.
    let kernel = unsafe { module.kernel("ping_pong") }?;
    let stream = Stream::new(&gpu)?;
    kernel.launch(ONE_THREAD, args, &stream)?.join(TIMEOUT)?;
    Ok(())
}
