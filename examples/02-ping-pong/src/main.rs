// SPDX-License-Identifier: MIT
//! A word goes back and forth between the kernels of two ranks. The same `kernel.cpp` runs on CPU
//! threads, over TCP, and on GPUs, over CUDA IPC.
//!
//!     cargo xtask launch -n 2 -- target/debug/ping-pong --rounds 1000

#[cfg(feature = "cuda")]
mod gpu;

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Parser;
use mscclpp_bootstrap::{Bootstrap, ReduceOp, TcpBootstrap};
use mscclpp_device::LaunchDims;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_device::executor::HostKernel;
use mscclpp_port::{
    Buffer, Communicator, Device, EndpointConfig, MemoryOptions, ProxyService, TransportKind,
};

/// A word goes back and forth between the kernels of two ranks.
#[derive(Parser)]
struct Options {
    /// How often
    #[arg(long, default_value = "1000")]
    rounds: u64,
    /// Run the kernels on GPUs, one a rank (needs the feature cuda)
    #[arg(long)]
    gpu: bool,
}

/// Twin of the struct in kernel.cpp.
#[derive(Clone, Copy)]
#[repr(C)]
struct PingPongArgs {
    channel: PortChannelDeviceHandle,
    word: u64,
    status: u64,
    rounds: u64,
    begins: u64,
}

unsafe extern "C" {
    /// The kernel, as the build script has compiled it.
    fn ping_pong(context: *const c_void);
}

const ONE_THREAD: LaunchDims = LaunchDims { grid: 1, block: 1 };
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() {
    if let Err(error) = one_rank() {
        // Not by `Debug`, which may add a backtrace.
        eprintln!("Error: {error:#}");
        std::process::exit(1);
    }
}

fn one_rank() -> anyhow::Result<()> {
    let options = Options::parse();
    let bootstrap = TcpBootstrap::from_launcher(TIMEOUT)?;
    ensure!(bootstrap.world_size() == 2, "start it on 2 ranks");
    let (rank, peer) = (bootstrap.rank(), 1 - bootstrap.rank());
    let (device, transport) = match options.gpu {
        false => (Device::cpu(), TransportKind::Ethernet),
        true => (Device::gpu(rank as i32), TransportKind::CudaIpc),
    };
    // All ranks have their device, or none goes on.
    let missing = device.check_available().err();
    if bootstrap.all_reduce(missing.is_none().into(), ReduceOp::Min)? == 0 {
        let reason = missing.map_or("the other rank has no GPU".into(), |error| {
            error.to_string()
        });
        println!("SKIP ping-pong: {reason}");
        return Ok(());
    }

    let communicator = Communicator::new(Arc::new(bootstrap))?;
    // The word, and the kernel's status behind it.
    let buffer = Buffer::new(device, 16)?;
    let open = MemoryOptions {
        transports: transport.into(),
        ..MemoryOptions::default()
    };
    let local = communicator.register_memory_with(&buffer, 0..8, open)?;
    communicator.send_memory(&local, peer, 0)?;
    let remote = communicator.recv_memory(peer, 0)?.get()?;
    let endpoint = EndpointConfig {
        device,
        ..EndpointConfig::new(transport)
    };
    let connection = communicator.connect(endpoint, peer, 0)?.get()?;

    // The proxy: a thread of the host that does what the kernel asks for.
    let service = ProxyService::with_default_size()?;
    let semaphore = service.build_and_add_semaphore(&communicator, &connection)?;
    let (dst, src) = (service.add_memory(remote)?, service.add_memory(local)?);
    let channel = service.port_channel(semaphore, dst, src)?;
    service.start_proxy()?;

    let args = PingPongArgs {
        channel: channel.device_handle(),
        word: buffer.address(),
        status: buffer.address() + 8,
        rounds: options.rounds,
        begins: (rank == 0).into(),
    };
    let started = Instant::now();
    if let Err(error) = run(device, args) {
        // The kernel may still run: the process ends, and frees nothing that it uses.
        eprintln!("Error: {error:#}");
        std::process::exit(1);
    }
    let took = started.elapsed();
    let (word, status) = (buffer.load_u64(0)?, buffer.load_u64(8)?);
    ensure!(
        status == 0,
        "a call of the kernel ended with status {status}: {:?}",
        connection.status()
    );
    ensure!(word == 2 * options.rounds, "the word is {word}");
    println!(
        "{device}: {} round trips, launch included: {took:.1?}",
        options.rounds
    );
    // Nobody leaves while others still need it.
    communicator.bootstrap().barrier()?;
    Ok(())
}

/// Runs the kernel on a device.
fn run(device: Device, args: PingPongArgs) -> anyhow::Result<()> {
    #[cfg(feature = "cuda")]
    if device != Device::cpu() {
        return gpu::run(device, args);
    }
    // Without the feature there is no other: `check_available` has said so.
    let _ = device;
    // SAFETY: made by MSCCLPP_KERNEL(ping_pong, PingPongArgs). What the arguments point to lives until
    // the kernel has ended, or as long as the process.
    let kernel = unsafe { HostKernel::new("ping_pong", ping_pong) };
    Ok(kernel.run(ONE_THREAD, args, TIMEOUT)?)
}
