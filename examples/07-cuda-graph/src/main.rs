// SPDX-License-Identifier: MIT
//! A kernel that exchanges a word with the peer, captured in a CUDA graph once and launched again and
//! again. Needs two GPUs of one machine; without, it says so and does nothing.
//!
//!     cargo xtask launch -n 2 -- target/debug/cuda-graph --launches 50

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Parser;
use mscclpp_bootstrap::{Bootstrap, ReduceOp, TcpBootstrap};
use mscclpp_device::LaunchDims;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_device::cuda::{Gpu, Graph, Module, Stream};
use mscclpp_device::nvrtc::Program;
use mscclpp_port::{
    Buffer, Communicator, Device, EndpointConfig, MemoryOptions, ProxyService, TransportKind,
};

/// A CUDA graph whose kernel exchanges a word with the peer's.
#[derive(Parser)]
struct Options {
    /// Launches of the graph, without waiting between them
    // More might fill the driver's queue, and would wait for room inside of the driver.
    #[arg(long, default_value = "50", value_parser = clap::value_parser!(u64).range(1..=64))]
    launches: u64,
}

/// Twin of the struct in kernel.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct ExchangeArgs {
    channel: PortChannelDeviceHandle,
    words: u64,
    rank: u64,
}

/// Bytes of the words in kernel.cu, and where some of them are.
const WORDS: u64 = 48;
const LAUNCHES: u64 = 0;
const WRONG: u64 = 32;
const FAILED_WITH: u64 = 40;

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
    let device = Device::gpu(rank as i32);
    // All ranks have a GPU, or none goes on.
    let missing = device.check_available().err();
    if bootstrap.all_reduce(missing.is_none().into(), ReduceOp::Min)? == 0 {
        let reason = missing.map_or("the other rank has no GPU".into(), |error| {
            error.to_string()
        });
        println!("SKIP cuda-graph: {reason}");
        return Ok(());
    }

    let communicator = Communicator::new(Arc::new(bootstrap))?;
    let buffer = Buffer::new(device, WORDS)?;
    let open = MemoryOptions {
        transports: TransportKind::CudaIpc.into(),
        ..MemoryOptions::default()
    };
    let local = communicator.register_memory_with(&buffer, 0..WORDS, open)?;
    communicator.send_memory(&local, peer, 0)?;
    let remote = communicator.recv_memory(peer, 0)?.get()?;
    let endpoint = EndpointConfig {
        device,
        ..EndpointConfig::new(TransportKind::CudaIpc)
    };
    let connection = communicator.connect(endpoint, peer, 0)?.get()?;
    let service = ProxyService::with_default_size()?;
    let semaphore = service.build_and_add_semaphore(&communicator, &connection)?;
    let (dst, src) = (service.add_memory(remote)?, service.add_memory(local)?);
    let channel = service.port_channel(semaphore, dst, src)?;
    service.start_proxy()?;

    let args = ExchangeArgs {
        channel: channel.device_handle(),
        words: buffer.address(),
        rank: rank as u64,
    };
    match replay(rank as u32, args, options.launches) {
        Ok(took) => println!("{} launches of a graph: {took:.1?}", options.launches),
        Err(error) => {
            // Launches may still run: the process ends, and frees nothing that they use.
            eprintln!("Error: {error:#}");
            std::process::exit(1);
        }
    }
    let [launches, wrong, status] =
        [LAUNCHES, WRONG, FAILED_WITH].map(|word| buffer.load_u64(word));
    let (launches, wrong, status) = (launches?, wrong?, status?);
    ensure!(
        status == 0,
        "a call of the kernel ended with status {status}: {:?}",
        connection.status()
    );
    ensure!(
        launches == options.launches,
        "the kernel ran {launches} times"
    );
    ensure!(
        wrong == 0,
        "{wrong} launches found another word than the peer's"
    );
    // Nobody leaves while others still need it.
    communicator.bootstrap().barrier()?;
    Ok(())
}

/// Compiles the kernel, captures a launch of it, and launches what was captured.
fn replay(gpu: u32, args: ExchangeArgs, launches: u64) -> anyhow::Result<Duration> {
    let gpu = Gpu::open(gpu)?;
    let program = Program::new("kernel.cu", include_str!("../kernel.cu"));
    let module = Module::compile(&gpu, &program)?;
    // SAFETY: `ExchangeArgs` is the twin of the C++ struct. What the arguments point to lives until the
    // launches have ended, or as long as the process.
    let kernel = unsafe { module.kernel("exchange") }?;
    let stream = Stream::new(&gpu)?;
    let one_thread = LaunchDims { grid: 1, block: 1 };
    // The graph keeps the kernel.
    let mut graph = Graph::capture(&stream, || {
        kernel.enqueue(one_thread, args, &stream)?;
        Ok(kernel.clone())
    })?;
    stream.wait(TIMEOUT)?;
    let started = Instant::now();
    for _ in 0..launches {
        graph.launch(&stream)?;
    }
    if let Err(error) = stream.wait(TIMEOUT) {
        // What still runs goes on using them.
        std::mem::forget((graph, stream));
        return Err(error.into());
    }
    Ok(started.elapsed())
}
