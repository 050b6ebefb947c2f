// SPDX-License-Identifier: MIT
//! Expert parallelism: each rank has tokens and experts. Kernels send each token to its experts,
//! wherever those are (dispatch), and the results back (combine), over a send queue for each pair of
//! ranks and expert.
//!
//!     cargo xtask launch -n 4 -- target/debug/expert-parallel --tokens 64 --experts 2

mod routing;

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Parser;
use mscclpp_bootstrap::{Bootstrap, TcpBootstrap};
use mscclpp_device::LaunchDims;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_device::executor::HostKernel;
use mscclpp_port::{Buffer, Device, GpuNetIoService, Hca, PortChannel};

use routing::{CHOICES, Route, Routing};

/// Tokens go to the experts of all ranks, and their results come back.
#[derive(Parser)]
struct Options {
    /// Tokens of each rank
    #[arg(long, default_value = "64", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    tokens: u32,
    /// Experts of each rank, and queues between any two ranks
    #[arg(long, default_value = "2", value_parser = clap::value_parser!(u32).range(1..=64))]
    experts: u32,
    /// The HCA; soft0 is a NIC in software
    #[arg(long, default_value = "soft0")]
    hca: String,
}

/// Twins of the structs in kernel.cpp.
#[derive(Clone, Copy)]
#[repr(C)]
struct Lane {
    channel: PortChannelDeviceHandle,
    outgoing: u64,
    incoming: u64,
    outgoing_count: u32,
    incoming_count: u32,
    expert: u32,
    is_own: u32,
    inbox_here: u64,
    inbox_there: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    lanes: u64,
    memory: u64,
    weights: u64,
    combined: u64,
    statuses: u64,
    tokens: u32,
    choices: u32,
}

unsafe extern "C" {
    /// The kernel, as the build script has compiled it.
    fn dispatch_and_combine(context: *const c_void);
}

const TIMEOUT: Duration = Duration::from_secs(60);
/// Words of a token.
const WIDTH: usize = 32;
const ROW: u64 = 8 * WIDTH as u64;

/// A word of a token.
fn word(rank: usize, token: usize, word: usize) -> u64 {
    (rank << 40 | token << 16 | word) as u64
}

/// What an expert makes of a word.
fn apply(expert: usize, word: u64) -> u64 {
    word * (2 * expert as u64 + 3) + expert as u64
}

fn address<T>(items: &[T]) -> u64 {
    items.as_ptr().expose_provenance() as u64
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
    let (tokens, experts) = (options.tokens as usize, options.experts as usize);
    let routing = Routing::new(world, tokens, world * experts);

    // Tokens, results, and an inbox for the tokens of each rank to each expert here: so many rows.
    let inbox = |from: usize, expert: usize| {
        (tokens + tokens * CHOICES + (from * experts + expert) * tokens) as u64
    };
    let buffer = Buffer::new(Device::cpu(), inbox(world, 0) * ROW)?;
    for token in 0..tokens {
        for at in 0..WIDTH {
            buffer.store_u64(token as u64 * ROW + 8 * at as u64, word(rank, token, at))?;
        }
    }

    let hca = Hca::named(&options.hca);
    let service = GpuNetIoService::new(bootstrap.clone(), hca, Device::cpu())?;
    service.setup_full_mesh(experts as i32, 0)?;
    let memory = service.register_memory(&buffer, 0..buffer.len())?;
    // This rank's halves are sent to all at once; `get` waits for theirs.
    let mut halves = Vec::new();
    for peer in (0..world).filter(|peer| *peer != rank) {
        let remote = service.exchange_memory(peer, &memory, 0)?;
        let semaphores = (0..options.experts)
            .map(|index| service.build_semaphore(&service.connect(peer, index)?, index))
            .collect::<mscclpp_port::Result<Vec<_>>>()?;
        halves.push((peer, remote, semaphores));
    }
    let mut channels: Vec<(usize, usize, PortChannel)> = Vec::new();
    for (peer, remote, semaphores) in halves {
        let remote = remote.get()?;
        for (index, semaphore) in semaphores.into_iter().enumerate() {
            let channel = service.port_channel(semaphore.get()?, &remote, &memory)?;
            channels.push((peer, index, channel));
        }
    }

    // A lane for each of them, and for each expert a lane of the own tokens.
    let own = (0..experts).map(|index| (rank, index, None));
    let all = (channels.iter()).map(|(peer, index, channel)| (*peer, *index, Some(channel)));
    let plans: Vec<_> = (all.chain(own))
        .map(|(peer, index, channel)| {
            let outgoing = routing.routes(rank, peer * experts + index);
            let incoming = routing.routes(peer, rank * experts + index);
            (peer, index, channel, outgoing, incoming)
        })
        .collect();
    let lanes: Vec<Lane> = (plans.iter())
        .map(|(peer, index, channel, outgoing, incoming)| Lane {
            // The kernel leaves that of an own lane alone.
            channel: channel.map_or(channels[0].2.device_handle(), PortChannel::device_handle),
            outgoing: address::<Route>(outgoing),
            incoming: address::<Route>(incoming),
            outgoing_count: outgoing.len() as u32,
            incoming_count: incoming.len() as u32,
            expert: (rank * experts + index) as u32,
            is_own: channel.is_none().into(),
            inbox_here: inbox(*peer, *index),
            inbox_there: inbox(rank, *index),
        })
        .collect();

    let weights = routing.weights(rank);
    let combined = Buffer::new(Device::cpu(), tokens as u64 * ROW)?;
    let statuses = Buffer::new(Device::cpu(), 8 * lanes.len() as u64)?;
    let args = Args {
        lanes: address(&lanes),
        memory: buffer.address(),
        weights: address(&weights),
        combined: combined.address(),
        statuses: statuses.address(),
        tokens: options.tokens,
        choices: CHOICES as u32,
    };
    // SAFETY: made by MSCCLPP_KERNEL(dispatch_and_combine, Args). What the arguments point to lives until
    // the kernel has ended, or as long as the process.
    let kernel = unsafe { HostKernel::new("dispatch_and_combine", dispatch_and_combine) };
    let thread_a_lane = LaunchDims {
        grid: 1,
        block: lanes.len() as u32,
    };
    let started = Instant::now();
    if let Err(error) = kernel.run(thread_a_lane, args, TIMEOUT) {
        // The kernel may still run: the process ends, and frees nothing that it uses.
        eprintln!("Error: {error}");
        std::process::exit(1);
    }
    let took = started.elapsed();
    for lane in 0..lanes.len() as u64 {
        let status = statuses.load_u64(8 * lane)?;
        ensure!(status == 0, "lane {lane} ended with status {status}");
    }

    // The same without ranks.
    for token in 0..tokens {
        for at in 0..WIDTH {
            let expected: u64 = (routing.choices(rank, token).iter())
                .map(|(expert, weight)| weight * apply(*expert, word(rank, token, at)))
                .sum();
            let found = combined.load_u64(token as u64 * ROW + 8 * at as u64)?;
            ensure!(
                found == expected,
                "word {at} of token {token} is {found}, not {expected}"
            );
        }
    }
    let sent: usize = (plans.iter().filter(|plan| plan.0 != rank))
        .map(|plan| plan.3.len())
        .sum();
    println!(
        "{sent} rows of {tokens} tokens went to other ranks and back over {} queues, launch \
         included: {took:.1?}",
        channels.len()
    );
    // Nobody leaves while others still need it.
    bootstrap.barrier()?;
    Ok(())
}
