// SPDX-License-Identifier: MIT
//! A ring of send queues, on a NIC in software: each rank has one to its left neighbour and one to its
//! right, and kernels that post to them themselves pass a word around.
//!
//!     cargo xtask launch -n 4 -- target/debug/sparse-ring

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::Parser;
use mscclpp_bootstrap::{Bootstrap, TcpBootstrap};
use mscclpp_device::LaunchDims;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_device::executor::HostKernel;
use mscclpp_port::{Buffer, Device, GpuNetIoService, Hca};

/// Kernels pass a word around a ring of 3 or more ranks, over send queues of their own.
#[derive(Parser)]
struct Options {
    /// The HCA; soft0 is a NIC in software
    #[arg(long, default_value = "soft0")]
    hca: String,
}

/// Twin of the struct in kernel.cpp.
#[derive(Clone, Copy)]
#[repr(C)]
struct RingArgs {
    left: PortChannelDeviceHandle,
    right: PortChannelDeviceHandle,
    word: u64,
    status: u64,
    rank: u64,
}

unsafe extern "C" {
    /// The kernel, as the build script has compiled it.
    fn pass_around(context: *const c_void);
}

const TIMEOUT: Duration = Duration::from_secs(60);
/// What rank 0 puts into the word.
const START: u64 = 1000;

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
    ensure!(world >= 3, "start it on 3 ranks or more");
    let (left, right) = ((rank + world - 1) % world, (rank + 1) % world);

    // All ranks make their queues together, and only those that somebody wants: pairs of peer and
    // number. Both ends of an edge say the same.
    let hca = Hca::named(&options.hca);
    let service = GpuNetIoService::new(bootstrap.clone(), hca, Device::cpu())?;
    service.setup(&[(left, 1), (right, 1)], 0)?;

    // The word, and the kernel's status behind it.
    let buffer = Buffer::new(Device::cpu(), 16)?;
    if rank == 0 {
        buffer.store_u64(0, START)?;
    }
    let memory = service.register_memory(&buffer, 0..8)?;
    // This rank's halves are sent to both at once; `get` waits for theirs.
    let halves = [left, right].map(|peer| -> mscclpp_port::Result<_> {
        let remote = service.exchange_memory(peer, &memory, 0)?;
        let semaphore = service.build_semaphore(&service.connect(peer, 0)?, 0)?;
        Ok((remote, semaphore))
    });
    let mut channels = Vec::new();
    for half in halves {
        let (remote, semaphore) = half?;
        channels.push(service.port_channel(semaphore.get()?, &remote.get()?, &memory)?);
    }

    let args = RingArgs {
        left: channels[0].device_handle(),
        right: channels[1].device_handle(),
        word: buffer.address(),
        status: buffer.address() + 8,
        rank: rank as u64,
    };
    // SAFETY: made by MSCCLPP_KERNEL(pass_around, RingArgs). What the arguments point to lives until
    // the kernel has ended, or as long as the process.
    let kernel = unsafe { HostKernel::new("pass_around", pass_around) };
    let one_thread = LaunchDims { grid: 1, block: 1 };
    if let Err(error) = kernel.run(one_thread, args, TIMEOUT) {
        // The kernel may still run: the process ends, and frees nothing that it uses.
        eprintln!("Error: {error}");
        std::process::exit(1);
    }
    let (word, status) = (buffer.load_u64(0)?, buffer.load_u64(8)?);
    ensure!(
        status == 0,
        "a call of the kernel ended with status {status}"
    );
    // Rank 0 has what came back around; the others what they passed on.
    let last = if rank == 0 { world - 1 } else { rank };
    let expected = START + (0..=last as u64).sum::<u64>();
    ensure!(word == expected, "the word is {word}, not {expected}");
    println!("{left} -> {rank} -> {right}: the word is {word}");
    // Nobody leaves while others still need it.
    bootstrap.barrier()?;
    Ok(())
}
