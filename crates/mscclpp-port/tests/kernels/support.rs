// SPDX-License-Identifier: MIT
//! The kernels of this test, compiled when first asked for.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use libloading::Library;
use mscclpp_device::abi::{FifoDeviceHandle, PortChannelDeviceHandle};
use mscclpp_device::executor::{Entry, HostKernel, LaunchDims, Running};
use mscclpp_port::{Buffer, Device, Status};

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A kernel by name.
pub(crate) fn kernel(name: &'static str) -> HostKernel {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    let library = LIBRARY.get_or_init(compile);
    // SAFETY: `kernels.cpp` defines all names that the tests ask for with MSCCLPP_KERNEL, and the
    // library stays loaded. The argument types below are the C++ ones, and the tests keep what they
    // point to until the launch has ended.
    unsafe {
        let entry = library
            .get::<Entry>(name.as_bytes())
            .expect("a kernel of kernels.cpp");
        HostKernel::new(name, *entry)
    }
}

fn compile() -> Library {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let object = directory.path().join("kernels.so");
    // clang++'s objects leave the sanitizer's runtime to the test.
    let sanitized = std::env::var_os("MSCCLPP_SANITIZED").is_some();
    let (compiler, sanitizer) = match sanitized {
        true => ("clang++", Some("-fsanitize=address")),
        false => ("g++", None),
    };
    let output = Command::new(compiler)
        .args(sanitizer)
        .args([
            "-std=c++17",
            "-O2",
            "-shared",
            "-fPIC",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .arg("-I")
        .arg(root.join("../mscclpp-device/include"))
        .arg(root.join("tests/kernels/kernels.cpp"))
        .arg("-o")
        .arg(&object)
        .output()
        .expect("a C++ compiler");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler}: {errors}");
    // SAFETY: the object was just made of kernels.cpp, which runs nothing when loaded.
    unsafe { Library::new(&object) }.expect("the kernels load")
}

/// Words that a kernel writes, all ones at first.
pub(crate) struct Words(Buffer, u64);

impl Words {
    pub(crate) fn new(count: u64) -> Self {
        let buffer = Buffer::new(Device::cpu(), count * 8).unwrap();
        for i in 0..count {
            buffer.store_u64(i * 8, u64::MAX).unwrap();
        }
        Self(buffer, count)
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn all(&self) -> Vec<u64> {
        (0..self.1)
            .map(|i| self.0.load_u64(i * 8).unwrap())
            .collect()
    }

    pub(crate) fn statuses(&self) -> Vec<Option<Status>> {
        let status = |word| Status::try_from(u32::try_from(word).ok()?).ok();
        self.all().into_iter().map(status).collect()
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PushArgs {
    pub(crate) fifo: FifoDeviceHandle,
    pub(crate) count: u64,
    pub(crate) pushed: u64,
    pub(crate) status: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SyncArgs {
    pub(crate) fifo: FifoDeviceHandle,
    pub(crate) count: u64,
    pub(crate) pause: u64,
    pub(crate) times: u64,
}

#[derive(Clone, Copy)]
#[repr(u64)]
pub(crate) enum Call {
    PutWithSignal,
    Flush,
    Wait,
    PutForever,
    PutWithSignalAndFlush,
    Accumulate,
    PutUnknownMemory,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CallArgs {
    pub(crate) channel: PortChannelDeviceHandle,
    pub(crate) call: Call,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) status: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PingPongArgs {
    pub(crate) channel: PortChannelDeviceHandle,
    pub(crate) bytes: u64,
    pub(crate) iterations: u64,
    pub(crate) rank: u64,
    pub(crate) flush: u64,
    pub(crate) status: u64,
    pub(crate) times: u64,
}

/// Threads in one block.
pub(crate) fn threads(block: u32) -> LaunchDims {
    LaunchDims { grid: 1, block }
}

/// A call on its way.
pub(crate) struct Calling {
    running: Running,
    status: Words,
}

/// Starts a call on some threads of a channel.
pub(crate) fn call(
    channel: PortChannelDeviceHandle,
    call: Call,
    (offset, size): (u64, u64),
    block: u32,
) -> Calling {
    let status = Words::new(block.into());
    let args = CallArgs {
        channel,
        call,
        offset,
        size,
        status: status.address(),
    };
    let running = kernel("port_call").launch(threads(block), args).unwrap();
    Calling { running, status }
}

impl Calling {
    /// Waits, and gives what the threads' calls returned.
    pub(crate) fn end(self) -> Vec<Status> {
        self.running.join(PATIENCE).unwrap();
        let statuses = self.status.statuses().into_iter();
        statuses.map(|status| status.expect("a status")).collect()
    }

    /// Whether no thread has returned yet.
    pub(crate) fn all_waiting(&self) -> bool {
        self.status.all().iter().all(|word| *word == u64::MAX)
    }
}
