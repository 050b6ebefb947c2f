// SPDX-License-Identifier: MIT
//! All-gather: every rank sends its slice of a buffer to all others, over a channel to each of them.
//!
//!     cargo xtask launch -n 4 -- target/debug/all-gather --bytes 65536

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Parser;
use mscclpp_bootstrap::{Bootstrap, TcpBootstrap};
use mscclpp_device::LaunchDims;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_device::executor::HostKernel;
use mscclpp_port::{
    Buffer, Communicator, Device, EndpointConfig, PortChannel, ProxyService, TransportKind,
};

/// Every rank sends its slice of a buffer to all others, at once.
#[derive(Parser)]
struct Options {
    /// Bytes of a slice
    #[arg(long, default_value = "65536", value_parser = clap::value_parser!(u64).range(1..))]
    bytes: u64,
}

/// Twin of the struct in kernel.cpp.
#[derive(Clone, Copy)]
#[repr(C)]
struct AllGatherArgs {
    channels: u64,
    offset: u64,
    size: u64,
    statuses: u64,
}

unsafe extern "C" {
    /// The kernel, as the build script has compiled it.
    fn all_gather(context: *const c_void);
}

const TIMEOUT: Duration = Duration::from_secs(60);

/// What rank `rank` sends.
fn slice(rank: usize, bytes: u64) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at * 7 + rank as u64 * 31) as u8)
        .collect()
}

fn main() {
    if let Err(error) = one_rank() {
        // Not by `Debug`, which may add a backtrace.
        eprintln!("Error: {error:#}");
        std::process::exit(1);
    }
}

fn one_rank() -> anyhow::Result<()> {
    let options = Options::parse();
    let bootstrap = Arc::new(TcpBootstrap::from_launcher(TIMEOUT)?);
    let (rank, world) = (bootstrap.rank(), bootstrap.world_size());
    ensure!(world >= 2, "start it on 2 ranks or more");
    let offset = rank as u64 * options.bytes;
    let buffer = Buffer::new(Device::cpu(), world as u64 * options.bytes)?;
    buffer.write(offset, &slice(rank, options.bytes))?;

    let communicator = Communicator::new(bootstrap.clone())?;
    let local = communicator.register_memory(&buffer, 0..buffer.len())?;
    // This rank's halves are sent to all at once; `get` waits for theirs.
    let mut halves = Vec::new();
    for peer in (0..world).filter(|peer| *peer != rank) {
        communicator.send_memory(&local, peer, 0)?;
        let endpoint = EndpointConfig::new(TransportKind::Ethernet);
        halves.push((
            communicator.recv_memory(peer, 0)?,
            communicator.connect(endpoint, peer, 0)?,
        ));
    }
    // One proxy for all of them.
    let service = ProxyService::with_default_size()?;
    let src = service.add_memory(local)?;
    let mut channels = Vec::new();
    for (remote, connection) in halves {
        let semaphore = service.build_and_add_semaphore(&communicator, &connection.get()?)?;
        let dst = service.add_memory(remote.get()?)?;
        channels.push(service.port_channel(semaphore, dst, src)?);
    }
    service.start_proxy()?;

    let handles: Vec<PortChannelDeviceHandle> =
        channels.iter().map(PortChannel::device_handle).collect();
    let statuses = Buffer::new(Device::cpu(), 8 * channels.len() as u64)?;
    let args = AllGatherArgs {
        channels: handles.as_ptr().expose_provenance() as u64,
        offset,
        size: options.bytes,
        statuses: statuses.address(),
    };
    // SAFETY: made by MSCCLPP_KERNEL(all_gather, AllGatherArgs). What the arguments point to lives until
    // the kernel has ended, or as long as the process.
    let kernel = unsafe { HostKernel::new("all_gather", all_gather) };
    let thread_a_peer = LaunchDims {
        grid: 1,
        block: channels.len() as u32,
    };
    let started = Instant::now();
    if let Err(error) = kernel.run(thread_a_peer, args, TIMEOUT) {
        // The kernel may still run: the process ends, and frees nothing that it uses.
        eprintln!("Error: {error}");
        std::process::exit(1);
    }
    let took = started.elapsed();
    for thread in 0..channels.len() as u64 {
        let status = statuses.load_u64(8 * thread)?;
        ensure!(status == 0, "thread {thread} ended with status {status}");
    }
    for from in 0..world {
        let mut found = vec![0; options.bytes as usize];
        buffer.read(from as u64 * options.bytes, &mut found)?;
        ensure!(
            found == slice(from, options.bytes),
            "the slice of rank {from} is wrong"
        );
    }
    println!(
        "{world} slices of {} bytes, launch included: {took:.1?}",
        options.bytes
    );
    // Nobody leaves while others still need it.
    bootstrap.barrier()?;
    Ok(())
}
