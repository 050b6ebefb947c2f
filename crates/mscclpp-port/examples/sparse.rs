// SPDX-License-Identifier: MIT
//! Four ranks with send queues between some of them, on NICs in software: each kernel puts the number
//! of its rank into the memory of every peer, once over each queue.
//!
//! `cargo build --example sparse`, then
//! `cargo xtask launch -n 4 -- target/debug/examples/sparse`. Needs g++, for the kernel.

use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use mscclpp_bootstrap::TcpBootstrap;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_device::executor::{Entry, HostKernel, LaunchDims};

// From here on as docs/setup.md shows it.
use std::sync::Arc;

use mscclpp_bootstrap::Bootstrap;
use mscclpp_port::{Buffer, Device, GpuNetIoService, Hca, PortChannel};

/// How many queues each rank (row) has to each rank. Both ends of an edge say the same; rank 3 is
/// idle.
const QUEUES: [[i32; 4]; 4] = [[0, 2, 1, 0], [2, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]];

/// Channels to all peers of this rank, one for each queue. `buffer` is source and destination.
fn channels(
    bootstrap: Arc<dyn Bootstrap>,
    buffer: &Buffer,
) -> Result<Vec<PortChannel>, mscclpp_port::Error> {
    let counts = QUEUES[bootstrap.rank()];
    let service = GpuNetIoService::new(bootstrap, Hca::named("soft0"), Device::cpu())?;
    // All ranks together. If it fails, all get the same error, and nothing is left.
    service.setup(&counts, 0)?;

    let memory = service.register_memory(buffer, 0..buffer.len())?;
    let mut halves = Vec::new();
    for (peer, count) in (0..).zip(counts) {
        for index in 0..count as u32 {
            let connection = service.connect(peer, index)?;
            // This rank's half is sent at once; `get` waits for the peer's.
            let remote = service.exchange_memory(peer, &memory, index)?;
            let semaphore = service.build_semaphore(&connection, index)?;
            halves.push((remote, semaphore));
        }
    }
    (halves.into_iter())
        .map(|(remote, semaphore)| service.port_channel(semaphore.get()?, &remote.get()?, &memory))
        .collect()
}

/// What a thread of the kernel does with its channel.
const KERNEL: &str = r#"
    #include <mscclpp/kernel.hpp>
    #include <mscclpp/port_channel_device.hpp>

    struct Args {
      mscclpp::PortChannelDeviceHandle* channels;
      // Where the word at the start of the memory goes, at the peer.
      uint64_t* places;
      // Set if a call fails.
      uint64_t* failed;
    };

    MSCCLPP_KERNEL(exchange, Args) {
      mscclpp::PortChannelDeviceHandle channel = args.channels[threadIdx.x];
      const bool done = channel.putWithSignal(args.places[threadIdx.x], 0, 8) == mscclpp::Status::Ok &&
                        channel.wait() == mscclpp::Status::Ok && channel.flush() == mscclpp::Status::Ok;
      if (!done) *args.failed = 1;
    }
"#;

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    channels: u64,
    places: u64,
    failed: u64,
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// What queue `index` from rank `from` writes lies here at the other end, behind the own word.
fn place(from: usize, index: u64) -> u64 {
    8 + 16 * from as u64 + 8 * index
}

/// What one rank does.
pub(crate) fn rank(bootstrap: Arc<dyn Bootstrap>) -> Result<(), AnyError> {
    let rank = bootstrap.rank();
    let buffer = Buffer::new(Device::cpu(), 4096)?;
    let mine = 100 + rank as u64;
    buffer.store_u64(0, mine)?;
    let channels = channels(Arc::clone(&bootstrap), &buffer)?;

    let handles: Vec<PortChannelDeviceHandle> =
        channels.iter().map(PortChannel::device_handle).collect();
    let edges = (0..).zip(QUEUES[rank]).filter(|(_, count)| *count > 0);
    let queues: Vec<(usize, u64)> = edges
        .flat_map(|(peer, count)| (0..count as u64).map(move |index| (peer, index)))
        .collect();
    let places: Vec<u64> = queues
        .iter()
        .map(|(_, index)| place(rank, *index))
        .collect();
    let failed = Buffer::new(Device::cpu(), 8)?;
    if !handles.is_empty() {
        let args = Args {
            channels: handles.as_ptr().expose_provenance() as u64,
            places: places.as_ptr().expose_provenance() as u64,
            failed: failed.as_ptr().expose_provenance() as u64,
        };
        let dims = LaunchDims {
            grid: 1,
            block: handles.len() as u32,
        };
        let kernel = kernel()?;
        if let Err(error) = kernel.run(dims, args, Duration::from_secs(20)) {
            // The kernel may still run: the process ends, and frees nothing that it uses.
            eprintln!("Error: {error}");
            std::process::exit(1);
        }
    }
    if failed.load_u64(0)? != 0 {
        return Err("a call of the kernel failed".into());
    }
    for (peer, index) in queues {
        let found = buffer.load_u64(place(peer, index))?;
        if found != 100 + peer as u64 {
            return Err(format!("rank {peer} sent {found} over queue {index}").into());
        }
    }
    println!(
        "rank {rank}: {} queues, all carried their word",
        handles.len()
    );
    // Nobody leaves while others still need it.
    bootstrap.barrier()?;
    Ok(())
}

/// Compiles the kernel, once.
fn kernel() -> Result<HostKernel, AnyError> {
    static ENTRY: OnceLock<Result<Entry, String>> = OnceLock::new();
    let entry = ENTRY.get_or_init(|| compile().map_err(|error| error.to_string()));
    // SAFETY: the object defines its kernel with MSCCLPP_KERNEL and `Args` as above, and is never
    // unloaded; `rank` keeps what the arguments point to until the kernel has ended, or the process does.
    Ok(unsafe { HostKernel::new("exchange", entry.clone()?) })
}

fn compile() -> Result<Entry, AnyError> {
    let directory = tempfile::tempdir()?;
    let (source, object) = (
        directory.path().join("k.cpp"),
        directory.path().join("k.so"),
    );
    std::fs::write(&source, KERNEL)?;
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../mscclpp-device/include");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-O1", "-shared", "-fPIC", "-I", include, "-o"]);
    if !compiler.arg(&object).arg(&source).status()?.success() {
        return Err("g++ cannot compile the kernel".into());
    }
    // SAFETY: the object was just made of KERNEL, which runs nothing when loaded and defines a kernel
    // of this name.
    unsafe {
        let library = std::mem::ManuallyDrop::new(libloading::Library::new(&object)?);
        Ok(*library.get::<Entry>(b"exchange")?)
    }
}

#[cfg_attr(test, allow(dead_code, reason = "the test calls `rank`"))]
fn main() -> Result<(), AnyError> {
    let bootstrap = TcpBootstrap::from_launcher(Duration::from_secs(30))?;
    if bootstrap.world_size() != QUEUES.len() {
        return Err("start it on 4 ranks".into());
    }
    rank(Arc::new(bootstrap))
}
