// SPDX-License-Identifier: MIT
//! Two ranks, threads of this process, that play ping-pong and leave a trace.

use std::ffi::c_void;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use mscclpp_bootstrap::{Bootstrap, TcpBootstrap};
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_device::executor::{HostKernel, LaunchDims};
use mscclpp_port::trace::{Facts, RankTrace, Tracer};
use mscclpp_port::{
    Buffer, Communicator, ContextConfig, Device, EndpointConfig, Hca, MemoryOptions, ProxyService,
    Status, TransportKind,
};

const BYTES: u64 = 4096;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Who carries out the kernels' calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A proxy, over TCP.
    Proxy,
    /// The kernels themselves, on queues of NICs in software.
    Queue,
}

unsafe extern "C" {
    /// Of `kernels/traced/trace.cpp`.
    fn conformance_trace_traced(context: *const c_void);
}

/// Twin of `TraceArgs`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    channel: PortChannelDeviceHandle,
    bytes: u64,
    iterations: u64,
    rank: u64,
    status: u64,
}

/// Plays, and returns what both ranks have seen.
///
/// # Errors
/// If it cannot be set up, or a kernel's call fails.
pub fn run(way: Way, iterations: u64) -> anyhow::Result<Vec<RankTrace>> {
    let ranks: Vec<TcpBootstrap> = (0..2)
        .map(|rank| TcpBootstrap::new(rank, 2))
        .collect::<Result<_, _>>()?;
    let id = &ranks[0].create_unique_id()?;
    thread::scope(|scope| {
        let playing: Vec<_> = (ranks.into_iter())
            .map(|rank| scope.spawn(move || play(way, rank, id, iterations)))
            .collect();
        (playing.into_iter())
            .map(|rank| {
                rank.join()
                    .map_err(|_| anyhow::anyhow!("a rank panicked"))?
            })
            .collect()
    })
}

fn play(
    way: Way,
    bootstrap: TcpBootstrap,
    id: &mscclpp_bootstrap::UniqueId,
    iterations: u64,
) -> anyhow::Result<RankTrace> {
    bootstrap.initialize(id, TIMEOUT)?;
    let (rank, peer) = (bootstrap.rank(), 1 - bootstrap.rank());
    let tracer = Tracer::new(rank, 1 << 16);
    let mut config = ContextConfig::of_rank(&bootstrap);
    config.trace = Some(tracer.clone());
    config.hca_devices = vec![Hca::named("soft0")];
    let communicator = Communicator::with_config(Arc::new(bootstrap), config)?;
    let endpoint = match way {
        Way::Proxy => EndpointConfig::new(way.transport()),
        Way::Queue => EndpointConfig::gpu_initiated(way.transport()),
    };
    let options = MemoryOptions {
        transports: way.transport().into(),
        ..MemoryOptions::default()
    };

    let buffer = Buffer::new(Device::cpu(), BYTES)?;
    let local = communicator.register_memory_with(&buffer, 0..BYTES, options)?;
    let connecting = communicator.connect(endpoint, peer, 0)?;
    communicator.send_memory(&local, peer, 0)?;
    let remote = communicator.recv_memory(peer, 0)?.get()?;
    let connection = connecting.get()?;
    let service = ProxyService::with_default_size()?;
    service.trace_into(&tracer);
    let semaphore = service.build_and_add_semaphore(&communicator, &connection)?;
    let (dst, src) = (service.add_memory(remote)?, service.add_memory(local)?);
    let channel = service.port_channel(semaphore, dst, src)?;
    service.start_proxy()?;

    let status = Buffer::new(Device::cpu(), 8)?;
    let args = Args {
        channel: channel.device_handle(),
        bytes: BYTES,
        iterations,
        rank: rank as u64,
        status: status.address(),
    };
    // SAFETY: made by MSCCLPP_KERNEL(conformance_trace, TraceArgs) with the trace. What the arguments
    // name is kept, below, until the kernel has ended.
    let kernel = unsafe { HostKernel::new("conformance_trace", conformance_trace_traced) };
    let ring = tracer.kernel_ring("kernel");
    let dims = LaunchDims { grid: 1, block: 1 };
    let running = kernel.launch_traced(dims, args, &ring)?;
    if let Err(error) = running.join(TIMEOUT) {
        // It goes on using all of it.
        std::mem::forget((channel, service, status, buffer, communicator));
        return Err(error.into());
    }
    let mut word = [0; 8];
    status.read(0, &mut word)?;
    let ended = u64::from_ne_bytes(word);
    ensure!(
        ended == Status::Ok as u64,
        "rank {rank} ended with status {ended}"
    );
    communicator
        .bootstrap()
        .barrier()
        .context("meet at the end")?;
    service.stop_proxy()?;
    Ok(tracer.finish())
}

impl Way {
    /// What its files are called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Queue => "queue",
        }
    }

    fn transport(self) -> TransportKind {
        match self {
            Self::Proxy => TransportKind::Ethernet,
            Self::Queue => TransportKind::IB0,
        }
    }

    /// Holds a trace against what was played.
    ///
    /// # Errors
    /// What is missing.
    pub fn expect(self, facts: &Facts, iterations: u64) -> anyhow::Result<()> {
        let rounds = 2 * iterations as usize;
        let of = |counts: &std::collections::BTreeMap<String, usize>, name: &str| {
            counts.get(name).copied().unwrap_or(0)
        };
        // Each put is followed from the kernel to the other one.
        let flows: &[&str] = match self {
            Self::Proxy => &["trigger", "post", "packet", "signal"],
            Self::Queue => &["request", "packet", "signal", "completion"],
        };
        for flow in flows {
            let (found, least) = (
                of(&facts.flows, flow),
                if *flow == "completion" { 2 } else { rounds },
            );
            ensure!(
                found >= least,
                "{found} arrows {flow:?}, not {least}: {facts:?}"
            );
        }
        for call in ["putWithSignal", "wait"] {
            let found = of(&facts.slices, call);
            ensure!(
                found == rounds,
                "{found} bars {call:?}, not {rounds}: {facts:?}"
            );
        }
        ensure!(
            facts.between_ranks >= rounds,
            "{} arrows between ranks",
            facts.between_ranks
        );
        let places: &[&str] = match self {
            Self::Proxy => &["GPU", "proxy", "NIC", "wire"],
            Self::Queue => &["GPU", "NIC", "wire"],
        };
        for place in places {
            let found = facts.tracks.iter().filter(|track| track.starts_with(place));
            ensure!(
                found.count() >= 2,
                "{place} is not on both ranks: {facts:?}"
            );
        }
        Ok(())
    }
}
