// SPDX-License-Identifier: MIT
//! A time line of kernels on GPUs and of what carries out their calls.

use std::thread;
use std::time::Duration;

use mscclpp_device::cuda::{ClockOffset, CudaKernel, Gpu, GpuRing, Module};
use mscclpp_device::nvrtc::Program;
use mscclpp_port::trace::{Facts, Tracer, check, chrome};
use mscclpp_port::{Communicator, ContextConfig, TransportKind};

use crate::Test;
use crate::local::Local;
use crate::support::{End, PingPongArgs, Running, end_of, gpu_of};

pub(crate) const TESTS: &[Test] = &[("trace_of_a_put_from_gpu_to_gpu", 1, a_put_can_be_followed)];

const WORDS: u64 = 64;
const ROUNDS: usize = 50;

/// One rank, whose kernel leaves a trace.
struct Rank {
    end: End,
    tracer: Tracer,
    ring: std::sync::Arc<GpuRing>,
    kernel: CudaKernel,
}

fn a_put_can_be_followed() {
    let ranks = Local::world(2).0.into_iter().map(|bootstrap| {
        thread::spawn(move || {
            let rank = bootstrap.rank();
            let (device, tracer) = (gpu_of(rank), Tracer::new(rank, 1 << 14));
            let mut config = ContextConfig::of_rank(&*bootstrap);
            config.trace = Some(tracer.clone());
            let communicator = Communicator::with_config(bootstrap, config).unwrap();
            let bytes = 2 * WORDS * 8;
            let end = end_of(communicator, TransportKind::Ethernet, device, bytes).unwrap();
            end.service.trace_into(&tracer);
            let gpu = Gpu::open(device.id() as u32).unwrap();
            let program = Program::new("kernels.cu", include_str!("kernels.cu"));
            let module = Module::compile(&gpu, &program.option("-DMSCCLPP_DEVICE_TRACE")).unwrap();
            let ring = GpuRing::new(&gpu, 1 << 14).unwrap();
            module.trace_into(&ring).unwrap();
            // SAFETY: it gets the twin of the C++ struct; what that names is kept until it has ended.
            let kernel = unsafe { module.kernel("ping_pong") }.unwrap();
            Rank {
                end,
                tracer,
                ring,
                kernel,
            }
        })
    });
    let ranks: Vec<_> = ranks.collect();
    let ranks: Vec<Rank> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    // Close to what is looked at, and before anything spins.
    let clocks: Vec<ClockOffset> = (ranks.iter())
        .map(|rank| ClockOffset::measure(&rank.kernel.gpu()).unwrap())
        .collect();
    let running: Vec<Running> = (ranks.iter().rev())
        .map(|Rank { end, kernel, .. }| {
            let device = end.buffer.device();
            Running::start((device, kernel.clone()), 128, |report| PingPongArgs {
                channel: end.channel.device_handle(),
                buffer: end.buffer.address(),
                words: WORDS,
                iterations: ROUNDS as u64,
                rank: end.rank as u64,
                flush: 1,
                report,
            })
        })
        .collect();
    for (running, rank) in running.into_iter().zip(ranks.iter().rev()) {
        let report = running.end();
        let why = rank.end.connection.status();
        assert_eq!(report.word(0), u64::MAX, "a kernel failed: {why:?}");
        assert_eq!(report.word(1), 0, "words that were not the round's");
    }
    let mut traces = Vec::new();
    for (rank, clock) in ranks.iter().zip(&clocks) {
        println!("{clock:?}");
        rank.end.service.stop_proxy().unwrap();
        let seen = rank.ring.snapshot(Duration::from_secs(10)).unwrap();
        assert_eq!(seen.dropped, 0);
        let uncertainty = clock.uncertainty + clock.resolution;
        rank.tracer
            .add("ping_pong", &seen, (clock.offset, uncertainty));
        traces.push(rank.tracer.finish());
    }
    let json = chrome(&traces);
    let Facts {
        slices,
        flows,
        between_ranks,
        tracks,
    } = check(&json).unwrap();
    println!("{slices:?} {flows:?} {tracks:?}");
    let calls = ["putWithSignalAndFlush", "wait", "execute a trigger"];
    for call in calls {
        assert_eq!(slices.get(call), Some(&(2 * ROUNDS)), "{call}: {slices:?}");
    }
    for flow in ["trigger", "signal"] {
        assert_eq!(flows.get(flow), Some(&(2 * ROUNDS)), "{flow}: {flows:?}");
    }
    // A write and a signal each way, a flush and its acknowledgement.
    assert!(between_ranks >= 4 * ROUNDS, "{between_ranks}");
}
