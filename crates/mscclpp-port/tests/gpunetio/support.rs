// SPDX-License-Identifier: MIT
//! The kernels of these tests, compiled when first asked for, and what they are given.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use libloading::Library;
use mscclpp_device::abi::{BasePortChannelDeviceHandle, PortChannelDeviceHandle};
use mscclpp_device::executor::{Entry, HostKernel, LaunchDims, Running};
use mscclpp_port::{Buffer, Device, Status};

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

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
    let output = Command::new("g++")
        .args(["-std=c++17", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra"])
        .args(["-Werror", "-DMSCCLPP_DEBUG", "-I"])
        .arg(root.join("../mscclpp-device/include"))
        .arg(root.join("tests/gpunetio/kernels.cpp"))
        .arg("-o")
        .arg(&object)
        .output()
        .expect("a C++ compiler");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "g++: {errors}");
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

    fn all(&self) -> Vec<u64> {
        (0..self.1)
            .map(|i| self.0.load_u64(i * 8).unwrap())
            .collect()
    }
}

#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub(crate) enum Call {
    Put,
    Signal,
    PutWithSignal,
    PutWithSignalAndFlush,
    Flush,
    Wait,
    Accumulate,
    Get,
    PutForever,
    WaitBounded,
    FlushLooks,
    WaitLooks,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CallArgs {
    channel: PortChannelDeviceHandle,
    call: Call,
    count: u64,
    dst_offset: u64,
    src_offset: u64,
    size: u64,
    status: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ByIdArgs {
    channel: BasePortChannelDeviceHandle,
    dst: u64,
    src: u64,
    size: u64,
    status: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PingPongArgs {
    pub(crate) channel: PortChannelDeviceHandle,
    pub(crate) words: u64,
    pub(crate) count: u64,
    pub(crate) iterations: u64,
    pub(crate) rank: u64,
    pub(crate) status: u64,
}

/// What a call is given.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub(crate) dst: u64,
    pub(crate) src: u64,
    pub(crate) size: u64,
}

impl At {
    pub(crate) const NOWHERE: Self = Self {
        dst: 0,
        src: 0,
        size: 0,
    };

    /// The same offset in both memories.
    pub(crate) fn both(offset: u64, size: u64) -> Self {
        Self {
            dst: offset,
            src: offset,
            size,
        }
    }
}

/// A kernel on its way.
pub(crate) struct Calling {
    running: Running,
    status: Words,
}

fn status(word: u64) -> Status {
    let code = u32::try_from(word).unwrap_or_else(|_| panic!("a status: {word:#x}"));
    Status::try_from(code).unwrap_or_else(|_| panic!("a status: {word}"))
}

impl Calling {
    /// Waits, and gives what the threads' calls returned.
    pub(crate) fn end(self) -> Vec<Status> {
        self.running.join(PATIENCE).unwrap();
        self.status.all().into_iter().map(status).collect()
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.running.is_finished()
    }
}

/// Starts calls, `count` times each on some threads.
pub(crate) fn start(
    channel: PortChannelDeviceHandle,
    call: Call,
    at: At,
    (block, count): (u32, u64),
) -> Calling {
    let status = Words::new(block.into());
    let args = CallArgs {
        channel,
        call,
        count,
        dst_offset: at.dst,
        src_offset: at.src,
        size: at.size,
        status: status.address(),
    };
    let dims = LaunchDims { grid: 1, block };
    let running = kernel("queue_call").launch(dims, args).unwrap();
    Calling { running, status }
}

/// One call of one thread.
pub(crate) fn call(channel: PortChannelDeviceHandle, call: Call, at: At) -> Status {
    start(channel, call, at, (1, 1)).end()[0]
}

/// A put by memory ids, and then a flush.
pub(crate) fn put_by_id(
    channel: BasePortChannelDeviceHandle,
    dst: u32,
    src: u32,
    size: u64,
) -> (Status, Status) {
    let words = Words::new(2);
    let args = ByIdArgs {
        channel,
        dst: dst.into(),
        src: src.into(),
        size,
        status: words.address(),
    };
    let one = LaunchDims { grid: 1, block: 1 };
    kernel("queue_put_by_id").run(one, args, PATIENCE).unwrap();
    let ended = words.all();
    (status(ended[0]), status(ended[1]))
}

/// Both ends of a ping-pong of 8-byte words, which have to lie at the start of both memories.
pub(crate) fn ping_pong(ends: [(PortChannelDeviceHandle, u64); 2], count: u64, iterations: u64) {
    let runs: Vec<Calling> = (0u64..)
        .zip(ends)
        .map(|(rank, (channel, words))| {
            let status = Words::new(1);
            let args = PingPongArgs {
                channel,
                words,
                count,
                iterations,
                rank,
                status: status.address(),
            };
            let one = LaunchDims { grid: 1, block: 1 };
            let running = kernel("queue_ping_pong").launch(one, args).unwrap();
            Calling { running, status }
        })
        .collect();
    for run in runs {
        assert_eq!(run.end(), [Status::Ok]);
    }
}

/// Waits for something that other threads bring about.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "never: {what}");
        thread::sleep(Duration::from_micros(500));
    }
}
